"""What a preflight makes of the findings; the run does without it when there are none."""

import asyncio
import json
import os
import signal
from dataclasses import asdict
from pathlib import Path

import pytest

from echelon.core.shell import LocalShell
from echelon.core.waiting import wait_until
from echelon.launch.backends.local import LocalStarter
from echelon.launch.backends.stop import StopError
from echelon.launch.doctor import preflight
from echelon.launch.doctor.preflight import find_unfit, limit_of, run_preflight
from echelon.launch.doctor.results import Finding
from echelon.launch.pool.agent_pool import AgentPool
from echelon.run.directory import RunDir
from echelon.run.journal import Journal

HOSTS = ["node1", "node2", "node3"]


def finding(node, severity="error", message="it is slow"):
    return Finding(severity=severity, node=node, check="c", message=message, fix="f")


def test_a_node_is_unfit_because_of_its_first_error():
    found = find_unfit(
        [
            finding("node2"),
            finding("node2", message="and old"),
            finding("node3", "warning"),
            finding(""),
            finding("elsewhere"),
        ],
        HOSTS,
    )
    assert [(hello.node, hello.name, hello.fault) for hello in found] == [
        (1, "node2", "preflight, c: it is slow")
    ]


def test_a_long_preflight_fault_is_shortened():
    (hello,) = find_unfit([finding("node2", message="no " * 300)], HOSTS)
    assert len(hello.fault) < 250


class Doctor(LocalShell):
    """Runs a line of sh in the doctor's place."""

    def __init__(self, line):
        self.line = line

    def start(self, argv, *, log, env=None, keep=()):
        return LocalShell.start(
            self, ["sh", "-c", self.line, *argv[-4:]], log=log, env=env, keep=keep
        )


@pytest.fixture
def run(tmp_path):
    made = RunDir.create(tmp_path, "a")
    made.attempt(1).mkdir()
    return made


def prepare(run, line, left_s=None):
    said = []
    journal = Journal(run, 1, said.append)
    pool = AgentPool(LocalStarter(None, 3), journal.note, journal.report)

    async def scenario():
        shell, environ = Doctor(line), dict(os.environ)
        await run_preflight(pool, journal, HOSTS, environ=environ, left_s=left_s, shell=shell)

    return pool, journal, scenario, said


def events(run):
    return [json.loads(line) for line in run.events_of("controller-1").read_text().splitlines()]


def test_a_preflight_rejects_nodes_with_errors_and_reports_warnings(run, tmp_path):
    findings = [asdict(finding("node2")), asdict(finding("node3", "warning", "odd"))]
    record = {"seconds": 1.5, "findings": findings}
    (tmp_path / "found").write_text(json.dumps(record))
    line = f'test "$0" = doctor && cp {tmp_path}/found {run.preflight(1)}'
    pool, journal, scenario, said = prepare(run, line)
    asyncio.run(scenario())
    journal.close()
    assert list(pool.unfit) == [1]
    assert said == ["preflight: node3: odd"]
    assert [one["kind"] for one in events(run)] == ["preflight", "bad node"]


def test_a_preflight_that_fails_is_skipped(run):
    pool, journal, scenario, said = prepare(run, "echo no such thing; exit 1")
    asyncio.run(scenario())
    journal.close()
    assert pool.unfit == {}
    assert said == ["preflight skipped: no such thing"]


@pytest.mark.parametrize(
    ("left_s", "limit_s"),
    [(None, 600.0), (86400.0, 600.0), (6000.0, 600.0), (600.0, 60.0), (0.0, 0.0)],
)
def test_a_preflight_may_take_a_tenth_of_the_remaining_time(left_s, limit_s):
    assert limit_of(left_s) == pytest.approx(limit_s)


def test_a_preflight_that_reaches_its_limit_is_skipped(run):
    pool, journal, scenario, said = prepare(
        run, "echo importing torch; exec sleep 600", left_s=10.0
    )
    asyncio.run(scenario())
    journal.close()
    assert pool.unfit == {}
    cut = "it did not finish within 1 s, a tenth of the job's remaining 10 s"
    assert said == [f"preflight skipped: {cut}"]


def test_a_preflight_that_ignores_sigterm_is_killed_with_its_descendants(
    run, tmp_path, monkeypatch
):
    """Its sruns are in sessions of their own: nobody else would know of them."""
    monkeypatch.setattr(preflight, "GRACE_S", 0.1)
    monkeypatch.setattr(preflight, "LONGER_S", 0.1)
    monkeypatch.setattr(preflight, "LIMIT_S", 1.0)
    line = f"""\
trap '' TERM; mkdir {run.doctor(1)}; echo "$3" > {tmp_path}/scratch
setsid sh -c 'echo $$ > {tmp_path}/srun; exec sleep 600' &
while :; do sleep 0.1; done"""
    _, journal, scenario, said = prepare(run, line)
    asyncio.run(scenario())
    journal.close()
    srun = Path("/proc", (tmp_path / "srun").read_text().strip())
    assert wait_until(lambda: not is_alive(srun), timeout_s=5)
    assert not run.doctor(1).exists()
    assert not Path((tmp_path / "scratch").read_text().strip()).exists()
    assert said[0].startswith("preflight skipped")


def is_alive(process):
    """Tell whether one runs: whoever inherits the dead may take a while to collect them."""
    try:
        return ") Z " not in (process / "stat").read_text()
    except OSError:
        return False


def test_stopping_the_run_stops_its_preflight(run, tmp_path):
    line = f"echo $$ > {tmp_path}/pid; mv {tmp_path}/pid {tmp_path}/began; exec sleep 600"
    _, journal, scenario, _ = prepare(run, line)

    async def stopped():
        running = asyncio.ensure_future(scenario())
        began = (tmp_path / "began").exists
        assert await asyncio.to_thread(wait_until, began, timeout_s=20)
        os.kill(os.getpid(), signal.SIGTERM)
        await running

    with pytest.raises(StopError, match="SIGTERM"):
        asyncio.run(stopped())
    journal.close()
    assert not Path("/proc", (tmp_path / "began").read_text().strip()).exists()
