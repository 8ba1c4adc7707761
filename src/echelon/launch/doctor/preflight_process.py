"""`doctor RUN ATTEMPT SCRATCH`: the short examination of a job's nodes, before a run's first ranks.

It runs in a process of its own, so that no failure in it can affect the run. It writes its findings
to the attempt's directory and removes its own directories; if it was killed, the process that
started it removes them.
"""

import asyncio
import json
import os
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

from echelon.core.atomic_file import write_atomic
from echelon.core.shell import LocalShell
from echelon.launch.backends.choosing import choose_backend
from echelon.launch.backends.stop import StopError
from echelon.launch.doctor.examination import Examination
from echelon.launch.doctor.findings import judge
from echelon.launch.doctor.first_look import DoctorPaths
from echelon.launch.roles import role_command
from echelon.run.directory import RunDir
from echelon.run.journal import write_error


def main(arguments: list[str]) -> int:
    """Examine the nodes of the current allocation."""
    run, attempt = RunDir.open(Path(arguments[0])), int(arguments[1])
    environ, shell = dict(os.environ), LocalShell()
    folder, scratch = run.doctor(attempt), Path(arguments[2])
    folder.mkdir(mode=0o700, exist_ok=True)
    paths = DoctorPaths(
        probe=role_command("doctor-probe"),
        folder=folder,
        python=sys.executable,
        scratch=scratch,
    )
    try:
        examined = asyncio.run(
            Examination(
                shell=shell,
                starter=choose_backend(shell, environ).starter,
                environ=environ,
                paths=paths,
                short=True,
                tell=write_error,
            ).run()
        )
    except StopError as error:
        return error.stop.exit_code
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
    findings = judge(examined, folder=str(folder), python=sys.executable)
    record = {"seconds": examined.seconds, "findings": [asdict(one) for one in findings]}
    write_atomic(run.preflight(attempt), f"{json.dumps(record, indent=1)}\n")
    return 0
