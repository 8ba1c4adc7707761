"""How an attempt begins: whether there is anything to do, and what its controller is given."""

import asyncio
import contextlib
import json
import os
import signal
import threading
from pathlib import Path

from echelon.core.atomic_file import write_atomic
from echelon.core.proc import die_with
from echelon.core.shell import LocalShell
from echelon.core.slurm import Slurm, scrub
from echelon.launch.backends.allocation import choose_allocation
from echelon.launch.backends.base import Allocation, Starter
from echelon.launch.backends.ray.backend import RayAllocation, RayStarter
from echelon.launch.backends.starting import choose_starter
from echelon.launch.controller.controller import Controller
from echelon.launch.controller.notify import LIMIT_S, Notifier
from echelon.launch.controller.standby import find_exhaustion, find_objection
from echelon.launch.controller.succession import choose_succession
from echelon.launch.protocol.rank_environment import ENVIRON, HERE, ON_RAY, SCRIPT, TIED, job_in
from echelon.run.attempts import (
    SKIPPED,
    begin_attempt,
    give_back,
    is_given_back,
    record_own_job,
)
from echelon.run.directory import RunDir
from echelon.run.history import read_history
from echelon.run.journal import write_error
from echelon.run.request import read_spec
from echelon.spec.job_spec import JobSpec


def main(arguments: list[str]) -> int:
    """Carry out an attempt of a run: `controller RUN ATTEMPT REQUEST`.

    The attempt is the next one when it is empty; REQUEST is the digest of the request.
    """
    path, number, digest = arguments
    run = RunDir.open(Path(path).absolute())
    request = read_spec(run, digest)
    environ = dict(os.environ)
    original, script = _read_variables(environ), _read_pipe(environ.pop(SCRIPT, ""))
    if command := environ.pop(TIED, ""):
        die_with(int(command), signal.SIGHUP)
    if ON_RAY in environ:
        environ = scrub(environ)  # Ray itself may be in a job of Slurm's: not ours
    job_id = job_in(environ)
    owns_job = bool(job_id) and HERE not in environ
    # Of one job, too: a slurmctld that has forgotten that it started a job starts it again.
    owner = f"{job_id or 'none'} {os.uname().nodename} {os.getpid()}"
    if owns_job and is_given_back(run, job_id):
        write_error(f"{run.run_id}: nothing to do for job {job_id}: it was withdrawn")
        return 0
    attempt, shell = begin_attempt(run, number, owner), LocalShell()
    notifier = Notifier(request.notify, run=run, shell=shell, environ=environ)
    if owns_job:
        own = record_own_job(run, attempt, job_id)
        objection = find_objection(run, own, Slurm(shell, environ)) or find_exhaustion(
            run, own, read_history(run, attempt), restarts=request.restarts
        )
        if objection:
            write_error(f"{run.run_id}: nothing to do for job {job_id}: {objection.why}")
            if objection.state:
                notifier.owe(attempt, objection.state, objection.why)
            write_atomic(run.outcome(attempt), json.dumps({"state": SKIPPED, "exit_code": 0}))
            _send_owed(run, notifier)
            if own.submitted:  # else whoever submitted us is yet to write into the folder
                with contextlib.suppress(OSError):
                    give_back(run, own)
            return 0
    # What a controller before us was killed over; beside the start, which does not wait for it.
    sending = threading.Thread(target=_send_owed, args=(run, notifier), daemon=True)
    sending.start()

    async def carry() -> int:
        starter, allocation = _choose_place(run, attempt, request, shell, environ)
        controller = Controller(
            run=run,
            attempt=attempt,
            request=request,
            digest=digest,
            starter=starter,
            allocation=allocation,
            succession=choose_succession(
                request.hand_over,
                run,
                shell,
                environ,
                original,
                script=script,
                owns_job=owns_job,
                mail=bool(request.mail),
            ),
            notifier=notifier,
            environ=environ,
            say=write_error,
        )
        return await controller.run()

    code = asyncio.run(carry())
    sending.join(LIMIT_S)
    return code


def _send_owed(run: RunDir, notifier: Notifier) -> None:
    for wrong in notifier.send_owed():
        write_error(f"{run.run_id}: the command of --notify: {wrong}")


def _choose_place(
    run: RunDir,
    attempt: int,
    request: JobSpec,
    shell: LocalShell,
    environ: dict[str, str],
) -> tuple[Starter, Allocation]:
    if ON_RAY in environ:
        starter = RayStarter(shell, environ, run=run, attempt=attempt, request=request)
        return starter, RayAllocation(run.attempt(attempt))
    starting = choose_starter(shell, environ, nodes=request.nodes.high)
    return starting, choose_allocation(shell, environ)


def _read_variables(environ: dict[str, str]) -> dict[str, str]:
    """Return the variables with which the job's script began, which it has left in a pipe."""
    pairs = [pair.partition(b"=") for pair in _read_pipe(environ.pop(ENVIRON, "")).split(b"\0")]
    found = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs if name}
    return found or dict(environ)


def _read_pipe(number: str) -> bytes:
    """Return what the job's script has left in a pipe; nothing where there is none."""
    try:
        with os.fdopen(int(number), "rb") as pipe:
            return pipe.read()
    except (OSError, ValueError):
        return b""
