"""How nodes come to take part: all of them at the beginning, lost ones between generations.

Nobody is waited for in vain: one that is gone, or not fit, counts as such once that is known.
"""

import asyncio
import math
import time
from collections.abc import Callable

from echelon.launch.agent.node_check import COMMAND_S, judge_checks
from echelon.launch.backends.base import Outlook, Started, Starter
from echelon.launch.controller.agent_recovery import AgentRecovery
from echelon.launch.pool.agent_launcher import could_not_start, read_reason
from echelon.launch.pool.agent_pool import AgentPool
from echelon.launch.pool.controller_events import Agent, Gone, Lost
from echelon.launch.protocol.messages import Hello
from echelon.launch.protocol.stop import Stop, StopError
from echelon.run.events import NodesAwaited
from echelon.run.journal import Journal
from echelon.run.verdict import Failure
from echelon.spec.job_spec import JobSpec

JOIN_S = 120.0
"""How long agents may take to come; on a large cluster some start late."""
GLANCE_S = 0.5
"""After how long without one we look what is known of those that are missing,"""
LATE_S = 10.0
"""and how often we ask whether they are still ours."""
UNREACHED_S = 10.0
"""How long a run that can do with fewer nodes waits for those that srun could not reach."""
SOON_S = 3.0
"""How long a run that can go on with fewer nodes waits for one that may be back at once,"""
NEEDED_S = 30.0
"""and how long one that cannot."""


class Membership:
    """See the module."""

    def __init__(
        self,
        crew: AgentPool,
        starter: Starter,
        recall: AgentRecovery,
        *,
        request: JobSpec,
        journal: Journal,
        blame: Callable[[Failure], None],
    ) -> None:
        self._crew, self._starter, self._recall = crew, starter, recall
        self._journal, self._blame = journal, blame
        self._low = request.nodes.low
        self._check_s = COMMAND_S if request.node_check else 0.0
        """What the user's own check may take, before an agent comes."""
        self._awaited = ""
        """What was said last that nodes are waited for."""
        self._single_s = math.inf
        """When nodes were started each by itself."""
        self._judged: set[int] = set()
        """Nodes that have failed their check, and were judged."""

    async def await_all(self) -> list[Failure]:
        """Wait for the agents that were started; return why too few have come, if so.

        Raises:
            StopError: the run is to stop.
        """
        await self._await_first()
        if self.has_enough():
            self._leave_out_unfit()
            return []
        return self._judge_unfit() or [self._tell_absence()]

    async def await_missing(self) -> None:
        """Give nodes that were lost the time to come back, and do without those that are not fit.

        Raises:
            StopError: the run is to stop.
        """
        began_s = time.monotonic()
        while True:
            self._recall.begin()
            enough = self.has_enough()
            wait_s = SOON_S if enough else NEEDED_S + self._check_s
            if not self._recall.may_come(soon=enough):
                wait_s = 0.0  # what has happened is taken in all the same
            match await self._crew.next(began_s + wait_s):
                case None:
                    self._leave_out_unfit()
                    return
                case (_, Stop() as stop):
                    raise StopError(stop)

    def look_about(self) -> None:
        """Have those brought back that are missing while ranks run, and see who is not fit."""
        self._recall.begin()
        self._leave_out_unfit()

    def has_enough(self) -> bool:
        """Tell whether the run can go on with the nodes that are here."""
        return len(self._crew.agents) >= self._low

    async def _await_first(self) -> None:
        """Wait until each node's agent is here, or will not be."""
        patience_s = JOIN_S + self._check_s
        deadline = time.monotonic() + patience_s
        late_s = time.monotonic() + LATE_S
        awaited = set(range(self._starter.nodes))
        while missing := awaited - self._crew.agents.keys() - self._crew.unfit.keys():
            deadline = min(deadline, self._single_deadline())
            match await self._crew.next(min(deadline, time.monotonic() + GLANCE_S)):
                case None:
                    outlook = await asyncio.to_thread(self._starter.outlook)
                    if outlook.waits:
                        deadline = time.monotonic() + patience_s
                    elif time.monotonic() >= deadline:
                        return
                    if time.monotonic() >= late_s:
                        await self._recall.find_departed(missing)
                        late_s = time.monotonic() + LATE_S
                    awaited -= self._heed(outlook, awaited)
                case (_, Stop() as stop):
                    raise StopError(stop)
                case (_, Gone(started)) if not self._start_singly(started):
                    awaited -= started.nodes
                case (Agent() as agent, Lost()):  # nobody else would bring it again
                    self._recall.begin([agent.node])

    def _start_singly(self, started: Started) -> bool:
        """Start each node by itself where srun could not start all together; tell whether so.

        One node that cannot be reached ends the agents of all the others.
        """
        if len(started.nodes) == 1 or not could_not_start(started.log):
            return False
        self._journal.report(f"starting each node by itself: {read_reason(started.log)}")
        self._recall.begin(started.nodes)
        self._single_s = time.monotonic()
        return True

    def _single_deadline(self) -> float:
        """Return until when nodes that were started by themselves are waited for."""
        return self._single_s + self._check_s + (UNREACHED_S if self.has_enough() else NEEDED_S)

    def _heed(self, outlook: Outlook, awaited: set[int]) -> set[int]:
        """Say what is waited for; return nodes from which no agent will come, or none soon."""
        if outlook.waits and outlook.waits != self._awaited:
            self._journal.note(NodesAwaited(reason=outlook.waits))
            self._journal.report(f"{self._journal.run.run_id}: {outlook.waits}")
        self._awaited = outlook.waits
        self._recall.part_with(outlook.absent)
        for node in sorted(outlook.faults.keys() - self._crew.unfit.keys()):
            name, fault = self._starter.host(node), outlook.faults[node]
            self._crew.reject(
                Hello(node=node, name=name, host="", addresses=[], fault=fault, fault_own=True)
            )
        gone = self._recall.departed | self._crew.unfit.keys()
        enough = len(awaited - gone - outlook.lost) >= self._low
        return gone | outlook.lost if enough else gone

    def _leave_out_unfit(self) -> None:
        """Say which nodes the run does without, for they have failed their check."""
        for failure in self._judge_unfit():
            who = f"{failure.node} is left out: " if failure.node else ""
            self._journal.report(f"{who}{failure.message}")

    def _judge_unfit(self) -> list[Failure]:
        """Return the failures of nodes that have failed their check since we last looked."""
        unfit = [self._crew.unfit[node] for node in sorted(self._crew.unfit.keys() - self._judged)]
        self._judged |= self._crew.unfit.keys()
        failures = judge_checks(unfit, passed=len(self._crew.agents))
        for failure in failures:
            self._blame(failure)
        return failures

    def _tell_absence(self) -> Failure:
        """Return that agents did not come, in the words of what was to bring them."""
        said = " ".join(read_reason(started.log) for started in self._crew.started).strip()
        absent = set(range(self._starter.nodes)) - self._crew.agents.keys()
        names = ", ".join(self._starter.host(node) for node in sorted(absent))
        came = f"{len(self._crew.agents)} of {self._starter.nodes} nodes came, without {names}"
        return Failure(cause="start", message=f"{came}: {said}", exit_code=69)
