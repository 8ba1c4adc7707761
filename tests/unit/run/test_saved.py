"""What a script says it has saved, and what shows that it saved without saying so."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

import echelon
from echelon.errors import UsageError
from echelon.run.directory import RunDir
from echelon.run.history import has_written, newest_checkpoint
from echelon.run.saved import newest_saved

HOUR_S = 3600


@pytest.fixture
def run(tmp_path, monkeypatch):
    found = RunDir.create(tmp_path / "runs", "r-1")
    monkeypatch.setenv("ECHELON_RUN_DIR", str(found.path))
    return found


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "weights of mine.pt"
    path.touch()
    return path


def test_a_checkpoint_that_a_script_reports_is_one_to_continue_from(run, weights, monkeypatch):
    assert newest_checkpoint(run) == -1
    echelon.saved(weights, step=20)
    monkeypatch.chdir(weights.parent)
    echelon.saved(weights.name, step=40)
    assert newest_checkpoint(run) == 40
    assert run.saved.read_text() == f"20 {weights}\n40 {weights}\n"


def test_the_newest_that_still_exists_counts(run, weights, tmp_path):
    echelon.saved(weights, step=20)
    (tmp_path / "gone").mkdir()
    echelon.saved(tmp_path / "gone", step=40)
    (tmp_path / "gone").rmdir()
    assert newest_saved(run) == 20


def test_a_name_of_any_bytes_is_found_again(run, tmp_path):
    path = tmp_path / os.fsdecode(b"\xff\xe4 \x0b \xe2\x80\xa8")
    path.touch()
    echelon.saved(path, step=3)
    assert newest_saved(run) == 3


@pytest.mark.parametrize(
    ("name", "step"), [("nothing", 1), ("weights of mine.pt", -1), ("a\nb", 1)]
)
def test_what_is_not_there_was_not_saved(run, weights, name, step):
    weights.with_name("a\nb").touch()
    with pytest.raises(UsageError):
        echelon.saved(weights.with_name(name), step=step)
    assert newest_saved(run) == -1


def test_outside_a_run_nothing_is_written(weights, monkeypatch, tmp_path):
    monkeypatch.delenv("ECHELON_RUN_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    echelon.saved(weights, step=1)
    assert [path.name for path in tmp_path.iterdir()] == [weights.name]


@given(st.binary(max_size=200) | st.lists(st.sampled_from(["1 /", "9" * 30, "2 /\0", "3", "4 x"])))
def test_a_damaged_record_is_passed_over(tmp_path_factory, content):
    run = RunDir(path=tmp_path_factory.mktemp("run"))
    run.saved.write_bytes(content if isinstance(content, bytes) else "\n".join(content).encode())
    assert newest_saved(run) in range(-1, 10**18)


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("out/model.pt", True),
        ("runs/r-1/model.pt", True),
        ("runs/r-1/checkpoints/mine/x.pt", True),
        ("runs/r-1/logs/rank-0.log", False),
        ("runs/r-1/metrics.jsonl", False),
        ("runs/other-1/model.pt", False),
        (".git/index", False),
        ("__pycache__/train.pyc", False),
    ],
)
def test_files_show_that_a_script_did_something(run, tmp_path, name, counts):
    (tmp_path / "train.py").touch()
    os.utime(tmp_path / "train.py", (0, 0))
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    written_s = file.stat().st_mtime
    assert has_written(tmp_path, written_s - HOUR_S, run=run) is counts
    assert not has_written(tmp_path, written_s + HOUR_S, run=run)
