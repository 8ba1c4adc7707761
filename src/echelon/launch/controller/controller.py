"""One process per attempt, on the batch host: it owns the run's state.

An attempt reads from top to bottom: wait for the agents, run a generation of ranks, run another one
if that makes sense, write a verdict and an outcome.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from echelon.core.units import list_names
from echelon.errors import EchelonError
from echelon.launch.backends.base import RESERVE_S, SUPERSEDED, Backend, lead_from
from echelon.launch.backends.stop import Stop, StopError
from echelon.launch.controller.agent_recovery import AgentRecovery, report_crash
from echelon.launch.controller.failures import decide_retry, too_few_nodes
from echelon.launch.controller.finalize import Finalizer, as_failure
from echelon.launch.controller.generation import Generation
from echelon.launch.controller.membership import Membership
from echelon.launch.controller.rendezvous import Rendezvous, RendezvousError
from echelon.launch.controller.slots import Slots
from echelon.launch.doctor.preflight import run_preflight
from echelon.launch.pool.agent_pool import AgentPool
from echelon.launch.pool.controller_events import AgentHandle
from echelon.launch.protocol.messages import Pace
from echelon.launch.protocol.rank_environment import job_in
from echelon.launch.roles import role_command
from echelon.run import events
from echelon.run.attempts import is_superseded
from echelon.run.history import History, has_written, newest_checkpoint
from echelon.run.journal import Journal
from echelon.run.node_record import NodeRecord
from echelon.run.verdict import Failure, Verdict, judge, render
from echelon.spec.job_spec import JobSpec

_log = logging.getLogger(__name__)
_FENCE_S = 5.0
"""How often we check whether another attempt has started."""
_LOOK_S = 10.0
"""How long to look for files that a script wrote: storage may not respond."""
_SIGNAL_S = 0.1
"""After a command of ours has failed: how soon a signal that may have ended it is known here."""
_NOT_EXAMINED = """\
warning: preflight had no effect: it excludes nodes of a Slurm job, and this run has none
hint: to examine this machine, run: echelon doctor"""


class Controller:
    """See the module."""

    def __init__(
        self,
        *,
        request: JobSpec,
        environ: Mapping[str, str],
        agent_arguments: Sequence[str],
        uses_library: bool,
        backend: Backend,
        journal: Journal,
        history: History,
        record: NodeRecord,
        pool: AgentPool,
        slots: Slots,
        recovery: AgentRecovery,
        membership: Membership,
        rendezvous: Rendezvous,
        make_generation: Callable[[int, Sequence[AgentHandle]], Generation],
        finalizer: Finalizer,
    ) -> None:
        self._request, self._environ, self._agent_arguments = request, environ, agent_arguments
        self._backend, self._journal, self._record = backend, journal, record
        self._pool, self._slots, self._recovery = pool, slots, recovery
        self._membership, self._rendezvous = membership, rendezvous
        self._make_generation, self._finalizer = make_generation, finalizer
        self._run, self._attempt = journal.run, journal.attempt
        self._failures = list(history.failures)
        """Failures of the whole run that cost a restart."""
        self._uses_library = uses_library
        """Whether the script is known to use Echelon's library."""
        self._has_begun = False
        """Whether this attempt has started ranks."""

    async def run(self) -> int:
        """Carry out the attempt and return the exit code of the job."""
        journal, saved_before, began_s = self._journal, newest_checkpoint(self._run), time.time()
        journal.note(
            events.AttemptStarted(
                attempt=self._attempt,
                pid=os.getpid(),
                job=job_in(self._environ),
                saved=saved_before,
                slots=self._count_slots(),
                restarts=self._request.allowed_restarts(uses_library=self._uses_library),
            )
        )
        with contextlib.suppress(OSError):
            self._run.verdict.unlink()  # of an earlier attempt
        self._finalizer.prepare()
        loop = asyncio.get_running_loop()
        watching = {
            "the watch of the allocation": self._backend.allocation.watch(self._pool.post, self),
            "the watch for another attempt": self._await_successor(),
        }
        tasks = [report_crash(loop.create_task(w), name, journal) for name, w in watching.items()]
        try:
            verdict = await self._gather()
            if verdict is None:
                await self._backend.allocation.await_grant()
                verdict = await self._run_generations()
        except StopError as error:  # while waiting for nodes
            verdict = judge([as_failure(await self._finalizer.explain(error.stop))])
        finally:
            self._backend.allocation.release()
            for task in tasks:
                task.cancel()
            self._recovery.close()
            await self._pool.leave()
        if trouble := self._record.close():
            journal.report(trouble)
        saved = self._newest_saved()
        outcome = await self._finalizer.conclude(
            verdict,
            failures=self._failures,
            restarts=self._restarts(),
            nodes=len(self._pool.agents),
            saved=saved,
            progress=await self._find_progress(saved, saved_before, began_s),
        )
        self._finalizer.record_pending_notice(outcome, verdict)
        journal.leave_outcome(outcome)
        self._finalizer.notify(outcome, verdict)
        journal.close()
        await self._backend.standby.leave()
        return outcome.exit_code

    async def _await_successor(self) -> None:
        """Stop at once if another attempt has started: Slurm assumes that we are dead.

        This happens if our host is cut off from the cluster, but not from the storage.
        """
        while True:
            await asyncio.sleep(_FENCE_S)
            with contextlib.suppress(OSError):
                if await asyncio.to_thread(is_superseded, self._run, self._attempt):
                    self._pool.post(SUPERSEDED)
                    return

    async def _confirm(self, stop: Stop) -> Stop:
        """Ask once more who signalled the agents, now that ranks have stopped.

        If Slurm was too slow to answer before, the signal was taken for a preemption. If a user has
        cancelled the run, no job must continue it.
        """
        return await self._finalizer.explain(stop) if stop.cause == "preemption" else stop

    def _newest_saved(self) -> int:
        """Return the step from which a next attempt would continue; -1 if nothing is saved.

        Checkpoints may be outside the run directory. Ranks report those.
        """
        return max([newest_checkpoint(self._run), *(pace.saved_high for pace in self._paces())])

    async def _find_progress(self, saved: int, saved_before: int, began_s: float) -> str:
        """Return what shows that the attempt made progress; empty if nothing does."""
        if saved > saved_before:
            return "checkpoint"
        if saved >= 0:
            return ""
        # A script that reports no checkpoints may still write some.
        look = partial(has_written, Path(self._request.chdir), began_s, run=self._run)
        with contextlib.suppress(TimeoutError, OSError):
            if await asyncio.wait_for(asyncio.to_thread(look), _LOOK_S):
                return "files"
        return ""

    # --- what the allocation has to know (`View`) -----------------------------------------------

    def lead_s(self) -> float:
        """Return how long before the end of the job its ranks have to be told.

        Ranks that use the library need time to reach a point where they can stop, and to save.
        Others get their grace period if the next job continues from what they save in it, and
        otherwise only the lead that the user asked for.
        """
        if self._listen():
            return max(self._request.limit_lead_s, lead_from(self._paces()))
        return max(
            self._request.limit_lead_s,
            self._request.grace_s + 2 * RESERVE_S if self._save() else 0.0,
        )

    def can_move(self) -> bool:
        """Tell whether another job would continue the run from where it is.

        Draining a node does not end its jobs, so a program that does not save when it is told to
        stop had better stay.
        """
        return self._backend.standby.assured() and (self._listen() or self._save())

    def _paces(self) -> list[Pace]:
        return [agent.pace for agent in self._pool.agents.values()]

    def _listen(self) -> bool:
        """Tell whether ranks train with the library."""
        return any(pace.stop_interval_us >= 0 for pace in self._paces())

    def _save(self) -> bool:
        """Tell whether ranks save by themselves, as the user declared."""
        return self._request.hand_over in ("always", "requeue")

    def nodes(self) -> list[str]:
        return [agent.name for agent in self._pool.agents.values()]

    # --- the beginning --------------------------------------------------------------------------

    async def _gather(self) -> Verdict | None:
        """Start the agents and wait for them; return why there are too few, if so."""
        folder = self._run.attempt(self._attempt)
        try:
            await self._examine_nodes()
            await self._pool.start(
                role_command("agent", *self._agent_arguments),
                folder,
                self._environ,
                arguments=self._agent_arguments,
            )
            failures = await self._membership.await_all()
        except EchelonError as error:  # Slurm does not answer, say
            # scancel signals all processes of a batch script, also a command that we have called.
            await asyncio.sleep(_SIGNAL_S)
            if self._pool.signalled:
                raise StopError(self._pool.signalled) from error
            failures = [Failure(cause="start", message=error.message, exit_code=69)]
        finally:
            self._journal.note(events.SlotsCounted(slots=self._count_slots()))
        return judge(failures) if failures else None

    async def _examine_nodes(self) -> None:
        """Examine the nodes first, if requested and if any of them could be excluded."""
        if self._request.preflight and not self._backend.is_shared:
            self._journal.report(_NOT_EXAMINED)
        elif self._request.preflight:
            starter = self._backend.starter
            hosts = [starter.host(node) for node in range(starter.nodes)]
            left_s = await self._backend.allocation.left_s()
            await run_preflight(
                self._pool, self._journal, hosts, environ=self._environ, left_s=left_s
            )

    def _count_slots(self) -> int:
        return self._slots.total(self._recovery.departed)

    # --- generations ----------------------------------------------------------------------------

    async def _run_generations(self) -> Verdict | None:
        """Run generations until one succeeds, or another one would make no sense."""
        number, self._has_begun = 0, True
        while True:
            generation = await self._run_generation(number)
            if generation.stop:
                return judge([as_failure(await self._confirm(generation.stop))])
            if generation.made_room:
                if ended := await self._grow():
                    return ended
                number += 1
                continue
            if not generation.failures:
                return None
            verdict = judge(generation.failures)
            verdict = replace(verdict, failure=replace(verdict.failure, saved=self._newest_saved()))
            verdict = self._name_neighbours(verdict)
            await self._blame(verdict.failure)
            left = self._backend.starter.nodes - len(self._pool.unfit)
            why_not = self._decide_retry(verdict.failure, nodes=left)
            if not why_not:  # else there is no need to wait for nodes
                await self._membership.await_missing()
                why_not = self._decide_retry(verdict.failure, nodes=len(self._pool.agents))
            if why_not:
                _log.info("no further generation: %s", why_not)
                return replace(verdict, not_retried=why_not, stacks=generation.stacks)
            number += 1
            self._failures.append(verdict.failure)
            self._journal.note(events.RestartDecided(generation=number, verdict=verdict))
            text = render(verdict, run=self._run.path)
            used = f"restart {len(self._failures)} of {self._restarts()}"
            self._journal.report(f"{used}: {text}")

    def _name_neighbours(self, verdict: Verdict) -> Verdict:
        """Return a verdict that names the other runs which can have used up a node's memory."""
        failure = verdict.failure
        others = sorted(self._backend.neighbours(failure.node))
        if failure.cause != "out of memory" or not failure.node or not others:
            return verdict
        shared = f"{failure.message}; its memory was shared with {list_names(others)}"
        return replace(verdict, failure=replace(failure, message=shared))

    async def _grow(self) -> Verdict | None:
        """Continue with more nodes, which costs no restart; return why that fails, if so."""
        await self._membership.await_missing()
        nodes = len(self._pool.agents)
        if not self._membership.has_enough():
            message = too_few_nodes(nodes, self._request.nodes.low)
            return judge([Failure(cause="lost node", message=message)])
        self._journal.report(f"{self._run.run_id} continues with {nodes} nodes")
        return None

    def _decide_retry(self, failure: Failure, *, nodes: int) -> str:
        """Return why ranks are not started again on so many nodes; empty if they are."""
        return decide_retry(
            failure,
            self._failures,
            restarts=self._restarts(),
            insists=self._request.restarts is not None,
            nodes=nodes,
            low=self._request.nodes.low,
            stop_on_hang=self._request.on_hang == "stop",
        )

    def _restarts(self) -> int | None:
        """Return how many restarts the run may have; None: none, because none were requested."""
        known = self._uses_library or self._listen() or self._newest_saved() >= 0
        # A script that was not started yet, for want of good nodes, has nothing to begin anew.
        return self._request.allowed_restarts(uses_library=known or not self._has_begun)

    async def _blame(self, failure: Failure) -> None:
        """Record a failure that a node caused, unless it is us who cannot reach the cluster."""
        if failure.cause != "lost node" or await self._backend.allocation.reaches_cluster():
            self._record.blame(failure)

    async def _run_generation(self, number: int) -> Generation:
        agents = [self._pool.agents[node] for node in sorted(self._pool.agents)]
        generation = self._make_generation(number, agents)
        try:
            endpoint = await generation.find_endpoint(self._rendezvous)
        except RendezvousError as error:
            generation.failures.append(error.failure)
        except StopError as error:
            generation.stop = await self._finalizer.explain(error.stop)
        else:
            await generation.run(endpoint, self._slots.of)
        return generation
