"""One process per attempt, on the batch host: it owns the run's state.

An attempt is read here from top to bottom: wait for the agents, run a generation of ranks, and
another when that makes sense; leave a verdict and an outcome.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from echelon.core.events import EventWriter
from echelon.core.rundir import RunDir, write_atomic
from echelon.core.shell import LocalShell
from echelon.launch.contract import TIED
from echelon.launch.crew import Agent, Crew, Entry, Gone, Lost, Stop
from echelon.launch.hang import Hang, HangWatch, script_frames
from echelon.launch.meeting import Meeting, MeetingError, MeetingPlace, StopError, collect
from echelon.launch.messages import (
    Commit,
    Dump,
    End,
    Ended,
    Place,
    Propose,
    RankExited,
    RankStarted,
    Signalled,
    Start,
    ZygoteLost,
)
from echelon.launch.messages import Stacks as StacksOfNode
from echelon.launch.request import LaunchRequest, read_request
from echelon.launch.starting import Starter, choose_starter
from echelon.launch.stopping import Accord
from echelon.launch.verdict import (
    Failure,
    Verdict,
    classify_exit,
    decide_retry,
    is_victim,
    judge,
    last_traceback,
    render,
    to_record,
)

JOIN_S = 120.0
"""How long agents may take to come; on a large cluster some start late."""
CONFESS_S = 2.0
"""How long a victim's report waits for the cause's own, which may be busy cleaning up.

Taking apart an interpreter that holds torch is over a second of it, where we did not start it.
"""
AGREE_S = 30.0
"""How long ranks may take to come to the place where they stop."""
SAVE_S = 120.0
"""How long they may take to save, and go."""
STOP_GRACE_S = 3.0
"""What ranks get between being asked to stop and being killed."""
END_S = 10.0
"""How long an agent may take to end its ranks, beyond the grace."""
_PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class _Generation:
    number: int
    agents: list[Agent]
    ranks: dict[int, Agent] = field(default_factory=dict)
    """Those that have not gone."""
    failures: list[Failure] = field(default_factory=list)
    """In the order of their arrival."""
    stop: Stop | None = None
    stacks: dict[str, str] = field(default_factory=dict)


class Controller:
    """See the module."""

    def __init__(
        self,
        *,
        run: RunDir,
        attempt: int,
        request: LaunchRequest,
        starter: Starter,
        environ: Mapping[str, str],
        report: Callable[[str], None],
    ) -> None:
        self._run, self._attempt, self._request = run, attempt, request
        self._starter, self._environ, self._report = starter, environ, report
        self._events = EventWriter(run.events_of(f"controller-{attempt}"), clock=time.time)
        self._watch = HangWatch(request.hang_timeout_s)
        self._crew = Crew(starter, self._watch, self._note)
        self._place = MeetingPlace(self._crew)

    async def run(self) -> int:
        """Carry the attempt to its end and return the exit code for the job."""
        self._note("attempt", attempt=self._attempt, pid=os.getpid())
        # A job that was queued again is the same attempt; what its first start left is not ours.
        for stale in (self._run.outcome(self._attempt), self._run.verdict):
            with contextlib.suppress(OSError):
                stale.unlink()
        folder = self._run.attempt(self._attempt)
        try:
            await self._crew.start(self._run.path, self._attempt, folder, self._environ)
            verdict = await self._join() or await self._run_generations()
        finally:
            await self._crew.leave()
        code = 0
        if verdict is not None:
            code = verdict.failure.exit_code or 1
            self._leave_verdict(verdict)
            self._report(f"{self._run.run_id} failed\n{render(verdict, run=self._run.path)}")
        outcome = {"state": _state(verdict), "exit_code": code}
        self._note("ended", **outcome)
        try:
            write_atomic(self._run.outcome(self._attempt), json.dumps(outcome) + "\n")
        except OSError as error:  # whoever waits for us has the exit code
            self._report(f"cannot write how it ended: {error}")
        self._events.close()
        return code

    def _note(self, kind: str, **data: Any) -> None:
        with contextlib.suppress(OSError):  # a full disk must not end a run that can go on
            self._events.write(kind, **data)

    def _leave_verdict(self, verdict: Verdict) -> None:
        self._note("verdict", **to_record(verdict))
        with contextlib.suppress(OSError):
            write_atomic(self._run.verdict, json.dumps(to_record(verdict), indent=1) + "\n")

    async def _join(self) -> Verdict | None:
        """Wait for the agents; return a verdict when too few come."""
        deadline = time.monotonic() + JOIN_S
        awaited = set(range(self._starter.nodes))
        while not self._crew.agents.keys() >= awaited:
            match await self._crew.next(deadline):
                case None:
                    break
                case (_, Stop() as stop):
                    return judge([_stopped(stop)])
                case (_, Gone() as gone):
                    awaited -= gone.started.nodes
        if len(self._crew.agents) >= self._request.low:
            return None
        said = " ".join(_last_line(started.log) for started in self._crew.started).strip()
        came = f"{len(self._crew.agents)} of {self._starter.nodes} nodes came"
        return judge([Failure(cause="start", message=f"{came}: {said}", exit_code=69)])

    # --- generations ----------------------------------------------------------------------------

    async def _run_generations(self) -> Verdict | None:
        """Run generations until one succeeds, or another would make no sense."""
        earlier: list[Failure] = []
        while True:
            generation = await self._run_generation(len(earlier))
            if generation.stop:
                return judge([_stopped(generation.stop)])
            if not generation.failures:
                return None
            verdict = judge(generation.failures)
            why_not = decide_retry(
                verdict.failure,
                earlier,
                restarts=self._request.restarts,
                nodes=len(self._crew.agents),
                low=self._request.low,
                stop_on_hang=self._request.on_hang == "stop",
            )
            if why_not:
                return replace(verdict, not_retried=why_not, stacks=generation.stacks)
            earlier.append(verdict.failure)
            self._note("restart", generation=len(earlier), verdict=to_record(verdict))
            told = render(verdict, run=self._run.path)
            self._report(f"restart {len(earlier)} of {self._request.restarts}: {told}")

    async def _run_generation(self, number: int) -> _Generation:
        agents = [self._crew.agents[node] for node in sorted(self._crew.agents)]
        generation = _Generation(number=number, agents=agents)
        try:
            meeting = await self._place.find(agents, number)
        except MeetingError as error:
            generation.failures.append(error.failure)
        except StopError as error:
            generation.stop = error.stop
        else:
            self._start_ranks(generation, meeting)
            await self._watch_ranks(generation)
        return generation

    def _start_ranks(self, generation: _Generation, meeting: Meeting) -> None:
        agents = generation.agents
        counts = [
            self._request.procs or agent.hello.gpus or self._starter.ranks(agent.node)
            for agent in agents
        ]
        first = 0
        for node_rank, (agent, count) in enumerate(zip(agents, counts, strict=True)):
            generation.ranks |= dict.fromkeys(range(first, first + count), agent)
            agent.link.say(
                Start(
                    generation=generation.number,
                    node_rank=node_rank,
                    nodes=len(agents),
                    first_rank=first,
                    count=count,
                    world_size=sum(counts),
                    address=meeting.address,
                    port=meeting.port,
                    served=meeting.served,
                )
            )
            first += count
        self._note("generation", generation=generation.number, world_size=first, nodes=len(agents))
        self._watch.begin(generation.number)

    async def _watch_ranks(self, generation: _Generation) -> None:
        """Wait until all ranks have gone well, or for the first trouble; then end what is left."""
        deadline: float | None = None
        while generation.ranks and not generation.stop:
            entry = await self._crew.next(deadline)
            if entry is None:
                break  # the time for confessions is over
            await self._notice(generation, entry)
            if not all(is_victim(failure) for failure in generation.failures):
                break
            if generation.failures:
                deadline = deadline or time.monotonic() + CONFESS_S
        self._watch.end()
        if generation.stop and not generation.stop.at_once:
            await self._stop_together(generation)
        await self._end_ranks(generation)

    async def _notice(self, generation: _Generation, entry: Entry) -> None:
        match entry:
            case (Agent(), RankStarted() as rank):
                self._note(
                    "rank", rank=rank.rank, generation=rank.generation, pid=rank.pid, warm=rank.warm
                )
            case (Agent() as agent, RankExited() as gone) if gone.generation == generation.number:
                generation.ranks.pop(gone.rank, None)
                self._watch.forget(gone.rank)
                self._note(
                    "exited",
                    rank=gone.rank,
                    generation=gone.generation,
                    code=gone.code,
                    signal=gone.signal,
                )
                if gone.code or gone.signal:
                    generation.failures.append(self._failure(agent, gone))
            case (Agent() as agent, ZygoteLost() as lost) if lost.generation == generation.number:
                generation.failures.append(_bereaved(agent, lost))
            case (Agent() as agent, Lost() as lost) if agent in generation.agents:
                self._lose(generation, agent, lost.reason)
            case (Agent() as agent, Signalled(signal=signal.SIGTERM)):
                message = f"{agent.name} was told to stop (SIGTERM)"
                generation.stop = Stop("preemption", message, 128 + signal.SIGTERM, at_once=False)
            case (_, Stop() as stop):
                generation.stop = stop
            case (_, Hang() as hang) if hang.generation == generation.number:
                await self._be_hung(generation, hang)

    def _lose(self, generation: _Generation, agent: Agent, reason: str) -> None:
        lost = [rank for rank, owner in generation.ranks.items() if owner is agent]
        for rank in lost:
            del generation.ranks[rank]
        if lost:
            generation.failures.append(
                Failure(
                    cause="lost node",
                    message=f"its agent is gone: {reason}",
                    node=agent.name,
                    generation=generation.number,
                )
            )

    def _failure(self, agent: Agent, gone: RankExited) -> Failure:
        cause, message = classify_exit(
            code=gone.code,
            number=gone.signal,
            error=gone.error,
            tail=gone.tail,
            out_of_memory=gone.out_of_memory,
        )
        log = self._run.rank_log(attempt=self._attempt, generation=gone.generation, rank=gone.rank)
        return Failure(
            cause=cause,
            message=message,
            rank=gone.rank,
            node=agent.name,
            step=gone.step if gone.step >= 0 else None,
            exit_code=128 + gone.signal if gone.signal else gone.code,
            error_type=str(gone.error.get("type", "")),
            traceback=str(gone.error.get("traceback", "")) or last_traceback(gone.tail),
            log=str(log.relative_to(self._run.path)),
            generation=gone.generation,
        )

    async def _stop_together(self, generation: _Generation) -> None:
        """Have ranks that listen stop at one place, save, and go; others are ended as they are."""
        accord = Accord((agent.node for agent in generation.agents), generation.number)
        self._tell_all(generation, accord.begin())
        deadline, step = time.monotonic() + AGREE_S, -1
        while generation.ranks and not accord.deaf:
            match await self._crew.next(deadline):
                case None | (Agent(), Lost()):
                    return
                case (Agent() as agent, Place() as place):
                    if order := accord.hear(agent.node, place):
                        self._tell_all(generation, order)
                    if accord.committed:
                        deadline = time.monotonic() + SAVE_S
                case (_, Stop(at_once=True) as stop):
                    generation.stop = stop
                    return
                case (Agent() as agent, RankExited() as gone):
                    step = max(step, gone.step)
                    await self._notice(generation, (agent, gone))
        if generation.ranks or generation.failures:
            return
        if accord.committed:
            self._note("stopped", generation=generation.number, step=step)
            assert generation.stop is not None
            said = f"{generation.stop.message}; all ranks stopped after step {step}, and saved"
            generation.stop = replace(generation.stop, message=said)
        else:
            generation.stop = None  # they were done before they came to the place

    def _tell_all(self, generation: _Generation, order: Propose | Commit) -> None:
        for agent in generation.agents:
            if self._crew.has(agent):
                agent.link.say(order)

    async def _end_ranks(self, generation: _Generation) -> None:
        """End what is left of a generation, everywhere; return when all of it is gone."""
        left = {agent.node for agent in generation.agents if self._crew.has(agent)}
        grace_s = STOP_GRACE_S if generation.stop and not generation.stop.at_once else 0.0
        self._order_end(left, End(generation=generation.number, grace_s=grace_s))
        deadline = time.monotonic() + grace_s + END_S
        while left:
            match await self._crew.next(deadline):
                case None:
                    for node in left & self._crew.agents.keys():
                        self._crew.agents[node].link.drop("it did not end its ranks")
                    return
                case (Agent() as agent, Ended(generation=generation.number) | Lost()):
                    left.discard(agent.node)
                case (Agent() as agent, RankExited() as gone):
                    self._notice_late(generation, agent, gone)
                case (_, Stop() as stop):
                    generation.stop = stop
                    if stop.at_once:
                        self._order_end(left, End(generation=generation.number))

    def _order_end(self, nodes: set[int], order: End) -> None:
        for node in nodes & self._crew.agents.keys():
            self._crew.agents[node].link.say(order)

    def _notice_late(self, generation: _Generation, agent: Agent, gone: RankExited) -> None:
        """Add ranks that fell after the first: by themselves, or because we ended them."""
        if not (gone.code or gone.signal) or generation.stop:
            return
        ours = gone.signal == signal.SIGKILL
        if ours and gone.error:
            # It had failed by itself, and we ended what it did at its exit.
            failure = self._failure(agent, replace(gone, code=1, signal=0))
        else:
            failure = self._failure(agent, gone)
            if ours:
                failure = replace(failure, cause="ended", message="ended with its generation")
        if gone.rank not in {known.rank for known in generation.failures}:
            generation.failures.append(failure)

    # --- hangs ----------------------------------------------------------------------------------

    async def _be_hung(self, generation: _Generation, hang: Hang) -> None:
        """Have all stacks written down; what follows is the user's choice."""
        here = [agent for agent in generation.agents if self._crew.has(agent)]
        for agent in here:
            agent.link.say(Dump(generation=generation.number))
        try:
            answers = await collect(self._crew, here, StacksOfNode, generation.number, needed=here)
        except MeetingError as error:
            generation.failures.append(error.failure)
            return
        except StopError as error:
            generation.stop = error.stop
            return
        told = [pair for answer in answers.values() for pair in answer.ranks.items()]
        stacks = {rank: script_frames(text) for rank, text in told}
        hang = hang.with_stacks(stacks)
        owner = generation.ranks.get(hang.rank)
        failure = Failure(
            cause="hang",
            message=hang.message,
            rank=hang.rank,
            node=owner.name if owner else "",
            step=hang.step if hang.step >= 0 else None,
            traceback=stacks.get(str(hang.rank), ""),
            generation=generation.number,
        )
        verdict = replace(judge([failure]), stacks=stacks)
        self._note("hang", **to_record(verdict))
        self._leave_verdict(verdict)
        self._report(f"{self._run.run_id} hangs\n{render(verdict)}")
        if self._request.on_hang != "report":
            generation.failures.append(failure)
            generation.stacks = stacks


def _bereaved(agent: Agent, lost: ZygoteLost) -> Failure:
    """Return the failure of a node whose ranks have died with their zygote."""
    cause, how = classify_exit(
        code=lost.code, number=lost.signal, error={}, tail="", out_of_memory=lost.out_of_memory
    )
    return Failure(
        cause=cause,
        message=f"its zygote is gone, and its ranks with it: {how}",
        node=agent.name,
        exit_code=128 + lost.signal if lost.signal else lost.code,
        generation=lost.generation,
    )


def _stopped(stop: Stop) -> Failure:
    return Failure(cause=stop.cause, message=stop.message, exit_code=stop.exit_code)


def _state(verdict: Verdict | None) -> str:
    if verdict is None:
        return "COMPLETED"
    states = {"cancelled": "CANCELLED", "preemption": "PREEMPTED"}
    return states.get(verdict.failure.cause, "FAILED")


def _last_line(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _die_with(command: int) -> None:
    """Have the kernel tell us when the command that we belong to goes, however it goes."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGHUP)
    if os.getppid() != command:
        os.kill(os.getpid(), signal.SIGHUP)


def main(arguments: list[str]) -> int:
    """Carry out an attempt of a run: `controller RUN ATTEMPT`; the next one when it is empty."""
    path, number = arguments
    run = RunDir.open(Path(path).absolute())
    attempt = int(number) if number else run.claim_attempt()
    request = read_request(run)
    environ = dict(os.environ)
    if command := environ.pop(TIED, ""):
        _die_with(int(command))
    starter = choose_starter(LocalShell(), environ, nodes=request.high)

    def report(text: str) -> None:
        with contextlib.suppress(OSError):  # on a full disk too a run goes on, or ends, as it would
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    async def carry() -> int:
        controller = Controller(
            run=run,
            attempt=attempt,
            request=request,
            starter=starter,
            environ=environ,
            report=report,
        )
        return await controller.run()

    return asyncio.run(carry())
