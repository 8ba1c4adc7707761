"""A run's preflight: its controller has the nodes examined, and does without those that fail.

A node that fails is treated as one that fails its own check: told of, remembered, left out.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from echelon.core.shell import LocalShell, Shell
from echelon.launch.crew import Crew
from echelon.launch.doctor.asking import Questioner, run_program
from echelon.launch.journal import Journal
from echelon.launch.messages import Hello
from echelon.launch.sampling import tail

_LAUNCHER = Path(__file__).resolve().parents[2]
LIMIT_S = 600.0
"""After so long a run does without it."""


async def fly(
    crew: Crew,
    journal: Journal,
    *,
    hosts: Sequence[str],
    environ: Mapping[str, str],
    shell: Shell | None = None,
) -> None:
    """Examine the nodes of a job, and have the crew reject those that are not fit.

    Raises:
        StopError: the run is to stop.
    """
    crew.hear_signals()
    run, attempt = journal.run, journal.attempt
    argv = [sys.executable, str(_LAUNCHER), "doctor", str(run.path), str(attempt)]
    log = run.logs / f"preflight-{attempt}.log"
    with contextlib.suppress(FileNotFoundError):
        run.preflight(attempt).unlink()
    work = run_program(shell or LocalShell(), argv, env=environ, log=log, limit_s=LIMIT_S)
    await Questioner(crew).attend([asyncio.get_running_loop().create_task(work)])
    try:
        record = json.loads(run.preflight(attempt).read_text())
    except (OSError, ValueError):
        said = tail(log).strip().splitlines()
        journal.report(f"there was no preflight: {said[-1] if said else 'it said nothing'}")
        return
    findings = record["findings"]
    journal.note("preflight", seconds=record["seconds"], findings=findings)
    for one in findings:
        if not one["node"] or one["severity"] != "error":
            about = f"{one['node']}: " if one["node"] else ""
            journal.report(f"preflight: {about}{one['message']}")
    for node, hello in find_unfit(findings, hosts).items():
        assert node == hello.node
        crew.reject(hello)


def find_unfit(findings: Sequence[Mapping[str, Any]], hosts: Sequence[str]) -> dict[int, Hello]:
    """Return the nodes that are not to be used, with the first of their faults. Pure."""
    found: dict[int, Hello] = {}
    for one in findings:
        if one["severity"] != "error" or one["node"] not in hosts:
            continue
        node = list(hosts).index(one["node"])
        fault = f"preflight, {one['check']}: {one['message']}"
        found.setdefault(
            node, Hello(node=node, name=one["node"], host="", addresses=[], fault=fault)
        )
    return found
