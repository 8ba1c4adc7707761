"""`broker SWEEP ATTEMPT REQUEST`: runs the tasks of a sweep side by side in one job.

The tasks of an attempt are those that its `tasks.json` lists, or, if it continues an earlier job,
those that are left of its list. A task is left until an attempt that began later has an outcome
that nothing continues.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from echelon.core.records import find_record, to_count
from echelon.core.shell import LocalShell
from echelon.core.waiting import wait_until
from echelon.launch.agent.node_check import check_limit_s
from echelon.launch.allocation.broker import Broker, Source, Work
from echelon.launch.allocation.slots import Ask
from echelon.launch.backends.base import Backend
from echelon.launch.controller.agent_recovery import AgentRecovery
from echelon.launch.controller.entrypoint import Entered, enter_attempt
from echelon.launch.controller.finalize import Finalizer
from echelon.launch.controller.membership import Membership
from echelon.launch.pool.agent_pool import AgentPool
from echelon.launch.roles import role_command
from echelon.run.attempts import Outcome, attempts, claim_step, outcome
from echelon.run.directory import RunDir
from echelon.run.history import read_history
from echelon.run.journal import Journal, write_error
from echelon.run.node_record import NodeRecord, cluster_name, record_path
from echelon.run.request import read_spec, read_tasks_digest
from echelon.run.sweep import SweepDir, make_run, read_table
from echelon.spec.job_spec import RESTARTS
from echelon.spec.readers import NodeCount

_AHEAD = 4
"""Tasks whose run directories exist before they are started."""
_MOST_LOST = 3
"""How often a task may lose its controller in one job."""
_RECORDED_S = 10.0
"""How long the command that started us may take to record our job."""


class Tasks(Source):
    """The tasks of a sweep that are left."""

    def __init__(
        self, sweep: SweepDir, left: list[int], *, digest: str, job_id: str, ask: Ask, cwd: str
    ) -> None:
        """Prepare them.

        Args:
            sweep: the sweep.
            left: the tasks, in order.
            digest: SHA-256 of the sweep's request.
            job_id: our job.
            ask: what each task needs.
            cwd: their working directory.
        """
        self._sweep, self._digest, self._job_id = sweep, digest, job_id
        self._ask, self._cwd = ask, cwd
        self._left = deque(left)
        """Tasks without a run directory that was checked."""
        self._ready: deque[tuple[int, Work]] = deque()
        self._running: dict[Path, int] = {}
        self._lost: Counter[int] = Counter()
        self._states: Counter[str] = Counter()
        self._more = asyncio.Event()
        self._preparing: asyncio.Task[None] | None = None

    def prepare(self, ready: Callable[[], None]) -> None:
        self._preparing = asyncio.get_running_loop().create_task(self._prepare(ready))

    async def _prepare(self, ready: Callable[[], None]) -> None:
        while True:
            while self._left and len(self._ready) < _AHEAD:
                index = self._left[0]
                try:
                    work = await asyncio.to_thread(self._claim, index)
                except Exception as error:  # noqa: BLE001  it must not keep the others from starting
                    self._states["FAILED"] += 1
                    write_error(f"{self._sweep.run_id(index)} cannot be created: {error}")
                else:
                    if work:
                        self._ready.append((index, work))
                    else:
                        self._states["CANCELLED"] += 1
                self._left.popleft()
                ready()
            self._more.clear()
            await self._more.wait()

    def _claim(self, index: int) -> Work | None:
        """Create the run of a task and claim its next attempt, unless it was cancelled."""
        if self._sweep.cancelled(index).exists():
            return None
        run, digest = make_run(self._sweep, index, self._digest)
        attempt = claim_step(run, job_id=self._job_id, within=self._sweep.sweep_id)
        return Work(run=run, attempt=attempt, digest=digest, ask=self._ask, cwd=self._cwd)

    def first(self) -> Work | None:
        return self._ready[0][1] if self._ready else None

    def start(self, work: Work) -> None:
        index, first = self._ready.popleft()
        assert first is work
        self._running[work.run.path] = index
        self._more.set()

    def is_empty(self) -> bool:
        return not self._left and not self._ready

    def ended(self, work: Work, how: Outcome | None) -> None:
        index = self._running.pop(work.run.path)
        if how is None:
            self._lost[index] += 1
        if how and not how.next:
            self._states[how.state] += 1
        elif how is None and self._lost[index] > _MOST_LOST:
            self._states["FAILED"] += 1
        else:
            self._left.append(index)
            self._more.set()

    def summary(self) -> tuple[str, str]:
        ended = self._states.total()
        wrong = ended - self._states["COMPLETED"]
        states = ", ".join(f"{count} {state}" for state, count in self._states.most_common())
        return f"{wrong} of {ended} tasks did not complete: {states}" if wrong else "", (
            "tasks" if ended else ""
        )


def find_left(sweep: SweepDir, tasks: Collection[int], attempt: int) -> list[int]:
    """Return which tasks an attempt has to carry out, in order.

    Args:
        sweep: the sweep.
        tasks: all of its tasks.
        attempt: the attempt of the sweep.
    """
    asked = dict.fromkeys(tasks, 0)
    for number in sweep.files.attempt_numbers():
        record = find_record(sweep.asked(number)).get("tasks") if number <= attempt else None
        if isinstance(record, dict):
            counts = {index: to_count(record.get(str(index))) for index in tasks}
            asked = {index: before for index, before in counts.items() if before is not None}
    return [index for index, before in asked.items() if _is_left(sweep, index, before)]


def _is_left(sweep: SweepDir, index: int, before: int) -> bool:
    run = sweep.run(index)
    known = [one for one in attempts(run) if one.number > before]
    if not known:
        return True
    last = known[-1]
    how = outcome(run, last.number)
    # Without an outcome, its broker was killed. An attempt with a job of its own is not ours.
    return bool(how.next) if how else last.within == sweep.sweep_id


# --- the program ------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    """Carry out an attempt of a sweep's job; REQUEST is the digest of the sweep's request."""
    path, asked, digest = arguments
    sweep = SweepDir.open(Path(path).absolute())
    spec = read_spec(sweep.files, digest)
    table = read_table(sweep, read_tasks_digest(sweep.files, digest))
    hand_over = "always" if spec.hand_over == "auto" else spec.hand_over
    nodes = NodeCount(spec.nodes.low, table.pack)
    request = replace(spec, nodes=nodes, hand_over=hand_over)
    restarts = RESTARTS if spec.restarts is None else spec.restarts
    entered = enter_attempt(sweep.files, request, asked, restarts=restarts)
    if isinstance(entered, int):
        return entered
    ask = Ask(
        nodes=spec.nodes.high,
        gpus=spec.gpus,
        cpus=spec.procs_per_node * max(1, spec.cpus_per_task),
        sharing=table.per_slot,
    )
    number = entered.context.number
    tasks = Tasks(
        sweep,
        find_left(sweep, table.tasks, number),
        digest=digest,
        job_id=_own_job(sweep.files, number),
        ask=ask,
        cwd=spec.chdir,
    )
    return entered.carry_out(lambda backend: build_broker(entered, backend, tasks, digest=digest))


def _own_job(sweep: RunDir, attempt: int) -> str:
    """Return our job, which the command that started us may be about to record."""

    def find() -> str:
        known = {one.number: one.job_id for one in attempts(sweep)}
        return known.get(attempt, "")

    return find() if wait_until(lambda: bool(find()), timeout_s=_RECORDED_S) else ""


def build_broker(entered: Entered, backend: Backend, source: Source, *, digest: str) -> Broker:
    """Return the broker of an attempt, with everything that it works with."""
    context, environ = entered.context, entered.environ
    run, request, starter = context.run, context.request, backend.starter
    journal = Journal(run, context.number, write_error)
    record = NodeRecord(
        record_path(cluster_name(environ), environ), run.run_id, keep_s=request.forgive_after_s
    )
    pool = AgentPool(starter, journal.note, journal.report)
    recovery = AgentRecovery(
        pool,
        starter,
        backend.allocation,
        journal=journal,
        count_slots=lambda _departed: 0,
        check_s=check_limit_s(request),
    )
    return Broker(
        source=source,
        keeper_command=role_command("keeper", run.path, context.number, digest),
        environ=environ,
        shell=LocalShell(),
        backend=backend,
        journal=journal,
        pool=pool,
        recovery=recovery,
        membership=Membership(
            pool, starter, recovery, request=request, journal=journal, blame=record.blame
        ),
        finalizer=Finalizer(
            request=request,
            history=read_history(run, context.number),
            backend=backend,
            journal=journal,
            notifier=entered.notifier,
            environ=environ,
        ),
    )
