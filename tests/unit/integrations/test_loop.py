"""A loop of the user's own: it counts on from the newest checkpoint, and stops with one."""

import json

import pytest

import echelon
from echelon.errors import UsageError
from echelon.launch.protocol.rank_shm import VARIABLE, RankShm
from echelon.run.directory import RunDir
from echelon.train.stopping import StoppedRun


@pytest.fixture
def run(tmp_path, monkeypatch):
    found = RunDir.create(tmp_path / "runs", "r-1")
    monkeypatch.setenv("ECHELON_RUN_DIR", str(found.path))
    return found


def train(loop, *, until=None):
    """Take steps, save where that is asked for, and return the steps taken."""
    taken = []
    with loop:
        for step in loop:
            taken.append(step)
            loop.log(loss=1 / (step + 1))
            if loop.save_here:
                loop.path.mkdir(parents=True)
            if step + 1 == until:
                break
    return taken


def test_it_saves_now_and_then_and_at_the_end_and_keeps_the_newest(run):
    assert train(echelon.loop(7, save_every=2)) == [*range(7)]
    steps = [line.split()[0] for line in run.saved.read_text().splitlines()]
    assert steps == ["2", "4", "6", "7"]
    assert sorted(path.name for path in (run.path / "loop").iterdir()) == ["step-6", "step-7"]
    logged = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert [(one["step"], one["unit"]) for one in logged] == [(n, "steps") for n in range(1, 8)]
    assert logged[3]["metrics"]["loss"] == 0.25
    assert "data_wait" not in logged[3]["metrics"]  # nobody knows


def test_the_next_one_begins_where_the_newest_checkpoint_is(run):
    assert train(echelon.loop(9, save_every=2), until=5) == [*range(5)]
    again = echelon.loop(9, save_every=2)
    assert (again.step, again.checkpoint) == (4, run.path / "loop" / "step-4")
    assert again.checkpoint == echelon.last_saved()
    assert train(again) == [4, 5, 6, 7, 8]
    assert train(echelon.loop(9, save_every=2)) == []  # it is done


def test_a_requested_stop_comes_with_a_checkpoint_and_ends_the_script(run, tmp_path, monkeypatch):
    beacon = RankShm.create(tmp_path / "beacon")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "beacon"))
    beacon.proposed = beacon.committed = 3
    with pytest.raises(StoppedRun) as stopped:
        train(echelon.loop(9))
    assert (stopped.value.step, stopped.value.code) == (3, 0)
    assert run.saved.read_text() == f"3 {run.path}/loop/step-3\n"
    assert beacon.step == 3
    assert beacon.passed == -1  # takes part no more
    beacon.close()


def test_a_loop_that_does_not_save_is_stopped_all_the_same(run, tmp_path, monkeypatch):
    beacon = RankShm.create(tmp_path / "beacon")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "beacon"))
    beacon.proposed = beacon.committed = 2
    with echelon.loop(9) as loop, pytest.raises(StoppedRun):
        list(loop)
    assert (loop.step, run.saved.exists()) == (2, False)
    beacon.close()


def test_outside_a_run_it_is_a_plain_loop(tmp_path, monkeypatch):
    monkeypatch.delenv("ECHELON_RUN_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    assert echelon.last_saved() is None
    assert train(echelon.loop(3)) == [0, 1, 2]
    assert [path.name for path in (tmp_path / "loop").iterdir()] == ["step-3"]


def test_a_checkpoint_that_was_not_written_is_an_error(run):
    with echelon.loop(2) as loop:
        steps = iter(loop)
        assert next(steps) == 0
        assert not loop.save_here
        assert next(steps) == 1
        assert loop.save_here
        with pytest.raises(UsageError, match="step-2 does not exist"):
            next(steps)
    assert not run.saved.exists()


def test_save_here_is_asked_inside_the_loop(run):
    assert run
    with pytest.raises(UsageError, match="no step has begun"):
        _ = echelon.loop(3).save_here


def test_what_it_did_not_write_stays(run):
    for name in ("step-1", "step-9000"):  # half written, when its rank was killed
        (run.path / "loop" / name).mkdir(parents=True)
    train(echelon.loop(6, save_every=2, keep=1))
    left = sorted(path.name for path in (run.path / "loop").iterdir())
    assert left == ["step-1", "step-6", "step-9000"]


def test_a_checkpoint_counts_also_if_the_loop_is_left_after_it(run):
    train(echelon.loop(9, save_every=2), until=4)
    assert run.saved.read_text().splitlines()[-1].startswith("4 ")


def test_all_ranks_begin_with_the_checkpoint_that_their_launcher_found(run, monkeypatch):
    train(echelon.loop(9, save_every=2), until=4)
    monkeypatch.setenv("ECHELON_LAST_SAVED", f"2 {run.path}/loop/step-2")
    assert echelon.loop(9).step == 2
    monkeypatch.setenv("ECHELON_LAST_SAVED", "")
    assert (echelon.loop(9).step, echelon.last_saved()) == (0, None)
