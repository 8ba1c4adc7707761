"""The broker of an allocation: it owns the nodes, the time limit and the outcome of the job.

It starts a keeper on every node, gives the slots of the nodes to steps, and starts the controllers
of these. What happens inside a step (agents, ranks, failures, the verdict) is up to its controller.
Where steps come from is up to a `Source`.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from echelon.core.frozen import frozen
from echelon.core.shell import Shell
from echelon.core.units import counted
from echelon.launch.agent.background_tasks import BackgroundTasks
from echelon.launch.allocation.fork_client import ForkClient
from echelon.launch.allocation.keeper import NOT_STARTED
from echelon.launch.allocation.slots import Ask, Ledger, Slot
from echelon.launch.allocation.step import Step
from echelon.launch.backends.base import RESERVE_S, Backend
from echelon.launch.backends.stop import Stop, StopError
from echelon.launch.controller.agent_recovery import AgentRecovery, report_crash
from echelon.launch.controller.finalize import Finalizer, as_failure
from echelon.launch.controller.membership import Membership
from echelon.launch.pool.agent_pool import AgentPool
from echelon.launch.pool.controller_events import AgentHandle, Lost, Received
from echelon.launch.protocol.messages import (
    AgentExited,
    Departed,
    EndAgent,
    Exited,
    Hello,
    Neighbours,
    StartAgent,
)
from echelon.launch.protocol.rank_environment import job_in
from echelon.run import events
from echelon.run.attempts import Outcome, outcome
from echelon.run.directory import RunDir
from echelon.run.journal import Journal
from echelon.run.verdict import Failure, Verdict, judge

_BRIEF_S = 20.0
"""A step that lasts less is brief."""
_LAST_S = 30.0
"""How long before the end of the job no more steps are started."""


@frozen
class Work:
    """A run that is to be carried out as a step."""

    run: RunDir
    attempt: int
    digest: str
    """SHA-256 of its request."""
    ask: Ask
    cwd: str


class Source(Protocol):
    """Where steps come from."""

    def prepare(self, ready: Callable[[], None]) -> None:
        """Prepare what comes next, in the background; call `ready` when there is something."""

    def first(self) -> Work | None:
        """Return what is to be started next; None if nothing is ready."""

    def start(self, work: Work) -> None:
        """Note that it is started."""

    def is_empty(self) -> bool:
        """Tell whether nothing is left to be started."""

    def ended(self, work: Work, how: Outcome | None) -> None:
        """Note that a step has ended; without an outcome, its controller recorded none."""

    def summary(self) -> tuple[str, str]:
        """Return what is wrong with what has ended, if anything is, and what shows progress."""


class Broker:
    """See the module."""

    def __init__(
        self,
        *,
        source: Source,
        keeper_command: Sequence[str],
        environ: Mapping[str, str],
        shell: Shell,
        backend: Backend,
        journal: Journal,
        pool: AgentPool,
        recovery: AgentRecovery,
        membership: Membership,
        finalizer: Finalizer,
    ) -> None:
        self._source, self._keeper_command = source, keeper_command
        self._environ, self._shell = environ, shell
        self._backend, self._journal, self._pool = backend, journal, pool
        self._recovery, self._membership, self._finalizer = recovery, membership, finalizer
        self._ledger = Ledger()
        self._controllers: ForkClient | None = None
        self._steps: dict[int, tuple[Step, Work]] = {}
        """Those whose controllers have not exited, or whose agents have not."""
        self._next: dict[int, Step] = {}
        """By the number of a step: another one that gets its slots."""
        self._is_brief = False
        """Whether the last step that has ended lasted seconds."""
        self._departed: set[int] = set()
        """Nodes that steps know to have left the job."""
        self._started = 0
        self._tasks = BackgroundTasks()
        self._stop: Stop | None = None
        self._undelivered: dict[int, list[StartAgent]] = {}
        """By node: orders for a keeper that is not connected."""

    async def run(self) -> int:
        """Carry out the attempt, and return the exit code of the job."""
        journal = self._journal
        journal.note(
            events.AttemptStarted(
                attempt=journal.attempt,
                pid=os.getpid(),
                job=job_in(self._environ),
                saved=-1,
                slots=0,
                restarts=None,
            )
        )
        self._finalizer.prepare()
        watch = asyncio.get_running_loop().create_task(
            self._backend.allocation.watch(self._pool.post, self)
        )
        report_crash(watch, "the watch of the allocation", journal)
        try:
            verdict = await self._gather() or await self._carry_out()
        except StopError as error:
            verdict = judge([as_failure(await self._finalizer.explain(error.stop))])
        finally:
            watch.cancel()
            self._recovery.close()
            if self._controllers:
                self._controllers.close()
            await self._pool.leave()
        wrong, progress = self._source.summary()
        if verdict is None and wrong:
            verdict = judge([Failure(cause="exit", message=wrong, exit_code=1)])
        how = await self._finalizer.conclude(
            verdict,
            failures=[],
            restarts=None,
            nodes=len(self._pool.agents),
            saved=-1,
            progress=progress,
        )
        self._finalizer.record_pending_notice(how, verdict)
        journal.leave_outcome(how)
        self._finalizer.notify(how, verdict)
        journal.close()
        await self._backend.standby.leave()
        return how.exit_code

    # --- what the allocation has to know (`View`) -----------------------------------------------

    def lead_s(self) -> float:
        steps = (step.lead_s for step, _ in self._steps.values())
        return max(_LAST_S, *steps, 0.0) + RESERVE_S

    def can_move(self) -> bool:
        return self._backend.standby.assured()

    def nodes(self) -> list[str]:
        return [keeper.name for keeper in self._pool.agents.values()]

    # --- from the first keeper to the last step -------------------------------------------------

    async def _gather(self) -> Verdict | None:
        """Start the keepers, and wait for them; return why there is none, if so."""
        folder = self._journal.run.attempt(self._journal.attempt)
        self._controllers = ForkClient(
            self._shell,
            roles=["controller"],
            env=self._environ,
            log=folder / "controllers.log",
            exited=self._end_controller,
            lost=self._lose_controllers,
        )
        await self._pool.start(self._keeper_command, folder, self._environ)
        failures = await self._membership.await_all()
        for keeper in self._pool.agents.values():
            self._add_keeper(keeper)
        return judge(failures) if failures else None

    async def _carry_out(self) -> Verdict | None:
        """Start steps until none is left, or the job has to end; return why, in that case."""
        self._source.prepare(self._pool.wake)
        while True:
            self._start_steps()
            if not self._steps and (self._stop or self._source.is_empty()):
                break
            self._membership.poll()
            self._tell_departed()
            if why := self._find_shortage():
                cause = "lost node" if self._recovery.departed else "start"
                return judge([Failure(cause=cause, message=why)])
            match await self._pool.next():
                case Stop() as stop:
                    self._stop = await self._finalizer.explain(stop)
                    for step, _ in self._steps.values():
                        step.stop(self._stop)
                case Received(agent=keeper, message=Hello()) if self._pool.has(keeper):
                    self._add_keeper(keeper)
                case Received(message=AgentExited() as exited):
                    self._end_agent(exited)
                case Lost(agent=keeper):
                    self._lose_keeper(keeper.node)
        if self._stop and not self._source.is_empty():
            return judge([as_failure(self._stop)])
        return None

    def _start_steps(self) -> None:
        while self._stop is None and (work := self._source.first()):
            if slots := self._ledger.take(work.ask):
                self._source.start(work)
                self._start(work, slots).grant()
            elif (before := self._find_predecessor(work)) is not None:
                self._source.start(work)
                self._next[before.number] = self._start(work, before.slots)
            else:
                return

    def _find_predecessor(self, work: Work) -> Step | None:
        """Return a step after which another one may start on the same slots.

        Tasks that last seconds are started ahead, up to their ranks: that takes a fraction of a
        second, during which their slots would be idle.
        """
        if not self._is_brief:
            return None
        granted = (
            step
            for step, other in self._steps.values()
            if step.began_s is not None
            and step.slots
            and other.ask == work.ask
            and all(slot.node in self._pool.agents for slot in step.slots)
        )
        return next((step for step in granted if step.number not in self._next), None)

    def _find_shortage(self) -> str:
        """Return why nothing can be started any more; empty if it can, or a node may come back."""
        work = self._source.first()
        waits = self._stop is None and work is not None and not self._steps
        if not waits or self._recovery.may_come(soon=False):
            return ""
        assert work is not None
        ask = work.ask
        each = counted(ask.gpus, "GPU") if ask.gpus else counted(ask.cpus, "CPU")
        if self._ledger.offers(ask):
            return ""
        return f"a task needs {counted(ask.nodes, 'node')} with {each}; {self._ledger.describe()}"

    def _start(self, work: Work, slots: Sequence[Slot]) -> Step:
        """Start a step, whose ranks wait until it is granted its slots."""
        assert self._controllers is not None
        self._started += 1
        keepers = [self._pool.agents[slot.node] for slot in slots]
        step = Step(
            self._started,
            work.run,
            work.attempt,
            slots=slots,
            hosts=[keeper.name for keeper in keepers],
            order=self._order,
            released=self._free,
        )
        self._introduce(step)
        self._steps[step.number] = step, work
        step.start(
            self._controllers,
            self._pool.key,
            digest=work.digest,
            environ=self._environ,
            cwd=work.cwd,
            reached=keepers[0].link.own_address,
        )
        return step

    def _introduce(self, step: Step) -> None:
        """Tell steps which others use the same nodes: memory is not divided."""
        nodes = {slot.node: place for place, slot in enumerate(step.slots)}
        for other, _ in self._steps.values():
            for place, slot in enumerate(other.slots):
                if slot.node in nodes:
                    other.tell(Neighbours(node=place, runs=[step.run.run_id]))
                    step.neighbours.setdefault(nodes[slot.node], []).append(other.run.run_id)

    # --- keepers --------------------------------------------------------------------------------

    def _add_keeper(self, keeper: AgentHandle) -> None:
        self._ledger.add(keeper.node, gpus=keeper.hello.gpus, cpus=keeper.hello.cpus)
        for step, _ in self._steps.values():  # that wait for the node
            if step.began_s is not None:
                self._ledger.hold([slot for slot in step.slots if slot.node == keeper.node])
        for order in self._undelivered.pop(keeper.node, []):
            keeper.link.say(order)

    def _order(self, node: int, order: StartAgent | EndAgent) -> None:
        """Pass an order on; without a keeper, agents are started when there is one again."""
        waiting = self._undelivered.setdefault(node, [])
        if keeper := self._pool.agents.get(node):
            keeper.link.say(order)
        elif isinstance(order, StartAgent):
            waiting.append(order)
        else:
            about = (order.step, order.number)
            waiting[:] = [one for one in waiting if (one.step, one.number) != about]
            self._end_agent(
                AgentExited(step=order.step, number=order.number, status=-signal.SIGKILL)
            )

    def _lose_keeper(self, node: int) -> None:
        """Note that a keeper is lost, and with it the agents on its node."""
        self._ledger.remove(node)
        for step, work in list(self._steps.values()):
            step.lose_node(node)
            self._settle(step, work)

    def _tell_departed(self) -> None:
        """Tell steps which of their nodes have left the job."""
        for node in self._recovery.departed - self._departed:
            self._departed.add(node)
            for step, _ in self._steps.values():
                if places := [one for one, slot in enumerate(step.slots) if slot.node == node]:
                    step.tell(Departed(nodes=places))

    # --- what happens to steps ------------------------------------------------------------------

    def _end_agent(self, exited: AgentExited) -> None:
        if known := self._steps.get(exited.step):
            step, work = known
            step.agents.discard(exited.number)
            step.tell(replace(exited, step=0))
            self._settle(step, work)

    def _end_controller(self, exited: Exited) -> None:
        if known := self._steps.get(exited.number):
            step, work = known
            step.has_ended = True
            step.close()
            self._settle(step, work)
            self._pool.wake()

    def _settle(self, step: Step, work: Work) -> None:
        """Forget a step once all of its processes have exited."""
        if step.has_ended and not step.agents and not step.is_settled:
            step.is_settled = True
            self._free(step)
            self._tasks.spawn(self._forget(step, work))

    async def _forget(self, step: Step, work: Work) -> None:
        how = await asyncio.to_thread(outcome, step.run, step.attempt)
        del self._steps[step.number]
        self._source.ended(work, how)
        self._pool.wake()

    def _free(self, step: Step) -> None:
        """Give the slots of a step to the one that waits for them, or back."""
        slots, step.slots = step.slots, ()
        if step.began_s is None:  # it never had them
            self._next = {one: other for one, other in self._next.items() if other is not step}
            return
        if slots:
            self._is_brief = time.monotonic() - step.began_s < _BRIEF_S
        if after := self._next.pop(step.number, None):
            after.grant()
        else:
            self._ledger.give_back(slots)
            self._pool.wake()

    def _lose_controllers(self) -> None:
        message = "the process that starts the controllers of steps has exited"
        self._pool.post(Stop("start", message, 70, at_once=True))
        for number in list(self._steps):
            self._end_controller(Exited(number=number, status=NOT_STARTED))
