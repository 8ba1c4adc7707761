"""Pickles of results are read only if no other user could have written them."""

import datetime as dt
import enum
import json
import math
import os
import pickle
import random
import sys
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

import cloudpickle
import numpy as np
import pytest
import torch

from echelon.client.python.results import read_results
from echelon.errors import NotFoundError, NotPermittedError, UnavailableError
from echelon.launch import function_call
from echelon.launch.function_call import keep_result
from echelon.run.directory import RunDir


@pytest.fixture
def run(tmp_path):
    made = RunDir.create(tmp_path, "train-abcd")
    (made.path / "results").mkdir(mode=0o700)
    return made


def write(run, rank, value, size=2):
    content = value if isinstance(value, bytes) else pickle.dumps(value)
    head = f'{{"rank": {rank}, "world_size": {size}}}\n'.encode()
    path = run.path / "results" / f"rank-{rank:05}.pkl"
    path.write_bytes(head + content)
    path.chmod(0o600)
    return path


def test_results_of_the_first_or_all_ranks_are_read_in_order(run):
    write(run, 0, "a")
    write(run, 1, "b")
    write(run, 2, "of an earlier generation, which had more ranks")
    assert read_results(run, every=False) == ["a"]
    assert read_results(run, every=True) == ["a", "b"]


def test_a_missing_or_damaged_result_is_an_error(run):
    with pytest.raises(NotFoundError, match="no result of rank 0"):
        read_results(run, every=False)
    write(run, 0, b"\x80\x05 no pickle")
    with pytest.raises(UnavailableError, match="rank 0 cannot be read"):
        read_results(run, every=False)
    (run.path / "results/rank-00000.pkl").write_bytes(b"")
    with pytest.raises(UnavailableError, match="rank 0 cannot be read"):
        read_results(run, every=False)


def test_a_pickle_that_other_users_can_write_is_not_read(run):
    write(run, 0, "a").chmod(0o666)
    with pytest.raises(NotPermittedError, match="can write to"):
        read_results(run, every=False)


# --- from another host --------------------------------------------------------------------------


class Loss(float):
    pass


class Phase(enum.IntEnum):
    LAST = 2


class Point(NamedTuple):
    x: int
    y: int


NESTED = [[[]]]


def name_type(value):
    """Return the id of a case. Not its text: that of a set differs between processes."""
    return type(value).__name__


VALUES = [
    *(None, True, False, 0, -1, 10**30, 1.5, -0.0, math.inf, "", "é\ud800\0", b"", b"\0\xff"),
    *([], (), {}, set(), frozenset(), [1, [2, (3,)]], (1, (2,), [3]), {1, "a", (2, None)}),
    {
        "loss": [0.1, 2, None],
        1: "int",
        (1, 2): {"x": 1},
        None: {},
        1.5: b"x",
        "tuple": 1,
        "dict": 2,
    },
    *(1 + 2j, OrderedDict(b=1, a=2), Loss(0.5), Phase.LAST, Point(1, 2), frozenset({(1,)})),
    *(
        dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        dt.datetime(1999, 1, 2, 3, 4, 5, 6),  # noqa: DTZ001
        dt.date.max,
    ),
    *(dt.time(1, 2), dt.timedelta(-1, 2, 3), Path("/scratch/model.pt"), {"a": NESTED, "b": NESTED}),
    *(
        np.float32(1.5),
        np.float64(2.5),
        np.int64(3),
        np.bool_(True),
        np.str_("é"),
        np.complex64(1j),
    ),
]
ARRAYS = [
    np.arange(6.0).reshape(2, 3),
    np.arange(12, dtype=">i2").reshape(3, 4)[::2, ::3],  # not contiguous
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.zeros((0, 3), dtype=bool),
    np.array([True, False]),
    np.array(5, dtype="u1"),
    np.array(["a", "\U0001f600c"]),
    np.array([b"a", b"bc"]),
    np.arange(3, dtype="f2"),
]


def keep(run, value, monkeypatch):
    """Write a result as a rank does, and return the file with its data."""
    for name, text in {"RANK": "0", "WORLD_SIZE": "1", "ECHELON_RUN_DIR": str(run.path)}.items():
        monkeypatch.setenv(name, text)
    keep_result(value, "train", cloudpickle.dump)
    return run.path / "results/rank-00000.data"


def read_plain(run):
    return read_results(run, every=False, plain=True)[0]


@pytest.mark.parametrize("value", VALUES, ids=name_type)
def test_data_of_another_host_is_read(run, value, monkeypatch):
    keep(run, value, monkeypatch)
    (run.path / "results/rank-00000.pkl").write_bytes(b"never read")
    found = read_plain(run)
    assert found == value
    assert repr(found) == repr(value) or not isinstance(value, float)  # -0.0
    if isinstance(value, np.generic):
        assert type(found) is type(value)


def test_nan_of_another_host_is_read(run, monkeypatch):
    keep(run, {"loss": math.nan}, monkeypatch)
    assert math.isnan(read_plain(run)["loss"])


@pytest.mark.parametrize("array", ARRAYS, ids=name_type)
def test_arrays_of_another_host_are_read(run, array, monkeypatch):
    keep(run, {"first": array, "again": (array, 1)}, monkeypatch)
    found = read_plain(run)
    for one in (found["first"], found["again"][0]):
        assert np.array_equal(one, array)
        assert (one.dtype, one.shape) == (array.dtype, array.shape)
        one[...] = one  # it can be written to


TENSORS = [
    *(
        torch.arange(6.0).reshape(2, 3).T,
        torch.tensor(1.5, dtype=torch.bfloat16),
        torch.zeros(0, 3),
    ),
    *(
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]).conj(),
        torch.ones(2, requires_grad=True),
    ),
    *(torch.nn.Parameter(torch.ones(2)), torch.arange(3, dtype=torch.uint8)[1:]),
    torch.ones(2).to(torch.float8_e5m2),
]


@pytest.mark.parametrize("tensor", TENSORS, ids=name_type)
def test_tensors_of_another_host_are_read(run, tensor, monkeypatch):
    keep(run, [tensor], monkeypatch)
    (found,) = read_plain(run)
    assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(found.to(torch.complex64), tensor.detach().to(torch.complex64))


def test_a_model_state_of_another_host_is_read(run, monkeypatch):
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    keep(run, model.state_dict(), monkeypatch)
    model.load_state_dict(read_plain(run))


def cyclic():
    made = []
    made.append(made)
    return made


def branching():
    made = []
    for _ in range(64):
        made = [made, made]
    return made


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (object(), "a builtins.object"),
        ({"model": [torch.nn.Linear(1, 1)]}, "a torch.nn.modules.linear.Linear"),
        (ValueError("x"), "a builtins.ValueError"),
        (np.array([object()]), "a numpy.ndarray of object"),
        (np.zeros(1, dtype=[("a", "O")]), "a numpy.ndarray of"),
        (np.ma.MaskedArray([1.0], [True]), "a numpy.ma.MaskedArray of float64"),
        (np.ma.masked_array([1]), "MaskedArray"),
        (torch.eye(2).to_sparse(), "a torch.Tensor of torch.float32 (torch.sparse_coo)"),
        (torch.zeros(2, device="meta"), "meta"),
        ([10**5000], "4300"),
        (cyclic(), "90 levels"),
        (branching(), "more than 1,000 values"),
    ],
    ids=lambda _: "",
)
def test_a_result_that_is_not_plain_data_is_an_error(run, value, what, monkeypatch):
    monkeypatch.setattr(function_call, "_MOST_VALUES", 1000)
    keep(run, value, monkeypatch)
    with pytest.raises(NotPermittedError, match="the result is not plain data: ") as caught:
        read_plain(run)
    assert what in caught.value.message
    assert "trust_host=True" in caught.value.hint


def test_a_pickle_of_another_host_is_not_read(run):
    write(run, 0, "a")
    with pytest.raises(NotFoundError, match="no result of rank 0"):
        read_plain(run)


def forge(run, value, content=b""):
    path = run.path / "results/rank-00000.data"
    text = value if isinstance(value, str) else json.dumps(value)
    path.write_bytes(f'{{"rank": 0, "world_size": 1, "value": {text}}}\n'.encode() + content)


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ({"array": ["<f8", [10**15]]}, b""),
        ({"array": ["<f8", [10**15, 0]]}, b"x"),
        ({"array": ["<f8", [1 << 60, 1 << 60, 0]]}, b""),
        ({"array": ["<f8", [-1]]}, b"12345678"),
        ({"array": ["<f8", [1.0]]}, b"12345678"),
        ({"array": ["<f8", "11"]}, b"12345678"),
        ({"array": ["<f8", [1] * 100]}, b"12345678"),
        ({"array": ["|O", [1]]}, b"12345678"),
        ({"array": ["<U0", [10**15]]}, b""),
        ({"array": ["<U1", [1]]}, b"\xff\xff\xff\xff"),
        ({"array": [">U1", [1]]}, b"\xff\x00\x00\x00"),
        ({"array": ["<S999999999999", [1]]}, b""),
        ({"array": ["|b1", [1]]}, b"\2"),
        ({"array": ["<f8,O", [1]]}, b"12345678"),
        ({"array": [["<f8"], [1]]}, b"12345678"),
        ({"scalar": ["<f8", [10**15]]}, b""),
        ({"tensor": ["float32", [10**15]]}, b""),
        ({"tensor": ["save", [1]]}, b"1234"),
        ({"tensor": ["bool", [1]]}, b"\7"),
        ({"tensor": ["float32", [0, 1 << 52, 1 << 52]]}, b""),
        ({"bytes": 10**15}, b""),
        ({"bytes": -1}, b"x"),
        ({"eval": "1"}, b""),
        ({"make": []}, b""),
        ({"tuple": [], "dict": []}, b""),
        ({}, b""),
        ({"dict": [[{"dict": []}, 1]]}, b""),
        ({"set": [[1]]}, b""),
        ({"datetime": "x"}, b""),
        ({"complex": [1, 2, 3]}, b""),
        (1, b"more"),
        ("[" * 100_000, b""),
        ("1" * 100_000, b""),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_forged_document_is_damaged(run, value, content):
    forge(run, value, content)
    with pytest.raises(UnavailableError, match="the result of rank 0 cannot be read"):
        read_plain(run)


@pytest.mark.parametrize("factor", [sys.hash_info.modulus, 1 << 36, -1])
def test_keys_that_could_collide_are_refused_before_they_take_minutes(run, factor):
    numbers = [number * factor for number in range(30_000)]
    for forged in ({"set": numbers}, {"dict": [[number, 0] for number in numbers]}):
        forge(run, forged)
        with pytest.raises(NotPermittedError, match="more than 20,000 keys that are neither"):
            read_plain(run)


def test_many_numbers_in_order_are_keys(run):
    forge(run, {"dict": [[number, 0] for number in range(60_000)]})
    assert len(read_plain(run)) == 60_000
    forge(run, {"set": list(range(60_000))})
    assert len(read_plain(run)) == 60_000


def test_a_huge_result_is_not_read(run):
    forge(run, {"bytes": 1 << 40})
    os.truncate(run.path / "results/rank-00000.data", 1 << 40)
    with pytest.raises(UnavailableError, match=r"more than 1,000,000,000 bytes"):
        read_plain(run)


def mutate(document, chance):
    """Return a document with a few changes: of bytes, of pieces, and of numbers in the text."""
    made = bytearray(document)
    for _ in range(chance.randint(1, 4)):
        at, size = chance.randrange(len(made) + 1), chance.randint(1, 16)
        other = chance.randrange(len(made) + 1)
        piece = chance.choice(
            [
                *(bytes([chance.randrange(256)]), b"", made[other : other + size], b"-1", b"1e999"),
                *(
                    b"1000000000000000",
                    b"9" * 400,
                    b'"|O"',
                    b'"array"',
                    b'{"tuple":',
                    b"[",
                    b"null",
                ),
            ]
        )
        made[at : at + chance.choice([0, len(piece), size])] = piece
    return bytes(made)


def use(value):
    """Read all of a value, as a user of it does."""
    if isinstance(value, torch.Tensor):
        value.tolist()
    elif isinstance(value, list | dict):
        for one in value.values() if isinstance(value, dict) else value:
            use(one)
    else:
        repr(value)


def test_mutations_of_documents_only_raise_the_documented_errors(run, monkeypatch):
    chance = random.Random(1)  # noqa: S311
    values = [VALUES, *ARRAYS, TENSORS, {"arrays": ARRAYS, "state": {"w": TENSORS[0]}}]
    documents = [keep(run, value, monkeypatch).read_bytes() for value in values]
    path, read = run.path / "results/rank-00000.data", 0
    for _ in range(10_000):
        path.write_bytes(mutate(chance.choice(documents), chance))
        try:
            use(read_plain(run))
            read += 1
        except (NotPermittedError, UnavailableError):
            pass
    assert 100 < read < 9_900
