"""Waits for agents: for all of them at the beginning, for lost ones between generations.

A node that has left the job or failed its check is not waited for once that is known.
"""

import asyncio
import math
import time
from collections.abc import Callable, Collection

from echelon.launch.agent.node_check import check_limit_s, judge_checks
from echelon.launch.backends.base import Outlook, Started, Starter
from echelon.launch.backends.stop import Stop, StopError
from echelon.launch.controller.agent_recovery import AgentRecovery
from echelon.launch.controller.staging import Staging
from echelon.launch.pool.agent_launcher import could_not_start, find_killed, read_reason
from echelon.launch.pool.agent_pool import AgentPool
from echelon.launch.pool.controller_events import Lost, StarterExited
from echelon.launch.protocol.messages import Hello
from echelon.run.events import NodesAwaited
from echelon.run.journal import Journal
from echelon.run.verdict import Failure
from echelon.spec.job_spec import JobSpec

JOIN_S = 120.0
"""How long agents may take to connect; on a large cluster some start late."""
GLANCE_S = 0.5
"""Time without a new agent after which we check what is known about the missing ones."""
LATE_S = 10.0
"""How often we ask whether they still belong to the job."""
UNREACHED_S = 10.0
"""How long a run that has enough nodes waits for those that srun could not reach."""
SOON_S = 3.0
"""How long a run that has enough nodes waits for one that may be back at once,"""
NEEDED_S = 30.0
"""and how long one that has too few."""


class Membership:
    """See the module."""

    def __init__(
        self,
        pool: AgentPool,
        starter: Starter,
        recovery: AgentRecovery,
        *,
        request: JobSpec,
        journal: Journal,
        blame: Callable[[Failure], None],
    ) -> None:
        self._pool, self._starter, self._recovery = pool, starter, recovery
        self._staging = Staging(pool, journal)
        self._journal, self._blame = journal, blame
        self._low = request.nodes.low
        self._check_s = check_limit_s(request)
        """Time that the user's own check may take before an agent connects."""
        self._awaited = ""
        """The last message about what the run waits for."""
        self._single_s = math.inf
        """When nodes were started one by one."""
        self._judged: set[int] = set()
        """Nodes that failed their check and were reported."""

    async def await_all(self) -> list[Failure]:
        """Wait for the agents that were started; return why too few connected, if so.

        Raises:
            StopError: a stop was requested.
        """
        await self._await_first()
        if await self._staging.settle():
            await self.await_missing()
        if self.has_enough():
            self._leave_out_unfit()
            return []
        return self._judge_unfit() or [self._describe_absence()]

    async def await_missing(self) -> None:
        """Wait for lost nodes to come back; exclude those that failed their check.

        Raises:
            StopError: a stop was requested.
        """
        began_s = time.monotonic()
        while True:
            self._recovery.begin()
            enough = self.has_enough()
            wait_s = SOON_S if enough else NEEDED_S + self._check_s
            if not self._recovery.may_come(soon=enough):
                wait_s = 0.0  # queued events are handled all the same
            match await self._pool.next(began_s + wait_s):
                case None:
                    await self._staging.settle()
                    self._leave_out_unfit()
                    return
                case Stop() as stop:
                    raise StopError(stop)

    def poll(self) -> None:
        """Restart missing agents while ranks run, and exclude nodes that failed their check."""
        self._recovery.begin()
        self._leave_out_unfit()

    def has_enough(self) -> bool:
        """Tell whether the run can continue with the connected nodes."""
        return len(self._pool.agents) >= self._low

    async def _await_first(self) -> None:
        """Wait until each node's agent has connected, or will not."""
        patience_s = JOIN_S + self._check_s
        deadline = time.monotonic() + patience_s
        late_s = time.monotonic() + LATE_S
        awaited = set(range(self._starter.nodes))
        while missing := awaited - self._pool.agents.keys() - self._pool.unfit.keys():
            deadline = min(deadline, self._single_deadline())
            match await self._pool.next(min(deadline, time.monotonic() + GLANCE_S)):
                case None:
                    self._restart_killed(missing)
                    outlook = await asyncio.to_thread(self._starter.outlook)
                    if outlook.waits:
                        deadline = time.monotonic() + patience_s
                    elif time.monotonic() >= deadline:
                        return
                    if time.monotonic() >= late_s:
                        await self._recovery.find_departed(missing)
                        late_s = time.monotonic() + LATE_S
                    awaited -= self._apply_outlook(outlook, awaited)
                case Stop() as stop:
                    raise StopError(stop)
                case StarterExited(started=started, killed=True) if len(started.nodes) == 1:
                    self._recovery.begin(started.nodes)
                case StarterExited(started=started) if not self._start_singly(started):
                    awaited -= started.nodes
                case Lost(agent=agent):  # nothing else would restart it
                    self._recovery.begin([agent.node])

    def _restart_killed(self, missing: Collection[int]) -> None:
        """Start agents again that were killed before they connected, while srun goes on."""
        hosts = {self._starter.host(node): node for node in missing}
        killed = {host for one in self._pool.started for host in find_killed(one.log)}
        if nodes := {hosts[host] for host in killed & hosts.keys()}:
            self._recovery.begin(nodes)

    def _start_singly(self, started: Started) -> bool:
        """Start nodes one by one if srun could not start all together; tell whether so.

        A single unreachable node ends the agents of all the others.
        """
        if len(started.nodes) == 1 or not could_not_start(started.log):
            return False
        self._journal.report(f"starting nodes one by one: {read_reason(started.log)}")
        self._recovery.begin(started.nodes)
        self._single_s = time.monotonic()
        return True

    def _single_deadline(self) -> float:
        """Return until when to wait for nodes that were started one by one."""
        return self._single_s + self._check_s + (UNREACHED_S if self.has_enough() else NEEDED_S)

    def _apply_outlook(self, outlook: Outlook, awaited: set[int]) -> set[int]:
        """Report what the run waits for; return nodes that will not connect soon, if ever."""
        if outlook.waits and outlook.waits != self._awaited:
            self._journal.note(NodesAwaited(reason=outlook.waits))
            self._journal.report(f"{self._journal.run.run_id}: {outlook.waits}")
        self._awaited = outlook.waits
        self._recovery.mark_departed(outlook.absent)
        for node in sorted(outlook.faults.keys() - self._pool.unfit.keys()):
            name, fault = self._starter.host(node), outlook.faults[node]
            self._pool.reject(
                Hello(node=node, name=name, host="", addresses=[], fault=fault, fault_own=True)
            )
        gone = self._recovery.departed | self._pool.unfit.keys()
        enough = len(awaited - gone - outlook.lost) >= self._low
        return gone | outlook.lost if enough else gone

    def _leave_out_unfit(self) -> None:
        """Report nodes that are excluded because they failed their check."""
        for failure in self._judge_unfit():
            who = f"{failure.node} excluded: " if failure.node else ""
            self._journal.report(f"{who}{failure.message}")

    def _judge_unfit(self) -> list[Failure]:
        """Return the failures of nodes that failed their check since the last call."""
        unfit = [self._pool.unfit[node] for node in sorted(self._pool.unfit.keys() - self._judged)]
        self._judged |= self._pool.unfit.keys()
        failures = judge_checks(unfit, passed=len(self._pool.agents))
        for failure in failures:
            self._blame(failure)
        return failures

    def _describe_absence(self) -> Failure:
        """Return that agents did not connect, with the reason that their starter printed."""
        output = " ".join(read_reason(started.log) for started in self._pool.started).strip()
        absent = set(range(self._starter.nodes)) - self._pool.agents.keys()
        names = ", ".join(self._starter.host(node) for node in sorted(absent))
        joined = f"{len(self._pool.agents)} of {self._starter.nodes} nodes joined"
        why = f": {output}" if output else ""
        message = f"{joined}; missing: {names}{why}"
        return Failure(cause="start", message=message, exit_code=69)
