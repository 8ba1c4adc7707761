"""One process per attempt, on the batch host: it owns the run's state.

An attempt is read here from top to bottom: wait for the agents, run a generation of ranks, and
another when that makes sense; leave a verdict and an outcome.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from echelon.core.rundir import RunDir
from echelon.core.shell import LocalShell
from echelon.launch.contract import TIED
from echelon.launch.crew import Agent, Crew, Gone, Stop
from echelon.launch.generation import Generation
from echelon.launch.hang import HangWatch
from echelon.launch.journal import Journal, write_error
from echelon.launch.meeting import MeetingError, MeetingPlace, StopError
from echelon.launch.request import LaunchRequest, read_request
from echelon.launch.starting import Starter, choose_starter
from echelon.launch.verdict import (
    Failure,
    Verdict,
    decide_retry,
    judge,
    render,
    to_record,
)

JOIN_S = 120.0
"""How long agents may take to come; on a large cluster some start late."""
_PR_SET_PDEATHSIG = 1


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
        say: Callable[[str], None],
    ) -> None:
        self._run, self._attempt, self._request = run, attempt, request
        self._starter, self._environ = starter, environ
        self._journal = Journal(run, attempt, say)
        self._watch = HangWatch(request.hang_timeout_s)
        self._crew = Crew(starter, self._watch, self._journal.note)
        self._place = MeetingPlace(self._crew)

    async def run(self) -> int:
        """Carry the attempt to its end and return the exit code for the job."""
        journal = self._journal
        journal.note("attempt", attempt=self._attempt, pid=os.getpid())
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
            journal.leave_verdict(verdict)
            journal.report(f"{self._run.run_id} failed\n{render(verdict, run=self._run.path)}")
        journal.leave_outcome({"state": _state(verdict), "exit_code": code})
        journal.close()
        return code

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
            self._journal.note("restart", generation=len(earlier), verdict=to_record(verdict))
            told = render(verdict, run=self._run.path)
            self._journal.report(f"restart {len(earlier)} of {self._request.restarts}: {told}")

    async def _run_generation(self, number: int) -> Generation:
        agents = [self._crew.agents[node] for node in sorted(self._crew.agents)]
        generation = Generation(
            number,
            agents,
            request=self._request,
            journal=self._journal,
            crew=self._crew,
            watch=self._watch,
        )
        try:
            meeting = await self._place.find(agents, number)
        except MeetingError as error:
            generation.failures.append(error.failure)
        except StopError as error:
            generation.stop = error.stop
        else:
            await generation.run(meeting, self._ranks_of)
        return generation

    def _ranks_of(self, agent: Agent) -> int:
        return self._request.procs or agent.hello.gpus or self._starter.ranks(agent.node)


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

    async def carry() -> int:
        controller = Controller(
            run=run,
            attempt=attempt,
            request=request,
            starter=starter,
            environ=environ,
            say=write_error,
        )
        return await controller.run()

    return asyncio.run(carry())
