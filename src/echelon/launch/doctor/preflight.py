"""A run's preflight: the controller has the nodes examined and excludes those that fail.

A node that fails is treated like one that fails its start check: reported, recorded, excluded.
"""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from echelon.core.records import parse_json, read_bytes
from echelon.core.shell import LocalShell, Shell
from echelon.launch.doctor.probe_client import ProbeClient
from echelon.launch.doctor.results import Finding
from echelon.launch.doctor.timed_program import GRACE_S, run_program
from echelon.launch.pool.agent_pool import AgentPool
from echelon.launch.protocol.messages import Hello
from echelon.launch.roles import role_command
from echelon.run.background_writer import BackgroundWriter
from echelon.run.events import NodesExamined
from echelon.run.journal import Journal

LIMIT_S = 600.0
"""Longest duration of a preflight."""
SHARE = 0.1
"""Largest share of the job's remaining time that it may take."""

LONGER_S = 5.0
"""Grace period of the doctor beyond that of the programs that it ends itself."""
_SWEEP_S = 2.0
_LONGEST = 200
"""Characters of a finding in the run's messages; preflight.json has all of it."""


async def fly(
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
        shell: starts the doctor.

    Raises:
        StopError: a stop of the run was requested.
    """
    pool.install_signal_handlers()
    run, attempt = journal.run, journal.attempt
    scratch = Path(tempfile.mkdtemp(prefix="echelon-doctor-"))
    argv = role_command("doctor", run.path, attempt, scratch)
    log = run.logs / f"preflight-{attempt}.log"
    with contextlib.suppress(FileNotFoundError):
        run.preflight(attempt).unlink()
    limit_s = limit_of(left_s)
    work = run_program(
        shell or LocalShell(),
        argv,
        env=environ,
        log=log,
        limit_s=limit_s,
        grace_s=GRACE_S + LONGER_S,
    )
    try:
        task = asyncio.get_running_loop().create_task(work)
        await ProbeClient(pool).attend([task])
    finally:
        _sweep(run.doctor(attempt), scratch)
    try:
        seconds, findings = parse_record(read_bytes(run.preflight(attempt)).decode())
    except (OSError, ValueError):
        code, said = task.result()
        why = _tell_cut(limit_s, left_s) if code is None else _last_line(said)
        journal.report(f"preflight skipped: {why}")
        return
    journal.note(NodesExamined(seconds=seconds, findings=findings))
    for one in findings:
        if not one["node"] or one["severity"] != "error":
            about = f"{one['node']}: " if one["node"] else ""
            journal.report(f"preflight: {about}{one['message'][:_LONGEST]}")
    for node, hello in find_unfit(findings, hosts).items():
        assert node == hello.node
        pool.reject(hello)


def limit_of(left_s: float | None) -> float:
    """Return how long a preflight may take: a small share of the job's remaining time. Pure."""
    return LIMIT_S if left_s is None else min(LIMIT_S, SHARE * left_s)


def _tell_cut(limit_s: float, left_s: float | None) -> str:
    if left_s is None or limit_s >= LIMIT_S:
        return f"it did not finish within {limit_s:.0f} s"
    return (
        f"it did not finish within {limit_s:.0f} s, a tenth of the job's remaining {left_s:.0f} s"
    )


def _last_line(said: str) -> str:
    lines = said.strip().splitlines()
    return lines[-1] if lines else "the doctor failed without output"


def _sweep(*folders: Path) -> None:
    """Remove directories left by a killed doctor, without waiting for storage that hangs."""
    sweeper = BackgroundWriter("sweeper")
    for folder in folders:
        sweeper.post(partial(shutil.rmtree, folder, ignore_errors=True))
    sweeper.close(_SWEEP_S)


def parse_record(text: str) -> tuple[float, list[dict[str, str]]]:
    """Parse preflight.json: the duration and the findings. Pure.

    Raises:
        ValueError: it is incomplete or malformed.
    """
    match parse_json(text):
        case {"seconds": float() | int() as seconds, "findings": list() as findings}:
            names = [one.name for one in fields(Finding)]
            try:
                return seconds, [{name: str(one[name]) for name in names} for one in findings]
            except (KeyError, TypeError, IndexError) as error:
                raise ValueError("a finding lacks a field") from error
    raise ValueError("not a preflight record")


def find_unfit(findings: Sequence[Mapping[str, Any]], hosts: Sequence[str]) -> dict[int, Hello]:
    """Return the nodes with errors, each with its first one. Pure."""
    found: dict[int, Hello] = {}
    for one in findings:
        if one["severity"] != "error" or one["node"] not in hosts:
            continue
        node = list(hosts).index(one["node"])
        fault = f"preflight, {one['check']}: {one['message'][:_LONGEST]}"
        found.setdefault(
            node, Hello(node=node, name=one["node"], host="", addresses=[], fault=fault)
        )
    return found
