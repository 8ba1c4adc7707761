"""Choosing the runs to remove."""

import os

import pytest

from echelon.client.manage.cleaning import Holding, choose, find_use, measure, remove, show_age
from echelon.core.jobs import Job
from echelon.run.directory import RunDir

DAY_S = 86400.0


def holding(name, *, days, state="COMPLETED", over=True, resumable=False):
    return Holding(
        run=name,
        state=state,
        over=over,
        written_s=100 * DAY_S - days * DAY_S,
        code=0,
        checkpoints=0,
        logs=0,
        resumable=resumable,
    )


def kept(holdings, **options):
    given = {"keep": 0, "older_s": 30 * DAY_S, "now_s": 100 * DAY_S, "unfinished": False, **options}
    return {one.run: one.kept for one in choose(holdings, **given)}


def test_old_runs_are_removed_except_the_newest():
    runs = [holding("a", days=90), holding("b", days=80), holding("c", days=70)]
    assert kept(runs, keep=2) == {"a": "", "b": "one of the newest 2", "c": "one of the newest 2"}
    assert kept(runs, keep=9)["a"] == "one of the newest 9"
    assert not any(kept(runs).values())


def test_recent_runs_are_kept():
    runs = [holding("a", days=31), holding("b", days=29), holding("c", days=0.5)]
    assert kept(runs) == {"a": "", "b": "only 29 days old", "c": "only 12 h 0 min old"}
    assert show_age(DAY_S) == "1 day"


@pytest.mark.parametrize(
    ("run", "why", "use"),
    [
        (holding("r", days=90, state="RUNNING", over=False), "active", "active"),
        (
            holding("r", days=90, state="UNKNOWN", over=False),
            "its state is unknown",
            "its state is unknown",
        ),
        (holding("r", days=90, state="UNSUBMITTED", over=False), "", ""),
        (holding("r", days=90, state="FAILED"), "", ""),
        (
            holding("r", days=90, state="FAILED", resumable=True),
            "unfinished, with a checkpoint",
            "",
        ),
        (holding("r", days=90, state="COMPLETED", resumable=True), "", ""),
    ],
)
def test_runs_that_may_still_be_needed_are_kept(run, why, use):
    assert find_use(run, unfinished=False) == why
    assert find_use(run, unfinished=True) == use


@pytest.fixture
def run(tmp_path):
    run = RunDir.create(tmp_path, "train-abcd")
    run.spec.write_text("")
    run.code.mkdir()
    (run.code / "a.py").write_bytes(b"x" * 1000)
    run.launcher.write_bytes(b"x" * 70)
    (run.logs / "job.out").write_bytes(b"x" * 300)
    return run


def test_the_disk_usage_of_a_run_is_measured(run, tmp_path):
    os.link(run.code / "a.py", tmp_path / "the same in another run")
    one = measure(run, Job(id="1", state="FAILED"))
    assert (one.code, one.checkpoints, one.logs, one.size) == (570, 0, 300, 870)
    assert (one.over, one.resumable) == (True, False)


@pytest.mark.parametrize("name", ["model.pt", "checkpoints/step-1/weights", "out/last.ckpt"])
def test_a_file_of_the_script_may_be_a_checkpoint(run, name):
    (run.path / name).parent.mkdir(parents=True, exist_ok=True)
    (run.path / name).write_bytes(b"x" * 50)
    one = measure(run, Job(id="1", state="FAILED"))
    assert (one.checkpoints, one.resumable) == (50, True)


def test_removing_a_run_leaves_files_that_others_share(run, tmp_path):
    other = tmp_path / "other.py"
    os.link(run.code / "a.py", other)
    (run.code / "a.py").chmod(0o400)
    run.code.chmod(0o500)
    remove([measure(run, Job(id="1", state="COMPLETED"))])
    assert not run.path.exists()
    assert other.stat().st_mode & 0o777 == 0o400
