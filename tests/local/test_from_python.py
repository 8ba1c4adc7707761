"""Functions and scripts that are submitted from Python, on this machine."""

import asyncio
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import echelon


class Found:
    def __init__(self, rank, where):
        self.rank, self.where = rank, where


def train(lr, *, seed):
    rank = int(os.environ["RANK"])
    print(f"lr {lr} on rank {rank}")  # noqa: T201
    return Found(rank, (lr, seed, str(Path.cwd())))


def fail_on_one():
    if os.environ["RANK"] == "1":
        raise ValueError("wrong data")
    return "unused"


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return echelon.request(on="local", telemetry=False)


@pytest.mark.quick
def test_every_rank_calls_the_function_and_results_come_back(job, tmp_path):
    run = job.replace(nodes=2, procs=2).submit(train, 0.1, seed=3)
    assert list(run.logs(follow=True))
    first, *others = run.results(timeout=120)
    assert [one.rank for one in (first, *others)] == [0, 1, 2, 3]
    assert isinstance(first, Found)
    assert first.where == (0.1, 3, str(tmp_path))
    assert run.result().rank == 0
    assert "0: lr 0.1 on rank 0" in list(run.logs())
    assert list(run.logs(rank=2)) == ["2: lr 0.1 on rank 2"]
    assert run.state == "COMPLETED"
    assert run.why() == ""
    assert repr(run) == f"<Run {run.id}: COMPLETED on this machine>"
    assert echelon.Run(run.id) == echelon.Run("last") == run
    assert echelon.Run(run.id).result().rank == 0
    assert echelon.runs(state="completed") == [run]
    assert echelon.runs(state="failed") == []


def test_an_error_of_a_rank_is_raised_here_with_its_traceback(job):
    run = job.replace(procs=2).submit(fail_on_one)
    with pytest.raises(echelon.RunFailedError, match="ValueError: wrong data on rank 1") as told:
        run.result(timeout=120)
    assert 'raise ValueError("wrong data")' in "".join(told.value.__notes__)
    assert "rank 1" in run.why()
    assert echelon.runs(state="failed") == [run]


def test_a_function_continues_from_its_checkpoint(job):
    def count(until: int, checkpoint: echelon.Checkpointer) -> list[int]:
        import signal

        import torch

        found = checkpoint.load()
        start = found.step if found else 0
        for step in range(start + 1, until + 1):
            checkpoint.save({"x": torch.tensor([step])}, step=step)
            checkpoint.wait()
            if step == 3 and start == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return [start, until]

    assert job.submit(count, 5).result(timeout=200) == [3, 5]


def test_a_script_has_no_result_but_fails_as_loudly(job, tmp_path):
    (tmp_path / "train.py").write_text("import sys; print(sys.argv); sys.exit(int(sys.argv[1]))")
    run = job.submit("train.py", 0)
    assert run.result(timeout=120) is None
    assert pickle.loads(pickle.dumps(run)).state == "COMPLETED"
    assert list(run.logs()) == [f"0: ['{run.path}/code/train.py', '0']"]
    with pytest.raises(echelon.RunFailedError, match="is FAILED"):
        job.submit("train.py", 3).result(timeout=120)


def test_runs_come_as_they_end_and_can_be_awaited(job, tmp_path):
    def wait_for(name):
        import pathlib
        import time

        while not pathlib.Path(name).exists():
            time.sleep(0.05)
        return name

    first, second = job.submit(wait_for, "one"), job.submit(wait_for, "two")
    with pytest.raises(echelon.EchelonError, match="has not ended in time"):
        first.wait(0.1)
    (tmp_path / "two").touch()
    both = echelon.as_completed([first, second], timeout=120)
    assert next(both) == second
    (tmp_path / "one").touch()
    assert next(both) == first

    async def gather():
        return await asyncio.gather(first, second)

    assert asyncio.run(gather()) == ["one", "two"]


def test_many_calls_run_some_at_a_time_in_the_background(job, tmp_path):
    def add(a, b):
        return a + b

    some = job.replace(max_running=2)
    runs = some.map(add, [1, 2, 3], b=[10, 20, 30])
    assert [run.result(timeout=200) for run in pickle.loads(pickle.dumps(runs))] == [11, 22, 33]
    assert {run.path.parent for run in runs} == {tmp_path / "runs"}
    assert echelon.Run(runs[1].id).result() == 22
    assert [run.result(timeout=200) for run in some.grid(add, a=[1], b=[2, 3])] == [3, 4]
    assert some.map(add, a=[], b=[]) == []


def test_strings_and_scalars_are_not_lists_of_values(job, tmp_path):
    for values in ({"a": "fast", "b": [1]}, {"a": [1], "b": 0}):
        with pytest.raises(echelon.EchelonError, match="not a list of values"):
            job.grid(lambda a, b: a + b, **values)
    with pytest.raises(echelon.EchelonError, match="'index' cannot be the name of a parameter"):
        job.map("train.py", "{index}", index=[5, 6])
    with pytest.raises(echelon.EchelonError, match="max_running is -1"):
        job.replace(max_running=-1)
    assert not (tmp_path / "runs").exists()


def test_a_call_that_waits_its_turn_can_be_cancelled(job, tmp_path):
    def wait_for(name):
        import pathlib
        import time

        while not pathlib.Path(name).exists():
            time.sleep(0.05)
        return name

    going, waiting = job.replace(max_running=1).map(wait_for, ["one", "two"])
    assert waiting.state == "PENDING"
    waiting.cancel()
    assert waiting.wait(30) == "CANCELLED"
    (tmp_path / "one").touch()
    assert going.result(timeout=120) == "one"
    assert not waiting.path.exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"a": [1, 2], "b": [1]}, "a: 2, b: 1"),
        ({}, "none are given"),
        ({"a": [1]}, "missing a required argument: 'b'"),
    ],
)
def test_values_that_do_not_fit_start_nothing(job, tmp_path, values, message):
    with pytest.raises(echelon.EchelonError, match=message):
        job.map(lambda a, b: a + b, **values)
    assert not (tmp_path / "runs").exists()


def test_a_script_is_mapped_over_its_arguments(job, tmp_path):
    (tmp_path / "train.py").write_text("import sys; print(*sys.argv[1:])")
    runs = job.map("train.py", "--lr", "{lr}", lr=[0.1, 0.2])
    for run in runs:
        run.wait(200)
    assert [list(run.logs()) for run in runs] == [["0: --lr 0.1"], ["0: --lr 0.2"]]


def test_a_run_can_be_cancelled(job):
    def sleep():
        import time

        time.sleep(600)

    run = job.submit(sleep)
    run.cancel()
    assert run.wait(60) in ("CANCELLED", "FAILED")
    run.cancel()  # does nothing
    run.stop()


def test_a_module_of_the_project_is_the_one_that_was_submitted(job, tmp_path):
    (tmp_path / "mine.py").write_text(
        "VALUE = 1\ndef f():\n    import late\n    return VALUE, late.VALUE\n"
    )
    (tmp_path / "late.py").write_text("VALUE = 1\n")
    (tmp_path / "main.py").write_text(
        textwrap.dedent("""\
        import echelon, mine
        run = echelon.request(on="local").submit(mine.f)
        for name in ("mine", "late"):
            open(name + ".py", "a").write("VALUE = 2\\n")
        print(run.result(120))
        """)
    )

    done = subprocess.run(
        [sys.executable, "main.py"], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.stdout == "(1, 1)\n", done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"node": 2}, "unknown key: 'node'"),
        ({"on": "moon"}, "invalid value for --on"),
        ({"nodes": "many"}, "nodes"),
        ({"style": "srun"}, "needs the style 'echelon'|requires Slurm"),
        ({"python": "no-such-python"}, "no-such-python"),
    ],
)
def test_a_wrong_request_is_one_clear_error(job, tmp_path, options, message):
    with pytest.raises(echelon.EchelonError, match=message) as told:
        echelon.request(**{"on": "local", **options}).submit(train, 1, seed=1)
    assert told.value.hint
    assert not list((tmp_path / "runs").glob("*")) if (tmp_path / "runs").exists() else True
    with pytest.raises(echelon.EchelonError, match="takes no named arguments"):
        job.submit("train.py", lr=0.1)
