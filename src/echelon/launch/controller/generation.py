"""One set of ranks, from their start until the last of them has exited.

It ends by itself when all ranks have succeeded. At the first failure, or if the run has to stop,
the ranks that are left are ended here.
"""

import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from echelon.launch.backends.stop import Stop
from echelon.launch.controller.failures import (
    from_exit,
    from_hang,
    from_late_exit,
    from_lost_agent,
    from_lost_zygote,
    from_standstill,
)
from echelon.launch.controller.generation_times import GenerationTimes
from echelon.launch.controller.hang_watch import HangWatch
from echelon.launch.controller.placement import place_ranks
from echelon.launch.controller.rendezvous import Endpoint, Rendezvous
from echelon.launch.controller.rendezvous_watch import RendezvousWatch
from echelon.launch.controller.stopping import (
    WITHDRAWN,
    Reason,
    StopConsensus,
    are_about_to_listen,
    order_end,
)
from echelon.launch.pool.agent_pool import AgentPool
from echelon.launch.pool.collective_cause import find_cause
from echelon.launch.pool.controller_events import AgentHandle, Lost, PoolEvent, Received
from echelon.launch.pool.hang import Hang, place_of, script_frames
from echelon.launch.protocol.collective_trace import decode_trace
from echelon.launch.protocol.messages import (
    Commit,
    Dump,
    End,
    Ended,
    Hello,
    Message,
    Place,
    Propose,
    Pulse,
    RankExited,
    RankStarted,
    ReadTraces,
    StoreUsed,
    Traces,
    ZygoteLost,
)
from echelon.launch.protocol.messages import Stacks as StacksOfNode
from echelon.run import events
from echelon.run.history import newest_checkpoint
from echelon.run.journal import Journal
from echelon.run.saved import tell_last
from echelon.run.verdict import Failure, is_victim, judge, render
from echelon.spec.job_spec import JobSpec

_log = logging.getLogger(__name__)
M = TypeVar("M", Traces, StacksOfNode)

CAUSE_WAIT_S = 2.0
"""How long the failure of a victim waits for that of the cause, which may be busy cleaning up.

The exit of an interpreter that has imported torch takes over a second, if it was not forked.
"""
AGREE_S = 30.0
"""How long ranks may take to reach the place where they stop, unless there is a deadline."""
SAVE_S = 120.0
"""How long they may take to save and exit, likewise."""
AGAIN_S = 0.5
"""Time after which ranks that did not listen are asked again."""
NEWCOMERS_S = 2.0
"""How long a node that has joined waits for others that may be about to join."""
ASK_AGAIN_S = 10.0
"""Time after which ranks are asked again to make room."""
END_S = 10.0
"""How long an agent may take to end its ranks, beyond the grace period."""
STORAGE_S = 600.0
"""How long it may take while some of them are blocked on storage."""


class Generation:
    """See the module."""

    def __init__(
        self,
        number: int,
        agents: Sequence[AgentHandle],
        *,
        request: JobSpec,
        journal: Journal,
        pool: AgentPool,
        rendezvous_watch: RendezvousWatch,
        explain: Callable[[Stop], Awaitable[Stop]],
        recover: Callable[[], None],
        listened: bool,
    ) -> None:
        self.number, self.agents = number, agents
        self.failures: list[Failure] = []
        """In the order of their arrival."""
        self.stop: Stop | None = None
        self.made_room = False
        """Whether ranks have stopped so that more nodes can take part."""
        self.stacks: dict[str, str] = {}
        self._world_size = 0
        self._ranks: dict[int, AgentHandle] = {}
        """Ranks that have not exited."""
        self._gone_by_s: float | None = None
        """Deadline of ranks that do not listen; None before they were asked to stop."""
        self._halted = ""
        """Description of where all ranks stopped together."""
        self._ask_s = math.inf
        """When ranks are asked to make room for a node that has joined."""
        self._reported_waiting = False
        self._consensus: StopConsensus | None = None
        """The consensus to make room, once there is one."""
        self._request, self._journal = request, journal
        self._pool, self._explain = pool, explain
        self._watch = HangWatch(number, request.hang_timeout_s)
        self._rendezvous_watch, self._listened = rendezvous_watch, listened
        self._recover = recover
        """Restarts missing agents."""
        self._times = GenerationTimes()
        self._last_step = -1
        """Newest step of the ranks that have exited."""

    async def find_endpoint(self, rendezvous: Rendezvous) -> Endpoint:
        """Return where the ranks will meet, as soon as the first zygote is ready.

        Raises:
            RendezvousError, StopError: see `Rendezvous.find`.
        """
        self._begin_watch()
        return await rendezvous.find(self.agents, self.number, self._report_hang)

    async def run(self, endpoint: Endpoint, ranks_of: Callable[[AgentHandle], int]) -> None:
        """Start the ranks, and return when all of them have exited."""
        self._start(endpoint, [ranks_of(agent) for agent in self.agents])
        await self._watch_ranks()
        self._watch.end()
        if not self._ranks and not self.failures:
            self._warn_no_group()
        why = Reason(self.stop, self._explain, self._pool.post)
        if self.stop and not self.stop.at_once:
            await self._stop_together()
        await self._end()
        if self.stop and not self.stop.at_once:
            stop = await why.settle(self.stop)
            self.stop = replace(stop, message=f"{stop.message}{self._halted}")
        again = (self.made_room or bool(self.failures)) and not self.stop
        spent = self._times.record(time.monotonic(), again=again)
        self._journal.note(events.GenerationEnded(generation=self.number, **spent))

    def _start(self, endpoint: Endpoint, counts: Sequence[int]) -> None:
        orders = place_ranks(
            counts,
            endpoint,
            generation=self.number,
            now_s=self._journal.now(),
            saved=tell_last(self._journal.run),
        )
        for agent, order in zip(self.agents, orders, strict=True):
            ranks = range(order.first_rank, order.first_rank + order.count)
            self._ranks |= dict.fromkeys(ranks, agent)
            agent.link.say(order)
        _log.info(
            "generation %d: ordered %d nodes to start %d ranks, which meet at %s:%d",
            *(self.number, len(orders), sum(counts), endpoint.address, endpoint.port),
        )
        self._journal.note(
            events.GenerationStarted(
                generation=self.number, world_size=sum(counts), nodes=len(self.agents)
            )
        )
        self._world_size = sum(counts)
        self._begin_watch()
        self._rendezvous_watch.begin(sum(counts), served=endpoint.served)
        self._times.begin(self._ranks, time.monotonic())
        self._see_newcomers()

    async def _watch_ranks(self) -> None:
        """Wait until all ranks have succeeded, for the first failure, or for a stop."""
        until_s = math.inf
        while self._ranks and not self.stop:
            event = await self._pool.next(min(until_s, self._ask_s, self._rendezvous_watch.due_s))
            if event:
                await self._notice(event)
            elif self._rendezvous_watch.due_s <= time.monotonic():
                self._warn_no_group()
            elif until_s <= time.monotonic():
                return  # no cause has shown up in time
            elif not self.failures:
                await self._make_room()
            if self.made_room or not all(is_victim(failure) for failure in self.failures):
                return
            if self.failures:
                until_s, self._ask_s = min(until_s, time.monotonic() + CAUSE_WAIT_S), math.inf

    def _warn_no_group(self) -> None:
        """Report ranks that have not formed a process group."""
        if warning := self._rendezvous_watch.warning():
            self._journal.report(f"warning: {warning}")

    def _report_store_used(self) -> None:
        if news := self._rendezvous_watch.store_used():
            self._journal.report(news)

    def _see_newcomers(self, after_s: float = NEWCOMERS_S) -> None:
        """Plan to make room, in a moment, if there are agents without ranks."""
        here = any(agent not in self.agents for agent in self._pool.agents.values())
        self._ask_s = time.monotonic() + after_s if here else math.inf

    async def _notice(self, event: PoolEvent) -> None:
        match event:
            case Received(agent=agent, message=message):
                self._receive(agent, message)
            case Lost(agent=agent) as lost if agent in self.agents:
                self._lose(lost)
            case Lost():
                self._restart_agents()
            case Stop() as stop:
                self.stop = stop
            case Hang(generation=self.number) as hang:
                await self._handle_hang(hang)

    def _receive(self, agent: AgentHandle, message: Message) -> None:
        match message:
            case RankStarted() as rank:
                self._journal.note(
                    events.RankStarted(
                        rank=rank.rank, generation=rank.generation, pid=rank.pid, warm=rank.warm
                    )
                )
            case RankExited(generation=self.number) as gone:
                self._take_exit(agent, gone)
            case Ended(generation=self.number):
                # Ranks that it did not report were not started yet, because storage was away, say.
                self._ranks = {rank: one for rank, one in self._ranks.items() if one is not agent}
            case StoreUsed(generation=self.number):
                self._report_store_used()
            case ZygoteLost(generation=self.number) as lost:
                self.failures.append(from_lost_zygote(lost, node=agent.name))
            case Hello():
                self._restart_agents()

    def _restart_agents(self) -> None:
        """Restart missing agents, also of nodes without ranks, and plan to use new ones."""
        self._recover()
        self._see_newcomers()

    def _take_exit(self, agent: AgentHandle, gone: RankExited) -> None:
        self._ranks.pop(gone.rank, None)
        self._last_step = max(self._last_step, gone.step)
        agent.note_saved(gone.saved)
        self._times.leave(gone, time.monotonic())
        self._watch.forget(gone.rank)
        self._journal.note(
            events.RankExited(
                rank=gone.rank,
                generation=gone.generation,
                code=gone.code,
                signal=gone.signal,
                step=gone.step,
            )
        )
        if gone.code or gone.signal:
            log = self._log(gone.rank)
            self.failures.append(from_exit(gone, node=agent.name, log=log))

    def _lose(self, lost: Lost) -> None:
        ranks = [rank for rank, owner in self._ranks.items() if owner is lost.agent]
        for rank in ranks:
            del self._ranks[rank]
            self._times.lose(rank, time.monotonic())
        if ranks:
            self.failures.append(from_lost_agent(lost, generation=self.number))

    def _log(self, rank: int) -> Path:
        """Return the path of a rank's log, relative to the run directory."""
        journal = self._journal
        log = journal.run.rank_log(attempt=journal.attempt, generation=self.number, rank=rank)
        return log.relative_to(journal.run.path)

    # --- making room ----------------------------------------------------------------------------

    async def _make_room(self) -> None:
        """Let ranks save and exit at one place, so that the next generation can be larger.

        Nothing is forced before all wait there. Ranks that do not listen, or take too long to reach
        the place, continue; so do those that have never saved, since they may not be able to.
        """
        if any(agent.trains_unsaved for agent in self.agents):
            self._see_newcomers(ASK_AGAIN_S)
            return
        consensus = self._begin_consensus()
        until_s = (
            time.monotonic() + AGREE_S + 2 * max(agent.stop_interval_s for agent in self.agents)
        )
        while self._ranks and not self.failures and not self.stop:
            match event := await self._pool.next(until_s):
                case None:
                    break
                case Received(agent=agent, message=Place() as place):
                    order = consensus.hear(agent.node, place)
                    self._send_all(order)
                    if isinstance(order, Commit):
                        self._consensus = consensus
                        self._watch.end()  # saving is not a hang
                        save_s = max(agent.save_s for agent in self.agents)
                        until_s = time.monotonic() + SAVE_S + 2 * save_s
                    elif consensus.unresponsive:
                        break
                case _:
                    await self._notice(event)
        if self.stop or self.failures:
            return  # that is more urgent, and handled elsewhere
        if not consensus.committed:
            self._send_all(Propose(generation=self.number, place=WITHDRAWN))
            self._see_newcomers(ASK_AGAIN_S)
            self._report_waiting(consensus.unresponsive and bool(self._ranks))
        elif self._ranks:
            self.failures.append(from_standstill(min(self._ranks), generation=self.number))
        else:
            self._halt()
            self.made_room = True

    def _report_waiting(self, unresponsive: bool) -> None:
        """Report once that a node has no ranks because the others do not make room."""
        waiting = [one.name for one in self._pool.agents.values() if one not in self.agents]
        if unresponsive and waiting and not self._reported_waiting:
            self._reported_waiting = True
            why = "these ranks cannot make room; it joins at the next restart"
            self._journal.report(f"{', '.join(waiting)} is idle: {why}")

    # --- stopping -------------------------------------------------------------------------------

    async def _stop_together(self) -> None:
        """Let ranks that listen stop at one place, save, and exit.

        Others get a signal and a grace period. Those that start to listen only now, because their
        training is about to begin, can still reach a place in that time.
        """
        # They may be stopping already, to make room.
        consensus = self._consensus or self._begin_consensus()
        until_s, again_s = time.monotonic() + (SAVE_S if consensus.committed else AGREE_S), math.inf
        while self._ranks:
            match event := await self._pool.next(min(self._before(until_s), again_s)):
                case None if again_s <= time.monotonic() < self._before(until_s):
                    consensus, again_s = self._begin_consensus(), math.inf
                case None:
                    return
                case Lost(agent=agent) if agent in self.agents:
                    return
                case Received(agent=agent, message=Place() as place):
                    until_s = self._hear(consensus, agent, place, until_s)
                    if consensus.unresponsive:
                        again_s = min(again_s, time.monotonic() + AGAIN_S)
                case Stop() | Received(message=RankExited() | Ended()):
                    await self._notice(event)
            if self.stop and self.stop.at_once:
                return
        if not self.failures:
            self._take_stop(consensus)

    def _take_stop(self, consensus: StopConsensus) -> None:
        if consensus.committed:
            self._halt()
        elif self._gone_by_s is None:
            self.stop = None  # they were done before they reached the place

    def _halt(self) -> None:
        """Record where all ranks stopped, now that all have exited and none has failed."""
        self._journal.note(events.RanksStopped(generation=self.number, step=self._last_step))
        saved = max(
            newest_checkpoint(self._journal.run), *(one.pace.saved_high for one in self.agents)
        )
        how = "saved and stopped" if saved >= self._last_step else "stopped"
        self._halted = f"; all ranks {how} after step {self._last_step}"

    def _begin_consensus(self) -> StopConsensus:
        consensus = StopConsensus((agent.node for agent in self.agents), self.number)
        self._send_all(consensus.begin())
        return consensus

    def _hear(
        self, consensus: StopConsensus, agent: AgentHandle, place: Place, until_s: float
    ) -> float:
        """Take an agent's answer; return the new deadline of the ranks."""
        order = consensus.hear(agent.node, place)
        self._send_all(order)
        if isinstance(order, Commit):
            return time.monotonic() + SAVE_S
        paces = [one.pace for one in self.agents]
        early = are_about_to_listen(self.stop, paces, listened=self._listened)
        if consensus.unresponsive and self._gone_by_s is None and not early:
            ask = self._last_order(unresponsive=True)
            self._gone_by_s = time.monotonic() + ask.grace_s
            self._send_end({one.node for one in self.agents}, ask)
            return self._gone_by_s
        return until_s

    def _before(self, until_s: float) -> float:
        """Return a deadline, or the stop's own if it has one."""
        assert self.stop is not None
        return until_s if self.stop.deadline_s is None else self.stop.deadline_s

    def _send_all(self, order: Propose | Commit | None) -> None:
        if order:
            _log.info("ordered all nodes: %s", order)
        for agent in self.agents:
            if order and self._pool.has(agent):
                agent.link.say(order)

    async def _end(self) -> None:
        """End all ranks that are left; return when they have exited."""
        left = {agent.node for agent in self.agents if self._pool.has(agent)}
        order = self._last_order()
        self._send_end(left, order)
        deadline = time.monotonic() + order.grace_s + END_S
        latest = deadline + STORAGE_S
        while left:
            match await self._pool.next(deadline):
                case None if time.monotonic() < latest and self._is_held(left):
                    deadline = time.monotonic() + END_S
                case None:
                    for node in left & self._pool.agents.keys():
                        self._pool.agents[node].link.drop("it did not end its ranks")
                    return
                case Received(agent=agent, message=Ended(generation=self.number)):
                    left.discard(agent.node)
                case Lost(agent=agent):
                    left.discard(agent.node)
                case Received(agent=agent, message=RankExited() as gone):
                    self._take_late_exit(agent, gone)
                case Stop() as stop:
                    self.stop = stop
                    if stop.at_once:
                        self._send_end(left, End(generation=self.number))

    def _is_held(self, nodes: set[int]) -> bool:
        return any(self._pool.agents[node].held for node in nodes & self._pool.agents.keys())

    def _last_order(self, *, unresponsive: bool = False) -> End:
        """Return the order to end ranks, with a grace period if there is time."""
        if self._gone_by_s is not None and self.stop and not self.stop.at_once:  # they were asked
            left_s = max(0.0, self._gone_by_s - time.monotonic())
            return End(generation=self.number, grace_s=left_s)
        return order_end(
            self.number, self.stop, self._request if unresponsive else None, now_s=time.monotonic()
        )

    def _send_end(self, nodes: set[int], order: End) -> None:
        _log.info("ordered %d nodes: %s", len(nodes), order)
        for node in nodes & self._pool.agents.keys():
            self._pool.agents[node].link.say(order)

    def _take_late_exit(self, agent: AgentHandle, gone: RankExited) -> None:
        """Take the exit of a rank after the first failure, or of one that we ended."""
        agent.note_saved(gone.saved)
        if gone.generation == self.number:
            self._times.leave(gone, time.monotonic())
        if not (gone.code or gone.signal) or self.stop:
            return
        if gone.rank not in {known.rank for known in self.failures}:
            log = self._log(gone.rank)
            self.failures.append(from_late_exit(gone, node=agent.name, log=log))

    # --- hangs ----------------------------------------------------------------------------------

    def _begin_watch(self) -> None:
        """Watch for hangs: of the first zygote, before there are ranks, then of these."""
        self._watch.begin()
        self._pool.on_pulse = self._take_pulse

    def _take_pulse(self, pulse: Pulse) -> None:
        if hang := self._watch.take(pulse, time.monotonic()):
            self._pool.post(hang)

    async def _handle_hang(self, hang: Hang) -> None:
        """Find the cause, and record the stacks of all ranks; what follows is up to the user."""
        alive = set(self._ranks)
        known = await self._ask(ReadTraces(generation=self.number), Traces)
        traces = {int(r): decode_trace(one) for answer in known for r, one in answer.ranks.items()}
        if self.stop or self.failures or not self._ranks:
            return
        idle_s = hang.refuted_by(traces, self._request.hang_timeout_s)
        if idle_s is not None:
            self._watch.resume(hang, time.monotonic() - idle_s)
            return
        counts = {int(r): one for answer in known for r, one in answer.counts.items()}
        if cause := find_cause(traces, self._ranks.keys(), self._world_size, counts):
            hang = hang.with_cause(cause)
        answers = await self._ask(Dump(generation=self.number), StacksOfNode)
        if self.stop or self.failures:
            return
        if self._ranks.keys() != alive:  # they move on
            self._watch.resume(hang, time.monotonic())
            return
        stacks = {rank: script_frames(text) for one in answers for rank, text in one.ranks.items()}
        hang = hang.with_stacks(stacks)
        if self._watch.excuse(hang, stacks.get(str(hang.rank), ""), time.monotonic()):
            return
        if cause and (place := place_of(stacks.get(str(hang.rank), ""))).startswith("in "):
            hang = replace(hang, message=f"{hang.message}; it is {place}")
        if failure := self._report_hang(hang, stacks):
            self.failures.append(failure)
            self.stacks = stacks

    def _report_hang(self, hang: Hang, stacks: Mapping[str, str] = {}) -> Failure | None:
        """Report a hang; return the failure if it is to end the ranks."""
        # Before the ranks have an endpoint, the first node's zygote is the one that is awaited.
        owner = self._ranks.get(hang.rank) if self._ranks else self.agents[0]
        failure = from_hang(hang, node=owner.name if owner else "", stacks=stacks)
        verdict = replace(judge([failure]), stacks=stacks)
        self._journal.note(events.HangDetected.of(verdict))
        self._journal.leave_verdict(verdict)
        if self._request.on_hang != "report":
            return failure  # the verdict on this generation is reported next
        self._journal.report(f"{self._journal.run.run_id} hangs\n{render(verdict)}")
        return None

    async def _ask(self, order: ReadTraces | Dump, kind: type[M]) -> list[M]:
        """Return the agents' answers; handle what else happens meanwhile."""
        left = {agent.node for agent in self.agents if self._pool.has(agent)}
        for node in left:
            self._pool.agents[node].link.say(order)
        answers: list[M] = []
        while left and not self.stop:
            event = await self._pool.next()
            assert event is not None, "there is no deadline"
            match event:
                case Received(agent=agent, message=answer) if isinstance(answer, kind):
                    if answer.generation == self.number:
                        answers.append(answer)
                        left.discard(agent.node)
                    continue
                case Lost(agent=agent):
                    left.discard(agent.node)
            await self._notice(event)
        return answers
