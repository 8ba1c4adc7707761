"""Processes that bring agents: what is started is collected, whatever becomes of it."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from echelon.core.waiting import wait_until
from echelon.launch.backends.base import AgentCommand, StartedProcess
from echelon.launch.pool.agent_launcher import AgentLauncher, read_reason

COMMAND = AgentCommand(argv=["agent"], env={"A": "1"}, logs=Path("logs"), key=b"k" * 32)


class Starter:
    """Starts a process that does nothing, for each node."""

    nodes = 1

    def __init__(self, program="import time; time.sleep(600)"):
        self.program, self.pids, self.environs = program, [], []
        self.go = threading.Event()
        self.go.set()

    def start(self, nodes, command):
        self.go.wait(10)
        self.environs.append(command.env)
        child = subprocess.Popen([sys.executable, "-c", self.program], start_new_session=True)
        child.returncode = 0  # the launcher collects it
        self.pids.append(child.pid)
        return [StartedProcess(pid=child.pid, nodes=frozenset(nodes), log=command.logs)]


@pytest.fixture
def starter():
    one = Starter()
    yield one
    for pid in one.pids:
        if is_there(pid):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def is_there(pid):
    return os.path.exists(f"/proc/{pid}")  # noqa: PTH110


async def call(launcher, then, **environ):
    calling = asyncio.ensure_future(launcher.call(0, **environ))
    await then(calling)
    return await calling


def make(starter, gone=lambda *_: None):
    launcher = AgentLauncher(starter, gone)
    launcher.call_all(range(starter.nodes), COMMAND)
    return launcher


def run(scenario):
    return asyncio.run(asyncio.wait_for(scenario, 20))


async def until(condition):
    while not condition():  # noqa: ASYNC110  of processes
        await asyncio.sleep(0.005)


async def started(starter, count):
    await until(lambda: len(starter.pids) >= count)


def test_one_that_is_called_again_comes(starter):
    async def scenario():
        launcher = make(starter)

        async def welcome(_):
            await started(starter, 2)
            launcher.on_connected(0)

        assert await call(launcher, welcome, B="2")
        assert starter.environs == [{"A": "1"}, {"A": "1", "B": "2"}]
        assert all(map(is_there, starter.pids))
        launcher.end()
        await until(lambda: not launcher.is_here())

    run(scenario())
    assert not any(map(is_there, starter.pids))


def test_or_its_process_ends_and_it_has_not():
    gone = []

    async def scenario():
        launcher = make(Starter("pass"), lambda started, _: gone.append(started))

        async def collect(calling):
            while not calling.done():
                launcher.reap()
                await asyncio.sleep(0.005)

        assert not await call(launcher, collect)
        # The first one may take longer to end than the second.
        assert wait_until(lambda: not launcher.is_here(), timeout_s=20)

    run(scenario())
    assert [one.nodes for one in gone] == [{0}, {0}]


@pytest.mark.parametrize("when", ["while it is started", "while it comes"])
def test_one_that_nobody_wants_any_more_is_ended(starter, when):
    async def scenario():
        launcher = make(starter)
        if when == "while it is started":
            starter.go.clear()

        async def cancel(calling):
            await (asyncio.sleep(0.05) if not starter.go.is_set() else started(starter, 2))
            calling.cancel()
            starter.go.set()

        with pytest.raises(asyncio.CancelledError):
            await call(launcher, cancel)
        await started(starter, 2)
        await until(lambda: not (launcher.is_here() and is_there(starter.pids[1])))
        assert is_there(starter.pids[0])  # the other is none of its business
        launcher.on_connected(0)  # which nobody waits for

    run(scenario())
    assert wait_until(lambda: not is_there(starter.pids[1]), timeout_s=30)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", ""),
        ("Traceback …\nModuleNotFoundError: no module\n\n", "ModuleNotFoundError: no module"),
        (
            (
                "srun: error: Task launch failed on node node2: Communication connection failure\n"
                "srun: Job step aborted: Waiting up to 32 seconds\n"
                "srun: error: node1: task 0: Killed\n"
            ),
            "srun: error: Task launch failed on node node2: Communication connection failure",
        ),
    ],
)
def test_why_agents_did_not_come_is_what_was_said_first(tmp_path, text, reason):
    (tmp_path / "log").write_text(text)
    assert read_reason(tmp_path / "log") == reason
    assert read_reason(tmp_path / "none") == ""


def test_one_that_is_no_longer_wanted_and_does_not_end_is_killed(starter, monkeypatch):
    monkeypatch.setattr("echelon.launch.pool.agent_launcher.END_S", 0.05)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    starter.program = deaf

    async def scenario():
        launcher = AgentLauncher(starter, lambda *_: None)
        launcher.call_all([], COMMAND)
        calling = asyncio.ensure_future(launcher.call(0))
        await started(starter, 1)
        (pid,) = starter.pids
        await until(lambda: ignores_sigterm(pid))
        calling.cancel()
        await until(lambda: not launcher.is_here())

    run(scenario())


def ignores_sigterm(pid):
    (mask,) = [
        line.split()[1]
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("SigIgn:")
    ]
    return bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)
