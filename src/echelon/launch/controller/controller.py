"""One process per attempt, on the batch host: it owns the run's state.

An attempt is read here from top to bottom: wait for the agents, run a generation of ranks, and
another when that makes sense; leave a verdict and an outcome.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import replace

from echelon.errors import EchelonError
from echelon.launch.agent.node_check import COMMAND_S
from echelon.launch.backends.base import RESERVE_S, SUPERSEDED, Allocation, Starter, lead_from
from echelon.launch.controller.agent_recovery import AgentRecovery
from echelon.launch.controller.failures import decide_retry
from echelon.launch.controller.finalize import Conclusion
from echelon.launch.controller.generation import Generation
from echelon.launch.controller.membership import Membership
from echelon.launch.controller.notify import Notifier
from echelon.launch.controller.rendezvous import Rendezvous, RendezvousError
from echelon.launch.controller.succession import Succession
from echelon.launch.doctor.preflight import fly
from echelon.launch.pool.agent_pool import AgentPool
from echelon.launch.pool.controller_events import Agent
from echelon.launch.pool.hang import HangWatch
from echelon.launch.protocol.rank_environment import job_in
from echelon.launch.protocol.stop import Stop, StopError
from echelon.launch.roles import role_command
from echelon.run import events
from echelon.run.attempts import is_left_behind, is_superseded
from echelon.run.directory import RunDir
from echelon.run.history import newest_checkpoint, read_history
from echelon.run.journal import Journal
from echelon.run.node_record import NodeRecord, cluster_name, record_path
from echelon.run.verdict import Failure, Verdict, judge, render
from echelon.spec.job_spec import JobSpec

_FENCE_S = 5.0
"""How often we look whether another attempt has begun."""


class Controller:
    """See the module."""

    def __init__(
        self,
        *,
        run: RunDir,
        attempt: int,
        request: JobSpec,
        digest: str,
        starter: Starter,
        allocation: Allocation,
        succession: Succession,
        notifier: Notifier,
        environ: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        self._run, self._attempt, self._request, self._digest = run, attempt, request, digest
        self._starter, self._environ = starter, environ
        self._allocation, self._succession = allocation, succession
        self._journal = Journal(run, attempt, say)
        self._watch = HangWatch(request.hang_timeout_s)
        self._crew = AgentPool(starter, self._watch, self._journal.note, self._journal.report)
        self._place = Rendezvous(self._crew)
        self._history = read_history(run, attempt)
        self._failures = list(self._history.failures)
        """Of the whole run: what cost a restart."""
        self._saved = newest_checkpoint(run)
        """When this attempt began."""
        self._record = NodeRecord(
            record_path(cluster_name(environ), environ), run.run_id, keep_s=request.forgive_after_s
        )
        self._conclusion = Conclusion(
            run=run,
            request=request,
            history=self._history,
            succession=succession,
            journal=self._journal,
            notifier=notifier,
            environ=environ,
        )
        self._recall = AgentRecovery(
            self._crew,
            starter,
            allocation,
            departed=self._note_departed,
            tell_fault=self._tell_fault,
            report=self._journal.report,
            check_s=COMMAND_S if request.node_check else 0.0,
        )
        self._joining = Membership(
            self._crew,
            starter,
            self._recall,
            request=request,
            journal=self._journal,
            blame=self._record.blame,
        )

    async def run(self) -> int:
        """Carry the attempt to its end and return the exit code for the job."""
        journal = self._journal
        journal.note(
            events.AttemptStarted(
                attempt=self._attempt,
                pid=os.getpid(),
                job=job_in(self._environ),
                saved=self._saved,
                slots=self._slots(),
            )
        )
        with contextlib.suppress(OSError):
            self._run.verdict.unlink()  # why an earlier attempt has failed
        self._conclusion.prepare()
        loop = asyncio.get_running_loop()
        watching = [
            loop.create_task(self._allocation.watch(self._crew.post, self)),
            loop.create_task(self._await_successor()),
        ]
        for task in watching:
            task.add_done_callback(self._tell_fault)
        try:
            verdict = await self._gather() or await self._run_generations()
        except StopError as error:  # while nodes were waited for
            verdict = judge([_stopped(await self._explain(error.stop))])
        finally:
            for task in watching:
                task.cancel()
            self._recall.close()
            await self._crew.leave()
        if trouble := self._record.close():
            journal.report(trouble)
        saved = self._newest_saved()
        outcome = await self._conclusion.reach(
            verdict,
            failures=self._failures,
            nodes=len(self._crew.agents),
            saved=saved,
            progress=saved > self._saved,
        )
        self._conclusion.promise(outcome, verdict)
        journal.leave_outcome(outcome)
        self._conclusion.notify(outcome, verdict)
        journal.close()
        await self._succession.leave()
        return outcome.exit_code

    def _tell_fault(self, task: asyncio.Task[None]) -> None:
        """Say that something watches no more; the run itself can go on."""
        if not task.cancelled() and (error := task.exception()):
            self._journal.report(f"a fault of Echelon's own: {type(error).__name__}: {error}")

    async def _await_successor(self) -> None:
        """Stop at once when another attempt has begun: Slurm takes us for dead, and may be right.

        So it is with a host that is cut off from the cluster, but not from the storage.
        """
        while True:
            await asyncio.sleep(_FENCE_S)
            with contextlib.suppress(OSError):
                if await asyncio.to_thread(is_superseded, self._run, self._attempt):
                    self._crew.post(SUPERSEDED)
                    return

    async def _explain(self, stop: Stop) -> Stop:
        """Return a stop in the cluster's words."""
        explained = await self._allocation.explain(stop)
        if explained.cause == "cancelled":
            if await asyncio.to_thread(is_left_behind, self._run, self._attempt):
                return SUPERSEDED
            self._conclusion.withdraw()
        return explained

    async def _confirm(self, stop: Stop) -> Stop:
        """Ask once more who has signalled agents, now that ranks have stopped.

        A Slurm that is slow may have had no answer when they waited for it, and then it looks as if
        it preempted us: who has cancelled a run wants nobody to go on.
        """
        return await self._explain(stop) if stop.cause == "preemption" else stop

    def _newest_saved(self) -> int:
        """Return the step that a next attempt would go on from; -1 when nothing is saved.

        Checkpoints may be elsewhere than in the run's own folder: then ranks have said so.
        """
        return max([newest_checkpoint(self._run), *(saved for *_, saved in self._paces())])

    # --- what the allocation has to know (`View`) -----------------------------------------------

    def lead_s(self) -> float:
        """Return how long before the end of the job its ranks have to be told.

        Ranks that listen need to come to a place where they can stop, and to save; others get their
        grace if a next job is to go on from what they then save, and otherwise all the time that
        Slurm gives them.
        """
        if self._listen():
            return max(self._request.limit_lead_s, lead_from(self._paces()))
        return max(
            self._request.limit_lead_s,
            self._request.grace_s + 2 * RESERVE_S if self._save() else 0.0,
        )

    def can_move(self) -> bool:
        """Tell whether the run would go on elsewhere, from where it is.

        A node that is drained ends nobody's job. A program that does not save when it is told to
        stop is better off where it is.
        """
        return self._succession.assured() and (self._listen() or self._save())

    def _paces(self) -> list[list[int]]:
        return [agent.pace for agent in self._crew.agents.values() if agent.pace]

    def _listen(self) -> bool:
        """Tell whether ranks train with the library."""
        return any(way_us >= 0 for _, way_us, *_ in self._paces())

    def _save(self) -> bool:
        """Tell whether the user says that ranks save by themselves."""
        return self._request.hand_over in ("always", "requeue")

    def nodes(self) -> list[str]:
        return [agent.name for agent in self._crew.agents.values()]

    # --- the beginning --------------------------------------------------------------------------

    async def _gather(self) -> Verdict | None:
        """Have agents started, and wait for them; return why there are not enough, if so."""
        argv = role_command("agent", self._run.path, self._attempt, self._digest)
        try:
            await self._fly()
            await self._crew.start(argv, self._run.attempt(self._attempt), self._environ)
            failures = await self._joining.await_all()
        except EchelonError as error:  # Slurm does not answer, say
            failures = [Failure(cause="start", message=error.message, exit_code=69)]
        finally:
            self._journal.note(events.SlotsCounted(slots=self._slots()))
        return judge(failures) if failures else None

    async def _fly(self) -> None:
        """Have nodes examined where that is wanted; of one's own machine none can be left out."""
        if self._request.preflight and "SLURM_JOB_ID" in self._environ:
            hosts = [self._starter.host(node) for node in range(self._starter.nodes)]
            left_s = await self._allocation.left_s()
            await fly(self._crew, self._journal, hosts, environ=self._environ, left_s=left_s)

    # --- generations ----------------------------------------------------------------------------

    async def _run_generations(self) -> Verdict | None:
        """Run generations until one succeeds, or another would make no sense."""
        number = 0
        while True:
            generation = await self._run_generation(number)
            if generation.stop:
                return judge([_stopped(await self._confirm(generation.stop))])
            if generation.made_room:
                if ended := await self._welcome():
                    return ended
                number += 1
                continue
            if not generation.failures:
                return None
            verdict = judge(generation.failures)
            await self._blame(verdict.failure)
            why_not = self._decide_retry(verdict.failure, nodes=self._starter.nodes)
            if not why_not:  # else nobody needs them
                await self._joining.await_missing()
                why_not = self._decide_retry(verdict.failure, nodes=len(self._crew.agents))
            if why_not:
                return replace(verdict, not_retried=why_not, stacks=generation.stacks)
            number += 1
            self._failures.append(verdict.failure)
            self._journal.note(events.RestartDecided(generation=number, verdict=verdict))
            told = render(verdict, run=self._run.path)
            used = f"restart {len(self._failures)} of {self._request.restarts}"
            self._journal.report(f"{used}: {told}")

    async def _welcome(self) -> Verdict | None:
        """Go on with more nodes than before, which cost no restart; return why not, if so."""
        await self._joining.await_missing()
        nodes = len(self._crew.agents)
        if not self._joining.has_enough():
            message = f"{nodes} nodes are left, and it needs {self._request.nodes.low}"
            return judge([Failure(cause="lost node", message=message)])
        self._journal.report(f"{self._run.run_id} goes on with {nodes} nodes")
        return None

    def _decide_retry(self, failure: Failure, *, nodes: int) -> str:
        """Return why ranks are not started again on so many nodes; empty when they are."""
        return decide_retry(
            failure,
            self._failures,
            restarts=self._request.restarts,
            nodes=nodes,
            low=self._request.nodes.low,
            stop_on_hang=self._request.on_hang == "stop",
        )

    async def _blame(self, failure: Failure) -> None:
        """Write down what is a node's fault; who cannot reach the cluster itself blames nobody."""
        if failure.cause != "lost node" or await self._allocation.reaches_cluster():
            self._record.blame(failure)

    async def _run_generation(self, number: int) -> Generation:
        agents = [self._crew.agents[node] for node in sorted(self._crew.agents)]
        generation = Generation(
            number,
            agents,
            request=self._request,
            journal=self._journal,
            crew=self._crew,
            watch=self._watch,
            explain=self._explain,
            recall=self._joining.look_about,
        )
        try:
            meeting = await self._place.find(agents, number)
        except RendezvousError as error:
            generation.failures.append(error.failure)
        except StopError as error:
            generation.stop = await self._explain(error.stop)
        else:
            await generation.run(meeting, self._ranks_of)
        return generation

    def _ranks_of(self, agent: Agent) -> int:
        return self._ranks_on(agent.node, agent.hello.gpus)

    def _ranks_on(self, node: int, gpus: int) -> int:
        return self._request.procs or self._request.gpus or gpus or self._starter.ranks(node)

    def _note_departed(self, node: int) -> None:
        self._journal.note(events.NodeDeparted(node=node, slots=self._slots()))

    def _slots(self) -> int:
        """Return for how many ranks there is room; a node that has not come is like the others."""
        known = {node: home.gpus for node, home in self._crew.homes.items()}
        usual = max(known.values(), default=0)
        nodes = set(range(self._starter.nodes)) - self._recall.departed
        return sum(self._ranks_on(node, known.get(node, usual)) for node in nodes)


def _stopped(stop: Stop) -> Failure:
    return Failure(cause=stop.cause, message=stop.message, exit_code=stop.exit_code)
