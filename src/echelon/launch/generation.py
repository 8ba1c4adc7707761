"""One set of ranks, from their start until the last of them is gone.

It ends by itself when all ranks have gone well; at the first trouble, or when the run is to stop,
what is left of it is ended here.
"""

import asyncio
import math
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

from echelon.launch.crew import Agent, Crew, Entry, Lost, Stop
from echelon.launch.failures import (
    from_exit,
    from_late_exit,
    from_lost_agent,
    from_lost_zygote,
)
from echelon.launch.hang import Hang, HangWatch, script_frames
from echelon.launch.journal import Journal
from echelon.launch.meeting import Meeting, MeetingError, StopError, collect
from echelon.launch.messages import (
    Commit,
    Dump,
    End,
    Ended,
    Place,
    Propose,
    RankExited,
    RankStarted,
    Start,
    ZygoteLost,
)
from echelon.launch.messages import Stacks as StacksOfNode
from echelon.launch.request import LaunchRequest
from echelon.launch.spending import Spending
from echelon.launch.stopping import Accord
from echelon.launch.verdict import Failure, is_victim, judge, render, to_record

CONFESS_S = 2.0
"""How long a victim's report waits for the cause's own, which may be busy cleaning up.

Taking apart an interpreter that holds torch is over a second of it, where we did not start it.
"""
AGREE_S = 30.0
"""How long ranks may take to come to the place where they stop, if nobody says otherwise."""
SAVE_S = 120.0
"""How long they may take to save, and go; likewise."""
AGAIN_S = 0.5
"""After which time ranks that did not listen are asked again whether they do."""
KILL_S = 3.0
"""What ranks get between being asked to go, when they would not agree, and being killed."""
END_S = 10.0
"""How long an agent may take to end its ranks, beyond the grace."""
STORAGE_S = 600.0
"""How long it may take while storage holds some of them."""


class Generation:
    """See the module."""

    def __init__(
        self,
        number: int,
        agents: Sequence[Agent],
        *,
        request: LaunchRequest,
        journal: Journal,
        crew: Crew,
        watch: HangWatch,
        explain: Callable[[Stop], Awaitable[Stop]],
    ) -> None:
        self.number, self.agents = number, agents
        self.failures: list[Failure] = []
        """In the order of their arrival."""
        self.stop: Stop | None = None
        self.stacks: dict[str, str] = {}
        self._ranks: dict[int, Agent] = {}
        """Those that have not gone."""
        self._gone_by_s: float | None = None
        """When ranks that do not listen have to be gone; None before they were asked."""
        self._halted = ""
        """Where all ranks have stopped together, in words."""
        self._request, self._journal = request, journal
        self._crew, self._watch, self._explain = crew, watch, explain
        self._spending = Spending()

    async def run(self, meeting: Meeting, ranks_of: Callable[[Agent], int]) -> None:
        """Start the ranks, and return when all of them are gone."""
        self._start(meeting, [ranks_of(agent) for agent in self.agents])
        await self._watch_ranks()
        self._watch.end()
        first, why = self.stop, self._begin_to_explain()
        if self.stop and not self.stop.at_once:
            await self._stop_together()
        await self._end()
        if self.stop and not self.stop.at_once:
            stop = await self._explain_last(self.stop, first, why)
            self.stop = replace(stop, message=f"{stop.message}{self._halted}")
        failed = bool(self.failures) and not self.stop
        spent = self._spending.record(time.monotonic(), failed=failed)
        self._journal.note("spent", generation=self.number, **spent)

    def _begin_to_explain(self) -> asyncio.Task[Stop] | None:
        """Ask why we are to stop, for a signal alone does not say; the answer comes as an entry.

        Who preempts gives little time: meanwhile ranks can come to a place.
        """
        stop = self.stop
        if not stop or stop.at_once:
            return None

        async def explain() -> Stop:
            explained = await self._explain(stop)
            if explained != stop:
                self._crew.post(explained)
            return explained

        return asyncio.get_running_loop().create_task(explain())

    async def _explain_last(
        self, last: Stop, first: Stop | None, why: asyncio.Task[Stop] | None
    ) -> Stop:
        """Return which stop counts, in the cluster's words: the first, unless a user's came later.

        Who ends a run while it saves before its time limit does not want it to go on.
        """
        if first is None or why is None:
            return await self._explain(last)
        explained = await why
        if last.cause not in (first.cause, explained.cause):
            last = await self._explain(last)
            if last.cause == "cancelled":
                return last
        return explained

    def _start(self, meeting: Meeting, counts: Sequence[int]) -> None:
        first = 0
        for node_rank, (agent, count) in enumerate(zip(self.agents, counts, strict=True)):
            self._ranks |= dict.fromkeys(range(first, first + count), agent)
            agent.link.say(
                Start(
                    generation=self.number,
                    node_rank=node_rank,
                    nodes=len(self.agents),
                    first_rank=first,
                    count=count,
                    world_size=sum(counts),
                    address=meeting.address,
                    port=meeting.port,
                    served=meeting.served,
                    now_s=time.time(),
                )
            )
            first += count
        self._journal.note(
            "generation", generation=self.number, world_size=first, nodes=len(self.agents)
        )
        self._watch.begin(self.number)
        self._spending.begin(self._ranks, time.monotonic())

    async def _watch_ranks(self) -> None:
        """Wait until all ranks have gone well, for the first trouble, or for a stop."""
        deadline: float | None = None
        while self._ranks and not self.stop:
            entry = await self._crew.next(deadline)
            if entry is None:
                return  # the time for confessions is over
            await self._notice(entry)
            if not all(is_victim(failure) for failure in self.failures):
                return
            if self.failures:
                deadline = deadline or time.monotonic() + CONFESS_S

    async def _notice(self, entry: Entry) -> None:
        match entry:
            case (Agent(), RankStarted() as rank):
                self._journal.note(
                    "rank", rank=rank.rank, generation=rank.generation, pid=rank.pid, warm=rank.warm
                )
            case (Agent() as agent, RankExited() as gone) if gone.generation == self.number:
                self._ranks.pop(gone.rank, None)
                self._spending.leave(gone, time.monotonic())
                self._watch.forget(gone.rank)
                self._journal.note(
                    "exited",
                    rank=gone.rank,
                    generation=gone.generation,
                    code=gone.code,
                    signal=gone.signal,
                )
                if gone.code or gone.signal:
                    log = self._log(gone.rank)
                    self.failures.append(from_exit(gone, node=agent.name, log=log))
            case (Agent() as agent, ZygoteLost() as lost) if lost.generation == self.number:
                self.failures.append(from_lost_zygote(lost, node=agent.name))
            case (Agent() as agent, Lost() as lost) if agent in self.agents:
                self._lose(agent, lost.reason)
            case (_, Stop() as stop):
                self.stop = stop
            case (_, Hang() as hang) if hang.generation == self.number:
                await self._be_hung(hang)

    def _lose(self, agent: Agent, reason: str) -> None:
        lost = [rank for rank, owner in self._ranks.items() if owner is agent]
        for rank in lost:
            del self._ranks[rank]
            self._spending.lose(rank, time.monotonic())
        if lost:
            failure = from_lost_agent(reason, node=agent.name, generation=self.number)
            self.failures.append(failure)

    def _log(self, rank: int) -> Path:
        """Return where a rank's log is within the run."""
        journal = self._journal
        log = journal.run.rank_log(attempt=journal.attempt, generation=self.number, rank=rank)
        return log.relative_to(journal.run.path)

    # --- stopping -------------------------------------------------------------------------------

    async def _stop_together(self) -> None:
        """Have ranks that listen stop at one place, save, and go.

        Others are asked to go by a signal, and have their grace; those that begin to listen only
        now, because their training is about to begin, can still come to a place in that time.
        """
        accord = self._begin_accord()
        until_s, again_s, step = time.monotonic() + AGREE_S, math.inf, -1
        while self._ranks:
            match await self._crew.next(min(self._before(until_s), again_s)):
                case None if again_s <= time.monotonic() < self._before(until_s):
                    accord, again_s = self._begin_accord(), math.inf
                case None | (Agent(), Lost()):
                    return
                case (Agent() as agent, Place() as place):
                    until_s = self._hear(accord, agent, place, until_s)
                    if accord.deaf:
                        again_s = min(again_s, time.monotonic() + AGAIN_S)
                case (_, Stop() as stop):
                    self.stop = stop
                    if stop.at_once:
                        return
                case (Agent() as agent, RankExited() as gone):
                    step = max(step, gone.step)
                    await self._notice((agent, gone))
        if not self.failures:
            self._take_stop(accord, step)

    def _take_stop(self, accord: Accord, step: int) -> None:
        """Say where all have stopped, now that all are gone and none has failed."""
        if accord.committed:
            self._journal.note("stopped", generation=self.number, step=step)
            self._halted = f"; all ranks stopped after step {step}, and saved"
        elif self._gone_by_s is None:
            self.stop = None  # they were done before they came to the place

    def _begin_accord(self) -> Accord:
        accord = Accord((agent.node for agent in self.agents), self.number)
        self._tell_all(accord.begin())
        return accord

    def _hear(self, accord: Accord, agent: Agent, place: Place, until_s: float) -> float:
        """Take an agent's answer; return until when ranks may now take."""
        order = accord.hear(agent.node, place)
        self._tell_all(order)
        if isinstance(order, Commit):
            return time.monotonic() + SAVE_S
        if accord.deaf and self._gone_by_s is None:
            ask = self._last_order(deaf=True)
            self._gone_by_s = time.monotonic() + ask.grace_s
            self._tell({one.node for one in self.agents}, ask)
            return self._gone_by_s
        return until_s

    def _before(self, until_s: float) -> float:
        """Return until when something may take: to the stop's own deadline, where it has one."""
        assert self.stop is not None
        return until_s if self.stop.deadline_s is None else self.stop.deadline_s

    def _tell_all(self, order: Propose | Commit | None) -> None:
        for agent in self.agents:
            if order and self._crew.has(agent):
                agent.link.say(order)

    async def _end(self) -> None:
        """End what is left, everywhere; return when all of it is gone."""
        left = {agent.node for agent in self.agents if self._crew.has(agent)}
        order = self._last_order()
        self._tell(left, order)
        deadline = time.monotonic() + order.grace_s + END_S
        latest = deadline + STORAGE_S
        while left:
            match await self._crew.next(deadline):
                case None if time.monotonic() < latest and self._is_held(left):
                    deadline = time.monotonic() + END_S
                case None:
                    for node in left & self._crew.agents.keys():
                        self._crew.agents[node].link.drop("it did not end its ranks")
                    return
                case (Agent() as agent, Ended(generation=self.number) | Lost()):
                    left.discard(agent.node)
                case (Agent() as agent, RankExited() as gone):
                    if gone.generation == self.number:
                        self._spending.leave(gone, time.monotonic())
                    self._notice_late(agent, gone)
                case (_, Stop() as stop):
                    self.stop = stop
                    if stop.at_once:
                        self._tell(left, End(generation=self.number))

    def _is_held(self, nodes: set[int]) -> bool:
        return any(self._crew.agents[node].held for node in nodes & self._crew.agents.keys())

    def _last_order(self, *, deaf: bool = False) -> End:
        """Return how ranks are to be ended: asked first, where there is time for that."""
        stop = self.stop
        if not stop or stop.at_once:
            return End(generation=self.number)
        if self._gone_by_s is not None:  # they were asked
            return End(generation=self.number, grace_s=max(0.0, self._gone_by_s - time.monotonic()))
        left_s = math.inf
        if stop.deadline_s is not None:
            left_s = max(0.0, stop.deadline_s - time.monotonic())
        grace_s, ask = float(self._request.grace_s) if deaf else KILL_S, signal.SIGTERM
        if deaf and self._request.lead_s and stop.cause == "time limit":
            # It wants to be warned, and what it does with the time that is left is its own affair.
            grace_s, ask = max(grace_s, self._request.lead_s), signal.SIGUSR1
        return End(
            generation=self.number,
            grace_s=min(grace_s, left_s),
            signal=0 if stop.told else ask,
        )

    def _tell(self, nodes: set[int], order: End) -> None:
        for node in nodes & self._crew.agents.keys():
            self._crew.agents[node].link.say(order)

    def _notice_late(self, agent: Agent, gone: RankExited) -> None:
        """Add ranks that fell after the first: by themselves, or because we ended them."""
        if not (gone.code or gone.signal) or self.stop:
            return
        if gone.rank not in {known.rank for known in self.failures}:
            log = self._log(gone.rank)
            self.failures.append(from_late_exit(gone, node=agent.name, log=log))

    # --- hangs ----------------------------------------------------------------------------------

    async def _be_hung(self, hang: Hang) -> None:
        """Have all stacks written down; what follows is the user's choice."""
        here = [agent for agent in self.agents if self._crew.has(agent)]
        for agent in here:
            agent.link.say(Dump(generation=self.number))
        try:
            answers = await collect(self._crew, here, StacksOfNode, self.number, needed=here)
        except MeetingError as error:
            self.failures.append(error.failure)
            return
        except StopError as error:
            self.stop = error.stop
            return
        told = [pair for answer in answers.values() for pair in answer.ranks.items()]
        stacks = {rank: script_frames(text) for rank, text in told}
        hang = hang.with_stacks(stacks)
        owner = self._ranks.get(hang.rank)
        failure = Failure(
            cause="hang",
            message=hang.message,
            rank=hang.rank,
            node=owner.name if owner else "",
            step=hang.step if hang.step >= 0 else None,
            traceback=stacks.get(str(hang.rank), ""),
            generation=self.number,
        )
        verdict = replace(judge([failure]), stacks=stacks)
        self._journal.note("hang", **to_record(verdict))
        self._journal.leave_verdict(verdict)
        self._journal.report(f"{self._journal.run.run_id} hangs\n{render(verdict)}")
        if self._request.on_hang != "report":
            self.failures.append(failure)
            self.stacks = stacks
