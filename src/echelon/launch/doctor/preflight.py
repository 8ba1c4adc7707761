"""A run's preflight: the controller has the nodes examined and excludes those that fail.

A node that fails is treated like one that fails its start check: reported, recorded, excluded. The
examination runs in a process of its own (`main`), so that no failure in it can affect the run.
"""

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from echelon.core.atomic_file import write_atomic
from echelon.core.codec import decode
from echelon.core.records import read_record, render_json
from echelon.core.shell import LocalShell, Shell
from echelon.launch.backends.stop import StopError
from echelon.launch.doctor.probe_client import ProbeClient
from echelon.launch.doctor.results import Finding
from echelon.launch.doctor.timed_program import GRACE_S, run_program
from echelon.launch.pool.agent_pool import AgentPool
from echelon.launch.protocol.messages import Hello
from echelon.launch.roles import role_command
from echelon.run.background_writer import BackgroundWriter
from echelon.run.directory import RunDir
from echelon.run.events import NodesExamined
from echelon.run.journal import Journal, write_error

LIMIT_S = 600.0
"""Longest duration of a preflight."""
SHARE = 0.1
"""Largest share of the job's remaining time that it may take."""

LONGER_S = 5.0
"""Grace period of the examination beyond that of the programs that it ends itself."""
_REMOVE_S = 2.0
_LONGEST = 200
"""Characters of a finding in the run's messages; preflight.json has all of it."""


async def run_preflight(
    pool: AgentPool,
    journal: Journal,
    hosts: Sequence[str],
    *,
    environ: Mapping[str, str],
    left_s: float | None,
    shell: Shell | None = None,
) -> None:
    """Examine the nodes of a job, and have the pool reject the unfit ones.

    Args:
        pool: the agents of the job's nodes.
        journal: where findings are reported and recorded.
        hosts: the nodes.
        environ: the job's environment variables.
        left_s: the job's remaining time; None if it has no limit.
        shell: starts the examination.

    Raises:
        StopError: a stop of the run was requested.
    """
    pool.install_signal_handlers()
    run, attempt = journal.run, journal.attempt
    scratch = Path(tempfile.mkdtemp(prefix="echelon-doctor-"))
    with contextlib.suppress(FileNotFoundError):
        run.preflight(attempt).unlink()
    limit_s = limit_of(left_s)
    work = run_program(
        shell or LocalShell(),
        role_command("doctor", run.path, attempt, scratch),
        env=environ,
        log=run.logs / f"preflight-{attempt}.log",
        limit_s=limit_s,
        grace_s=GRACE_S + LONGER_S,
    )
    try:
        task = asyncio.get_running_loop().create_task(work)
        await ProbeClient(pool).attend([task])
    finally:
        _remove(run.doctor(attempt), scratch)
    try:
        examined = decode(NodesExamined, read_record(run.preflight(attempt)))
    except (OSError, ValueError):
        code, output = task.result()
        lines = output.strip().splitlines() or ["the doctor failed without output"]
        why = _describe_limit(limit_s, left_s) if code is None else lines[-1]
        journal.report(f"preflight skipped: {why}")
        return
    journal.note(examined)
    findings = [decode(Finding, one) for one in examined.findings]
    for one in findings:
        if not one.node or one.severity != "error":
            about = f"{one.node}: " if one.node else ""
            journal.report(f"preflight: {about}{one.message[:_LONGEST]}")
    for hello in find_unfit(findings, hosts):
        pool.reject(hello)


def limit_of(left_s: float | None) -> float:
    """Return how long a preflight may take: a small share of the job's remaining time. Pure."""
    return LIMIT_S if left_s is None else min(LIMIT_S, SHARE * left_s)


def _describe_limit(limit_s: float, left_s: float | None) -> str:
    why = f"it did not finish within {limit_s:.0f} s"
    if left_s is None or limit_s >= LIMIT_S:
        return why
    return f"{why}, a tenth of the job's remaining {left_s:.0f} s"


def _remove(*folders: Path) -> None:
    """Remove what an examination has left, without waiting for storage that hangs."""
    remover = BackgroundWriter("remover")
    for folder in folders:
        remover.post(partial(shutil.rmtree, folder, ignore_errors=True))
    remover.close(_REMOVE_S)


def find_unfit(findings: Sequence[Finding], hosts: Sequence[str]) -> list[Hello]:
    """Return the nodes with errors, each with its first one. Pure."""
    faults: dict[str, str] = {}
    for one in findings:
        if one.severity == "error" and one.node in hosts:
            faults.setdefault(one.node, f"preflight, {one.check}: {one.message[:_LONGEST]}")
    return [
        Hello(node=list(hosts).index(name), name=name, host="", addresses=[], fault=fault)
        for name, fault in faults.items()
    ]


def main(arguments: list[str]) -> int:
    """Run `doctor RUN ATTEMPT SCRATCH`: examine the nodes of the current allocation."""
    from echelon.launch.backends.choosing import choose_backend  # noqa: PLC0415
    from echelon.launch.doctor.examination import Examination  # noqa: PLC0415
    from echelon.launch.doctor.first_look import Setup  # noqa: PLC0415
    from echelon.launch.doctor.report import to_record  # noqa: PLC0415

    run, attempt, scratch = RunDir.open(Path(arguments[0])), int(arguments[1]), Path(arguments[2])
    environ, shell, folder = dict(os.environ), LocalShell(), run.doctor(attempt)
    folder.mkdir(mode=0o700, exist_ok=True)
    setup = Setup(
        shell=shell,
        starter=choose_backend(shell, environ).starter,
        environ=environ,
        probe=role_command("doctor-probe"),
        folder=folder,
        python=sys.executable,
        scratch=scratch,
        tell=write_error,
        short=True,
    )
    try:
        examined = asyncio.run(Examination(setup).run())
    except StopError as error:
        return error.stop.exit_code
    write_atomic(run.preflight(attempt), render_json(to_record(examined), indent=1))
    return 0
