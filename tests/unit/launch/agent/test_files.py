"""An agent's files, while storage does not answer: its loop goes on."""

import asyncio
import errno
import os
import threading
import time

import pytest

from echelon.launch.agent import files as module
from echelon.launch.agent.files import AgentFiles, Dumper
from echelon.launch.protocol.rank_environment import rank_files


@pytest.fixture
def gate():
    gate = threading.Event()
    yield gate
    gate.set()


def run_with_files(work, gate):
    """Run something with an agent's files, and close them."""

    async def go():
        files = AgentFiles()
        try:
            return await work(files)
        finally:
            gate.set()
            files.close()

    return asyncio.run(go())


def test_a_loop_goes_on_while_storage_hangs(gate):
    async def work(files):
        asked = asyncio.ensure_future(files.ask(gate.wait))
        for _ in range(10):
            await asyncio.sleep(0.001)
        assert not asked.done()
        gate.set()
        return await asked

    assert run_with_files(work, gate)


def test_an_error_is_told_to_whoever_asked(gate, tmp_path):
    async def work(files):
        with pytest.raises(FileNotFoundError):
            await files.insist((tmp_path / "no").read_text)
        return await files.ask(lambda: 7)

    assert run_with_files(work, gate) == 7


def test_insisting_outlasts_storage_that_fails(gate):
    errors = [OSError(errno.ESTALE, "stale")]

    def task():
        if errors:
            raise errors.pop()
        return 7

    assert run_with_files(lambda files: files.insist(task), gate) == 7


def test_waiting_for_logs_and_stacks_is_limited(gate, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "READ_S", 0.01)
    own = rank_files(tmp_path / "rank-00000.log", tmp_path, 0)

    async def work(files):
        hung = asyncio.ensure_future(files.ask(gate.wait))
        await asyncio.sleep(0)  # now it has been asked
        asked = {3: Dumper(pid=os.getpid(), warm=False, stacks=own.stacks)}
        found = await files.read_end(own), await files.dump(asked)
        gate.set()
        await hung
        return found

    (error, tail), stacks = run_with_files(work, gate)
    assert error == {}
    assert "storage did not respond" in tail
    assert stacks["3"].startswith(f"process {os.getpid()} is ")


def test_lines_are_timed_by_the_controllers_clock(gate, tmp_path):
    """The node's own clock is minutes off, or was set an hour ago."""
    log = tmp_path / "rank-00000.log"

    async def work(files):
        files.set_clock(5000.0)
        files.follow(log)
        log.write_text("a line\n")
        files.finish(log)

    began_s = time.monotonic()
    run_with_files(work, gate)
    time_s, size = (tmp_path / "rank-00000.times").read_text().split()
    assert 5000 <= float(time_s) <= 5001 + time.monotonic() - began_s
    assert int(size) == 7
