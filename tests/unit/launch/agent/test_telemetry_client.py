"""The agent's end of its node's telemetry."""

import asyncio

from echelon.launch.agent.telemetry_client import TelemetryClient
from echelon.launch.protocol.leftovers import TELEMETRY_NOTES
from echelon.run.directory import RunDir


class BrokenShell:
    def start(self, *_, **__):
        raise OSError(28, "no room")


class FakeFiles:
    async def insist(self, task):
        return task()


class FakeGuard:
    def watch(self, group):
        raise AssertionError(group)


def make_client(tmp_path):
    return TelemetryClient(
        RunDir.create(tmp_path / "runs", "train"),
        attempt=1,
        node=0,
        scratch=tmp_path,
        env={},
        shell=BrokenShell(),
        guard=FakeGuard(),
        files=FakeFiles(),
    )


def test_what_it_says_is_read_line_by_line(tmp_path):
    meter = make_client(tmp_path)
    assert meter.read_notes() == []
    said = tmp_path / TELEMETRY_NOTES
    said.write_text("one\ntwo\nthr")
    assert meter.read_notes() == ["one", "two"]
    assert meter.read_notes() == []
    said.write_text("one\ntwo\nthree\n")
    assert meter.read_notes() == ["three"]


def test_one_that_cannot_be_started_costs_nothing(tmp_path):
    meter = make_client(tmp_path)
    asyncio.run(meter.start())
    meter.collected(77)
    meter.close()
