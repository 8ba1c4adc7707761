"""`echelon.init()` among real processes, joined by gloo."""

import contextlib
import os
import socket
import subprocess
import sys
import weakref

import pytest
import torch

from echelon.errors import UsageError
from echelon.train import process_group
from echelon.train.process_group import choose_backend

PROGRAM = """\
import os, sys, time
import echelon
import torch, torch.distributed as dist
arguments = sys.argv[1:]
if "--spawn" in arguments:
    import torch.multiprocessing as mp

def main(local_rank=None):
    with echelon.init(local_rank=local_rank, join_timeout_s=20) as world:
        total = torch.ones(1)
        if world.backend:
            dist.all_reduce(total)
        line = f"{world.rank} {world.world_size} {world.backend} {world.device} {int(total)}\\n"
        os.write(1, line.encode())  # in one piece: children of spawn share the pipe
        if "--fail" in arguments:
            raise ValueError("on purpose")
    assert not dist.is_initialized()

if __name__ == "__main__":
    if "--spawn" in arguments:
        mp.spawn(main, nprocs=2)
    else:
        main()
"""


@pytest.fixture
def start(tmp_path):
    """Starts the program with some variables; its processes are ended whatever happens."""
    (tmp_path / "program.py").write_text(PROGRAM)
    started = []

    def begin(*arguments, **variables):
        outer = {k: v for k, v in os.environ.items() if k != "WORLD_SIZE"}
        process = subprocess.Popen(
            [sys.executable, str(tmp_path / "program.py"), *arguments],
            env={**outer, "OMP_NUM_THREADS": "1", **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def meeting():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}


def test_ranks_meet_and_leave(start):
    where = meeting()
    ranks = [start(RANK=str(rank), WORLD_SIZE="3", **where) for rank in range(3)]
    said = [process.communicate(timeout=120) for process in ranks]
    assert [out for out, _ in said] == [f"{rank} 3 gloo cpu 3\n" for rank in range(3)], said


def test_the_ranks_that_are_missing_are_named(start, tmp_path):
    program = (tmp_path / "program.py").read_text()
    (tmp_path / "program.py").write_text(program.replace("join_timeout_s=20", "join_timeout_s=2"))
    where = meeting()
    ranks = [start(RANK=rank, WORLD_SIZE="4", **where) for rank in ("0", "2")]
    said = [process.communicate(timeout=120) for process in ranks]
    assert "2 of 4 ranks did not join within 2 s: 1, 3" in said[0][1], said


def test_an_error_inside_leaves_the_group_and_stays_the_error(start):
    where = meeting()
    ranks = [start("--fail", RANK=str(rank), WORLD_SIZE="2", **where) for rank in range(2)]
    for process in ranks:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 1
        assert said.rstrip().endswith("ValueError: on purpose")


@pytest.mark.full
def test_children_of_spawn_say_which_they_are(start):
    out, said = start("--spawn", LOCAL_WORLD_SIZE="2", **meeting()).communicate(timeout=120)
    assert sorted(out.splitlines()) == ["0 2 gloo cpu 2", "1 2 gloo cpu 2"], said


def test_without_a_launcher_one_is_alone(start):
    out, said = start().communicate(timeout=120)
    assert out == "0 1  cpu 1\n", said


@pytest.mark.parametrize(
    ("gpus", "share", "backend", "why"),
    [
        (["h/a", "h/b"], "", "nccl", ""),
        (["h/a", "i/a"], "", "nccl", ""),
        (["h/a", "h/a"], "1", "nccl", ""),
        (["h/a", "h/b", "h/a"], "", "gloo", "ranks 0, 2 are on one GPU"),
        (["h/a", "-"], "1", "gloo", "rank 1 is without a GPU"),
        (["h/a", *"-" * 9], "", "gloo", "ranks 1, 2, 3, 4, 5, 6, 7, 8 … are without a GPU"),
        (["-"], "1", "gloo", ""),
    ],
)
def test_all_ranks_choose_the_same_backend_and_say_why_it_is_not_nccl(gpus, share, backend, why):
    environ = {"ECHELON_SHARE_GPU": share}
    assert choose_backend(dict(enumerate(gpus)), environ) == (backend, why)


def test_variables_that_contradict_each_other_are_refused():
    import echelon

    with pytest.raises(UsageError, match="contradicts"):
        echelon.init(environ={"RANK": "3", "WORLD_SIZE": "2"})


@pytest.mark.parametrize(
    ("error", "released"), [(None, True), (SystemExit, True), (RuntimeError, False)]
)
def test_recorded_steps_are_released_unless_a_peer_may_be_gone(error, released, monkeypatch):
    class Step:
        released = False

        def release(self):
            self.released = True

    monkeypatch.setattr(process_group, "_RECORDED", weakref.WeakSet())
    step = Step()
    process_group.release_before_close(step)
    ends = contextlib.nullcontext() if error is None else pytest.raises(error)
    with ends, process_group.Group(device=torch.device("cpu"), backend=""):
        if error is not None:
            raise error
    assert step.released == released
