"""Parsing `--grid`, `--file` and `--array`."""

import pytest

from echelon.client.submit.parameters import parse_grid, read_parameters, split_array
from echelon.errors import UsageError
from echelon.run.sweep import Table
from echelon.spec.merging import Layer, merge


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("lr=0.1,0.01", ["0.1", "0.01"]),
        ("seed=1..4", ["1", "2", "3", "4"]),
        ("seed=-1..1", ["-1", "0", "1"]),
        ("n=0..10..5,64", ["0", "5", "10", "64"]),
        ("x=a=b", ["a=b"]),
    ],
)
def test_grid_values_are_a_list_or_a_range(text, values):
    assert parse_grid(text) == (text.partition("=")[0], values)


def test_a_grid_has_all_combinations(tmp_path):
    assert read_parameters(["a=1,2", "b=x,y"], None) == [
        {"a": "1", "b": "x"},
        {"a": "1", "b": "y"},
        {"a": "2", "b": "x"},
        {"a": "2", "b": "y"},
    ]


def test_each_row_of_a_file_is_combined_with_the_grid(tmp_path):
    path = tmp_path / "p.csv"
    path.write_bytes(b'\xef\xbb\xbflr, name\r\n0.1,"a,b"\r\n\r\n0.2,c\r\n')
    assert read_parameters([], path) == [{"lr": "0.1", "name": "a,b"}, {"lr": "0.2", "name": "c"}]
    rows = read_parameters(["seed=1..2"], path)
    assert [tuple(row.values()) for row in rows] == [
        *(("0.1", "a,b", "1"), ("0.1", "a,b", "2"), ("0.2", "c", "1"), ("0.2", "c", "2")),
    ]


@pytest.mark.parametrize(
    ("grids", "message"),
    [
        ([], "a sweep needs parameters"),
        (["lr"], "has no values"),
        (["lr="], "has no values"),
        (["lr=1,"], "has an empty value"),
        (["lr=1", "lr=2"], "given twice"),
        (["index=1"], "cannot be the name"),
        (["a b=1"], "cannot be the name"),
        (["s=5..1"], "the range 5..1 is empty"),
        (["s=1..999999999999"], "too long"),
        (["a=1..1000", "b=1..1000"], "1,000,000 tasks"),
    ],
)
def test_an_invalid_grid_is_an_error(grids, message):
    with pytest.raises(UsageError, match=message) as caught:
        read_parameters(grids, None)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [("a,b\n", "has no rows"), ("a,b\n1\n", "row 1 has 1 values"), ('a\n"x', "cannot read")],
)
def test_an_invalid_parameter_file_is_an_error(tmp_path, text, message):
    path = tmp_path / "p.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_parameters([], path)
    with pytest.raises(UsageError, match="cannot read"):
        read_parameters([], tmp_path / "missing.csv")


def request(**extra):
    style = extra.pop("style", "echelon")
    values = {"script": "t.py", "style": style, "slurm.extra": extra}
    return merge([Layer(source="test", values=values)]).spec


@pytest.mark.parametrize(
    ("text", "indices", "limit"),
    [("0-3", [0, 1, 2, 3], 0), ("1,5-9:2%2", [1, 5, 7, 9], 2), ("4%1", [4], 1)],
)
def test_a_job_array_is_removed_from_the_request(text, indices, limit):
    table = Table(names=(), tasks=dict.fromkeys(indices, ()), max_running=limit)
    assert split_array(request(array=text)) == (request(), table)
    assert split_array(request(arr=text)) == (request(), table)
    for kept in (request(array=text, style="srun"), request()):
        assert split_array(kept) == (kept, None)


@pytest.mark.parametrize("text", ["", "x", "3-1", "1-", "1%x", "1-9:0"])
def test_an_invalid_job_array_is_an_error(text):
    with pytest.raises(UsageError):
        split_array(request(array=text))
