"""Functions that are submitted from Python to Slurm."""

import os

import pytest

import echelon


@pytest.fixture
def job(cluster, tmp_path, monkeypatch):
    environ = {**cluster.environ, "SLURM_CONF": str(cluster.box.layout.slurm_conf)}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return echelon.request(hand_over="never")


def test_results_come_from_all_ranks_on_two_nodes(job):
    def where(word, *, twice):
        import torch

        with echelon.init() as world:
            total = torch.tensor([world.rank])
            torch.distributed.all_reduce(total)
        return word * twice, world.rank, os.environ["SLURMD_NODENAME"], int(total)

    run = job.replace(nodes=2, procs=2).submit(where, "ab", twice=2)
    assert run.id.startswith("where-")
    found = run.results(timeout=150)
    assert [one[:2] for one in found] == [("abab", rank) for rank in range(4)]
    assert len({one[2] for one in found}) == 2
    assert {one[3] for one in found} == {6}
    assert echelon.Run(run.id).result() == found[0]


def test_an_error_names_the_node(job):
    def fail():
        raise KeyError("missing")

    with pytest.raises(echelon.RunFailedError, match=r"KeyError: 'missing' on rank 0 \(node"):
        job.submit(fail).result(timeout=150)


def test_a_job_submits_another_one(job, tmp_path):
    def outer(runs):
        inner = echelon.request(hand_over="never", runs_dir=runs).submit(lambda x: x + 1, 1)
        return inner.result(timeout=100), inner.id

    value, name = job.submit(outer, str(tmp_path / "runs")).result(timeout=200)
    assert value == 2
    assert echelon.Run(name).state == "COMPLETED"


def test_many_calls_are_one_array_and_come_back_in_order(job, cluster):
    def multiply(a, b):
        if a == 3:
            raise ValueError("not three")
        return a * b

    runs = job.replace(max_running=2).map(multiply, a=[1, 2, 3, 4], b=[5, 6, 7, 8])
    arrays = {run.job.id.partition("_")[0] for run in runs}
    assert len(arrays) == 1, arrays
    ended = [run.id for run in echelon.as_completed(runs, timeout=200)]
    assert sorted(ended) == sorted(run.id for run in runs)
    assert [run.state for run in runs] == ["COMPLETED", "COMPLETED", "FAILED", "COMPLETED"]
    assert [runs[n].result() for n in (0, 1, 3)] == [5, 12, 32]
    with pytest.raises(echelon.RunFailedError, match="not three"):
        runs[2].result()


def test_a_call_that_waits_in_an_array_can_be_cancelled(job):
    def wait(seconds):
        import time

        time.sleep(seconds)

    going, waiting = job.replace(max_running=1).map(wait, [600, 601])
    waiting.cancel()
    # Without accounting, Slurm knows nothing of a task that never started.
    assert waiting.wait(timeout=60) in ("CANCELLED", "UNKNOWN")
    assert not waiting.path.exists()
    going.cancel()
    assert going.wait(timeout=60) == "CANCELLED"


@pytest.mark.full
def test_the_next_job_continues_from_what_a_function_saved(job):
    def count(until: int, checkpoint: echelon.Checkpointer) -> tuple[int, int]:
        import time

        import torch

        found = checkpoint.load()
        start = found.step if found else 0
        stop = echelon.StopBarrier()
        for step in range(start + 1, until + 1):
            time.sleep(0.5)
            if stop.reached(step):
                checkpoint.save({"x": torch.tensor([step])}, step=step, wait=True)
                stop.leave()
        return start, until

    run = job.replace(hand_over="auto", time="1m", signal_lead="20s").submit(count, 150)
    start, until = run.result(timeout=400)
    assert start > 0
    assert until == 150
