"""The program of an attempt: checks whether there is anything to do, and builds the controller."""

import asyncio
import contextlib
import json
import logging
import os
import platform
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from echelon import _version
from echelon.core.atomic_file import write_atomic
from echelon.core.frozen import frozen
from echelon.core.proc import die_with
from echelon.core.shell import LocalShell
from echelon.core.slurm import Slurm, scrub
from echelon.launch.agent.node_check import check_limit_s
from echelon.launch.backends.base import AttemptContext, Backend
from echelon.launch.backends.choosing import choose_backend
from echelon.launch.controller.agent_recovery import AgentRecovery
from echelon.launch.controller.controller import Controller
from echelon.launch.controller.finalize import Finalizer
from echelon.launch.controller.generation import Generation
from echelon.launch.controller.membership import Membership
from echelon.launch.controller.notify import LIMIT_S, Notifier
from echelon.launch.controller.rendezvous import Rendezvous
from echelon.launch.controller.rendezvous_watch import RendezvousWatch
from echelon.launch.controller.slots import Slots
from echelon.launch.controller.standby import Objection, find_exhaustion, find_objection
from echelon.launch.pool.agent_pool import AgentPool
from echelon.launch.program import Program, find_program
from echelon.launch.program_text import PACKAGE, read_imports
from echelon.launch.protocol.rank_environment import (
    ENVIRON,
    HERE,
    ON_RAY,
    SCRIPT,
    STEP,
    TIED,
    job_in,
)
from echelon.run.attempts import (
    SKIPPED,
    Attempt,
    attempts,
    begin_attempt,
    give_back,
    is_given_back,
    record_own_job,
)
from echelon.run.code import find_copy, verify_code
from echelon.run.debug_log import DebugLog
from echelon.run.directory import RunDir
from echelon.run.history import newest_checkpoint, read_history
from echelon.run.journal import Journal, write_error
from echelon.run.node_record import NodeRecord, cluster_name, record_path
from echelon.run.request import read_code, read_spec
from echelon.run.verdict import Failure, judge
from echelon.spec.job_spec import RESTARTS, JobSpec

_log = logging.getLogger(__name__)


def main(arguments: list[str]) -> int:
    """Carry out an attempt of a run: `controller RUN ATTEMPT REQUEST`.

    If ATTEMPT is empty, it is the next one. REQUEST is the digest of the request.
    """
    path, number, digest = arguments
    run = RunDir.open(Path(path).absolute())
    request, code = read_spec(run, digest), read_code(run, digest)
    if code is not None:
        verify_code(run, code)
    program = find_program(request, find_copy(run, code, request.chdir))
    imports = read_imports(program)
    if STEP in os.environ and request.hand_over == "auto":
        # The time limit is the allocation's: a step that began late had little of it.
        request = replace(request, hand_over="always")
    entered = enter_attempt(run, request, number, restarts=_count_restarts(run, request, imports))
    if isinstance(entered, int):
        return entered

    def build(backend: Backend) -> Controller:
        return build_controller(entered, backend, digest=digest, program=program, imports=imports)

    return entered.carry_out(build)


class Worker(Protocol):
    """What carries out an attempt: the controller of a run, or the broker of an allocation."""

    async def run(self) -> int:
        """Do so, and return the exit code of the job."""


@frozen
class Entered:
    """An attempt that this process is to carry out."""

    context: AttemptContext
    environ: Mapping[str, str]
    notifier: Notifier

    def carry_out(self, build: Callable[[Backend], Worker]) -> int:
        """Have a worker carry it out; return the exit code of the job."""
        # Notifications that an earlier one was killed over; the start does not wait for them.
        sending = threading.Thread(
            target=_send_owed, args=(self.context.run, self.notifier), daemon=True
        )
        sending.start()

        async def run() -> int:
            backend = choose_backend(LocalShell(), self.environ, self.context)
            return await build(backend).run()

        run_dir, number = self.context.run, self.context.number
        log = run_dir.debug_logs(number) / "controller.log"
        with DebugLog(log, self.context.request.log_level):
            _log.info(
                "attempt %d of %s: Slurm job %s, pid %d on %s, Echelon %s, Python %s",
                *(number, run_dir.run_id, job_in(self.environ) or "none"),
                *(os.getpid(), os.uname().nodename),
                *(_version.__version__, platform.python_version()),
            )
            exit_code = asyncio.run(run())
        sending.join(LIMIT_S)
        return exit_code


def enter_attempt(
    run: RunDir, request: JobSpec, number: str, *, restarts: int | None
) -> Entered | int:
    """Become the owner of an attempt; return the exit code if there is nothing to do.

    Args:
        run: the run, or the sweep whose tasks share an allocation.
        request: its request.
        number: the attempt; empty for the next one.
        restarts: how often it may lose the process that carries it out.
    """
    # Blocked until it can be handled: a stop may be requested once the attempt is visible.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    environ = dict(os.environ)
    original, script = _read_variables(environ), _read_pipe(environ.pop(SCRIPT, ""))
    if command := environ.pop(TIED, ""):
        die_with(int(command), signal.SIGHUP)
    if ON_RAY in environ:
        environ = scrub(environ)  # Ray itself may run in a Slurm job, which is not ours
    job_id = job_in(environ)
    owns_job = bool(job_id) and not environ.keys() & {HERE, STEP}
    # With the host and pid: a slurmctld that forgets that it started a job starts it again.
    owner = f"{job_id or 'none'} {os.uname().nodename} {os.getpid()}"
    if owns_job and is_given_back(run, job_id):
        write_error(f"{run.run_id}: nothing to do for job {job_id}: it was withdrawn")
        return 0
    attempt, shell = begin_attempt(run, number, owner), LocalShell()
    notifier = Notifier(request.notify, run=run, shell=shell, environ=environ)
    if owns_job:
        own = record_own_job(run, attempt, job_id)
        objection = find_objection(run, own, Slurm(shell, environ)) or find_exhaustion(
            run, own, read_history(run, attempt), restarts=restarts
        )
        if objection:
            return _decline(run, own, objection, notifier)
    context = AttemptContext(
        run=run,
        number=attempt,
        request=request,
        owns_job=owns_job,
        environ=original,
        script=script,
    )
    return Entered(context=context, environ=environ, notifier=notifier)


def _decline(run: RunDir, own: Attempt, objection: Objection, notifier: Notifier) -> int:
    """Record that an attempt does not start; return the exit code of its job."""
    write_error(f"{run.run_id}: nothing to do for job {own.job_id}: {objection.why}")
    if objection.state:
        notifier.owe(own.number, objection.state, objection.why)
    earlier = [one.job_id for one in attempts(run) if one.number < own.number]
    # A job that was requeued has one state in Slurm, which must not become COMPLETED.
    failed = own.job_id in earlier and objection.state == "FAILED"
    if failed:
        verdict = judge([Failure(cause="lost node", message=objection.why)])
        write_atomic(run.verdict, json.dumps(asdict(verdict), indent=1))
    ended = {"state": "FAILED", "exit_code": 1} if failed else {"state": SKIPPED, "exit_code": 0}
    write_atomic(run.outcome(own.number), json.dumps(ended))
    _send_owed(run, notifier)
    if own.submitted and not failed:  # else the submitting process has yet to write into the folder
        with contextlib.suppress(OSError):
            give_back(run, own)
    return 1 if failed else 0


def build_controller(
    entered: Entered,
    backend: Backend,
    *,
    digest: str,
    program: Program,
    imports: frozenset[str],
) -> Controller:
    """Return the controller of an attempt, with everything that it works with."""
    attempt, environ = entered.context, entered.environ
    run, request, starter = attempt.run, attempt.request, backend.starter
    journal = Journal(run, attempt.number, write_error)
    history = read_history(run, attempt.number)
    record = NodeRecord(
        record_path(cluster_name(environ), environ), run.run_id, keep_s=request.forgive_after_s
    )
    pool = AgentPool(starter, journal.note, journal.report, key=backend.key)
    slots = Slots(request, starter, pool)
    recovery = AgentRecovery(
        pool,
        starter,
        backend.allocation,
        journal=journal,
        count_slots=slots.total,
        check_s=check_limit_s(request),
    )
    membership = Membership(
        pool, starter, recovery, request=request, journal=journal, blame=record.blame
    )
    finalizer = Finalizer(
        request=request,
        history=history,
        backend=backend,
        journal=journal,
        notifier=entered.notifier,
        environ=environ,
    )
    make_generation = partial(
        Generation,
        request=request,
        journal=journal,
        pool=pool,
        rendezvous_watch=RendezvousWatch(program, imports),
        explain=finalizer.explain,
        recover=membership.poll,
        listened=history.listened,
    )
    return Controller(
        request=request,
        environ=environ,
        agent_arguments=[str(run.path), str(attempt.number), digest],
        uses_library=_uses_library(run, imports),
        backend=backend,
        journal=journal,
        history=history,
        record=record,
        pool=pool,
        slots=slots,
        recovery=recovery,
        membership=membership,
        rendezvous=Rendezvous(pool),
        make_generation=make_generation,
        finalizer=finalizer,
    )


def _count_restarts(run: RunDir, request: JobSpec, imports: frozenset[str]) -> int | None:
    """Return how often the run may lose its controller.

    A task of a sweep is short and has a directory of its own, so it may start anew.
    """
    anew = request.restarts is None and run.task.exists()
    allowed = request.allowed_restarts(uses_library=_uses_library(run, imports))
    return RESTARTS if anew else allowed


def _uses_library(run: RunDir, imports: frozenset[str]) -> bool:
    """Tell whether a script is known to use Echelon's library: by its text, or what it saved."""
    return PACKAGE in imports or newest_checkpoint(run) >= 0


def _send_owed(run: RunDir, notifier: Notifier) -> None:
    for wrong in notifier.send_owed():
        write_error(f"{run.run_id}: --notify command: {wrong}")


def _read_variables(environ: dict[str, str]) -> dict[str, str]:
    """Return the variables with which the job's script started, which it left in a pipe."""
    pairs = [pair.partition(b"=") for pair in _read_pipe(environ.pop(ENVIRON, "")).split(b"\0")]
    found = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs if name}
    return found or dict(environ)


def _read_pipe(number: str) -> bytes:
    """Return what the job's script left in a pipe; empty if there is none."""
    try:
        with os.fdopen(int(number), "rb") as pipe:
            return pipe.read()
    except (OSError, ValueError):
        return b""
