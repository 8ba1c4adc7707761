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
