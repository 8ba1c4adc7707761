"""A zygote as its agent sees it: messages on a socket, and real forks."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from echelon.launch.protocol.messages import (
    ZYGOTE_PACKET,
    ForkRank,
    RankForked,
    RankReaped,
    SignalRanks,
    ZygoteReady,
    decode,
    encode,
)
from echelon.launch.protocol.rank_shm import VARIABLE as BEACON
from echelon.launch.protocol.rank_shm import RankShm

SOURCE = Path(__file__).parents[4] / "src"
SCRIPT = """\
import os, sys, time
print(os.environ["RANK"], *sys.argv[1:], flush=True)
if "wait" in sys.argv:
    time.sleep(600)
raise SystemExit(int(os.environ["RANK"]))
"""


PATHS = ("log", "error", "stacks", "trace")


class Agent:
    """The other end of a zygote's socket."""

    def __init__(self, folder, *program, kind="script"):
        self.folder = folder
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(60)
        argv = ["-m", "echelon.launch", "zygote", str(theirs.fileno()), kind, "", "", "", *program]
        self.zygote = subprocess.Popen(
            [sys.executable, *argv],
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def send(self, message):
        self.socket.send(json.dumps(encode(message)).encode())

    def fork(self, rank, generation=0, **more):
        """Order a rank, and return the zygote's reply."""
        paths = {name: str(self.folder / f"{name}-{rank}") for name in PATHS}
        env, temp = {"RANK": str(rank), **more}, str(self.folder / "temp")
        self.send(ForkRank(generation=generation, rank=rank, env=env, temp=temp, **paths))
        return self.receive()

    def children(self):
        task = Path(f"/proc/{self.zygote.pid}/task/{self.zygote.pid}/children")
        return {int(pid) for pid in task.read_text().split()}

    def receive(self):
        return decode(json.loads(self.socket.recv(ZYGOTE_PACKET)))

    def await_line(self, rank):
        log = self.folder / f"log-{rank}"
        while not (log.exists() and log.read_text().endswith("\n")):
            os.sched_yield()
        return log.read_text()


@pytest.fixture
def start(tmp_path):
    agents = []
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    def begin(*arguments, program=str(script), kind="script"):
        agents.append(Agent(tmp_path, program, *arguments, kind=kind))
        began = agents[-1].receive()
        assert (began.pid, began.torch) == (agents[-1].zygote.pid, True)
        assert began.python.startswith(sys.executable)
        return agents[-1]

    yield begin
    for agent in agents:
        agent.socket.close()
        agent.zygote.wait(60)


def test_ranks_are_forked_and_reported_with_their_status(start):
    agent = start("hello")
    assert replace(agent.receive(), import_s=0.0, waited_s=0.0) == ZygoteReady(
        serves_store=False, cold_reason=""
    )
    for rank in (0, 3):
        forked = agent.fork(rank)
        assert forked == RankForked(rank=rank, pid=forked.pid, warm=True)
        assert agent.receive() == RankReaped(rank=rank, status=rank)
        assert agent.await_line(rank) == f"{rank} hello\n"


def test_a_signal_reaches_the_ranks_of_its_generation_alone(start):
    agent = start("wait")
    agent.receive()
    for rank, generation in ((0, 1), (1, 2)):
        agent.fork(rank, generation)
        agent.await_line(rank)
    agent.send(SignalRanks(generation=2, signal=signal.SIGTERM))
    assert agent.receive() == RankReaped(rank=1, status=-signal.SIGTERM)
    agent.send(SignalRanks(generation=1, signal=signal.SIGKILL))
    assert agent.receive() == RankReaped(rank=0, status=-signal.SIGKILL)


@pytest.fixture
def prepared(start, tmp_path):
    """A zygote whose only rank was killed, and which has a spare process for the next one."""
    beacon = RankShm.create(tmp_path / "beacon")
    beacon.gpu = 0
    beacon.close()
    agent = start("wait")
    agent.receive()
    variables = {"LOCAL_RANK": "0", "CUDA_X": "1", BEACON: str(tmp_path / "beacon")}
    first = agent.fork(0, generation=1, **variables).pid
    agent.await_line(0)
    (tmp_path / "log-0").unlink()
    agent.send(SignalRanks(generation=1, signal=signal.SIGKILL, again=True))
    assert agent.receive() == RankReaped(rank=0, status=-signal.SIGKILL)
    (spare,) = agent.children() - {first}
    return agent, spare, variables


def test_a_spare_process_becomes_the_next_rank(prepared):
    agent, spare, variables = prepared
    assert agent.fork(0, generation=2, **variables) == RankForked(rank=0, pid=spare, warm=True)
    assert agent.await_line(0) == "0 wait\n"
    agent.send(SignalRanks(generation=2, signal=signal.SIGTERM))
    assert agent.receive() == RankReaped(rank=0, status=-signal.SIGTERM)


@pytest.mark.parametrize("changed", [{"CUDA_X": "2"}, {"LOCAL_RANK": "1"}])
def test_a_spare_process_is_not_used_for_another_gpu(prepared, changed):
    agent, spare, variables = prepared
    assert agent.fork(0, generation=2, **{**variables, **changed}).pid != spare
    assert agent.await_line(0) == "0 wait\n"


def test_a_spare_process_that_was_killed_is_not_used(prepared):
    agent, spare, variables = prepared
    with os.fdopen(os.pidfd_open(spare)) as watch:
        os.kill(spare, signal.SIGKILL)
        assert select.select([watch], [], [], 60)[0]
    assert agent.fork(0, generation=2, **variables).pid != spare
    assert agent.await_line(0) == "0 wait\n"


def test_a_spare_process_ends_with_its_zygote(prepared):
    agent, spare, _ = prepared
    watch = os.pidfd_open(spare)
    agent.socket.close()
    assert agent.zygote.wait(60) == 0
    with os.fdopen(watch):
        assert select.select([watch], [], [], 60)[0], "the spare process still runs"


def test_without_its_agent_a_zygote_ends_with_its_ranks(start):
    agent = start("wait")
    agent.receive()
    watch = os.pidfd_open(agent.fork(0).pid)
    agent.await_line(0)
    agent.socket.close()
    assert agent.zygote.wait(60) == 0
    with os.fdopen(watch):
        assert select.select([watch], [], [], 60)[0], "the rank still runs"


def test_a_program_that_is_not_python_starts_cold(start):
    agent = start("-c", "echo $RANK; exit 4", program="sh", kind="binary")
    assert replace(agent.receive(), import_s=0.0, waited_s=0.0) == ZygoteReady(
        serves_store=False, cold_reason="it is not a Python program"
    )
    forked = agent.fork(5)
    assert not forked.warm
    assert agent.receive() == RankReaped(rank=5, status=4)
    assert agent.await_line(5) == "5\n"
