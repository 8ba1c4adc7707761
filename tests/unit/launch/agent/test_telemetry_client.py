"""The agent's end of its node's telemetry."""

import asyncio
import signal
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.launch.agent.telemetry_client import TelemetryClient
from echelon.launch.protocol.scratch_files import TELEMETRY_NOTES
from echelon.run.directory import RunDir


class Sleeper:
    """A shell that starts a process of ours instead of the telemetry."""

    def start(self, argv, *, log, env):
        self.argv, self.log, self.env = list(argv), log, env
        self.process = subprocess.Popen(["sleep", "60"], start_new_session=True)
        return self.process.pid


class BrokenShell:
    def start(self, *_, **__):
        raise OSError(28, "no space left")


class FakeFiles:
    async def insist(self, task):
        return task()


class RecordingGuard:
    def __init__(self):
        self.watched = []

    def watch(self, group):
        self.watched.append(group)

    def forget(self, group):
        self.watched.remove(group)


@pytest.fixture
def guard():
    return RecordingGuard()


def make(tmp_path, guard, shell=None):
    return TelemetryClient(
        RunDir.create(tmp_path / "runs", "train"),
        attempt=1,
        node=3,
        scratch=tmp_path,
        env={"HOME": "/home/me"},
        shell=shell or BrokenShell(),
        guard=guard,
        files=FakeFiles(),
    )


def test_lines_are_read_once_and_only_when_complete(tmp_path, guard):
    meter = make(tmp_path, guard)
    assert meter.read_notes() == []
    said = tmp_path / TELEMETRY_NOTES
    said.write_text("one\ntwo\nthr")
    assert meter.read_notes() == ["one", "two"]
    assert meter.read_notes() == []
    said.write_text("one\ntwo\nthree\n")
    assert meter.read_notes() == ["three"]


LINES = st.lists(st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=2000))


@given(LINES, st.binary(max_size=10))
def test_all_lines_are_read_in_order_whatever_follows_them(tmp_path_factory, lines, rest):
    scratch = tmp_path_factory.mktemp("node")
    meter = make(scratch, RecordingGuard())
    written = "".join(f"{line}\n" for line in lines).encode() + rest.replace(b"\n", b"")
    (scratch / TELEMETRY_NOTES).write_bytes(written)
    read = []
    while found := meter.read_notes():
        read += found
    assert read == lines


def test_the_process_is_guarded_until_it_is_collected(tmp_path, guard, monkeypatch):
    shell = Sleeper()
    meter = make(tmp_path, guard, shell)
    asyncio.run(meter.start())
    pid = shell.process.pid
    assert shell.argv[-4:-1] == ["1", "3", str(tmp_path)]
    assert (shell.log.name, shell.env) == ("telemetry.log", {"HOME": "/home/me"})
    meter.collected(pid + 1)
    assert guard.watched == [pid]
    meter.close()
    assert shell.process.wait(10) == -signal.SIGKILL
    meter.collected(pid)
    assert guard.watched == []
    monkeypatch.setattr("os.killpg", lambda *group: pytest.fail(f"killed {group}"))
    meter.close()  # the pid may be another process's by now


def test_without_a_process_nothing_is_guarded_or_killed(tmp_path, guard, monkeypatch):
    monkeypatch.setattr("os.killpg", lambda *group: pytest.fail(f"killed {group}"))
    meter = make(tmp_path, guard)
    asyncio.run(meter.start())
    meter.collected(77)
    meter.close()
    assert guard.watched == []
