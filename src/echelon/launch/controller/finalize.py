"""How an attempt ends: whether another job continues it, what users are told, what is recorded.

The decisions are pure (`standby.py`); the backend provides the next job.
"""

import asyncio
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from echelon.launch.backends.base import NODE_CAUSES, RESUMABLE_EXIT, SUPERSEDED, Backend
from echelon.launch.backends.stop import Stop
from echelon.launch.controller.notify import Notifier
from echelon.launch.controller.standby import PLANNED, RESUMABLE, decide_hand_over
from echelon.run.attempts import Outcome, is_left_behind
from echelon.run.events import NotifyCommandRun, RestartDecided
from echelon.run.history import History
from echelon.run.journal import Journal
from echelon.run.node_record import cluster_name, exclusions
from echelon.run.verdict import Failure, Verdict, headline, judge, render
from echelon.spec.job_spec import JobSpec

_CONTINUES = {
    "standby": "the standby job continues",
    "requeue": "the job is requeued",
    "allocation": "it is started again",
    "wanted": "continue with: echelon resume {run}",
}
_STATES = {
    "cancelled": "CANCELLED",
    "preemption": "PREEMPTED",
    "maintenance": "PREEMPTED",
    "time limit": "TIMEOUT",
}


class Finalizer:
    """See the module."""

    def __init__(
        self,
        *,
        request: JobSpec,
        history: History,
        backend: Backend,
        journal: Journal,
        notifier: Notifier,
        environ: Mapping[str, str],
    ) -> None:
        self._run, self._request, self._history = journal.run, request, history
        self._allocation, self._standby = backend.allocation, backend.standby
        self._journal, self._notifier, self._environ = journal, notifier, environ
        self._excluded = self._exclusions()
        self._withdrawing: asyncio.Task[None] | None = None

    def prepare(self) -> None:
        """Prepare a next job, at the beginning."""
        self._standby.begin(self._journal, self._excluded)

    async def explain(self, stop: Stop) -> Stop:
        """Return a stop as the cluster explains it; if a user cancelled the run, act on it.

        The job is also cancelled if agents have lost their controller and ended it, because its
        host was unreachable. Then another attempt continues the run.
        """
        explained = await self._allocation.explain(stop)
        if explained.cause == "cancelled":
            if await asyncio.to_thread(is_left_behind, self._run, self._journal.attempt):
                return SUPERSEDED
            self._withdraw()
        return explained

    def _withdraw(self) -> None:
        """Cancel the waiting job first: Slurm may kill us before our ranks have exited."""
        if self._withdrawing is None:
            withdraw = self._standby.withdraw()
            self._withdrawing = asyncio.get_running_loop().create_task(withdraw)

    async def conclude(
        self,
        verdict: Verdict | None,
        *,
        failures: Sequence[Failure],
        restarts: int | None,
        nodes: int,
        saved: int,
        progress: str,
    ) -> Outcome:
        """Have another job continue, if one should; report and return how this attempt ended.

        Args:
            verdict: why it ended; None if the work is done.
            failures: those of the whole run that cost a restart.
            restarts: how many the run may have; None: none, because none were requested.
            nodes: number of nodes that are left.
            saved: the step from which a next attempt would continue; -1 if nothing is saved.
            progress: what shows that this attempt made progress; empty if nothing does.
        """
        if verdict is not None and verdict.failure.cause in NODE_CAUSES:
            verdict = await self._explain_nodes(verdict)
        if self._withdrawing is not None:
            await self._withdrawing
        if verdict is None:
            await self._standby.conclude(wanted=False)
            return Outcome(state="COMPLETED", exit_code=0)
        if verdict.failure.cause == "superseded":
            why = verdict.failure.message
            return Outcome(state="CANCELLED", exit_code=RESUMABLE_EXIT, next="standby", why=why)
        too_few = nodes < self._request.nodes.low
        why_not = decide_hand_over(
            verdict.failure,
            replace(self._history, failures=tuple(failures)),
            mode=self._request.hand_over,
            restarts=restarts,
            saved=saved,
            progress=bool(progress),
            nodes_are_why=too_few and verdict.failure.cause in self._standby.mends,
        )
        if not why_not and (hosts := self._exclusions()) != self._excluded:
            await self._standby.exclude(hosts)
        followed = await self._standby.conclude(wanted=not why_not)
        if not followed and not why_not:
            why_not = "the standby job was cancelled"
        if followed:
            self._tell_next(verdict, _CONTINUES[followed].format(run=self._run.run_id))
        else:
            self._tell_end(verdict, why_not, saved)
        state = _STATES.get(verdict.failure.cause, "FAILED")
        code, why = verdict.failure.exit_code or 1, verdict.failure.message
        if verdict.failure.node:
            why = headline(verdict.failure)
        return Outcome(state=state, exit_code=code, next=followed, why=why, progress=progress)

    async def _explain_nodes(self, verdict: Verdict) -> Verdict:
        """Return why nodes are missing. In a job that is being cancelled, srun starts nothing."""
        failure = verdict.failure
        stop = Stop(failure.cause, failure.message, 128 + signal.SIGTERM)
        explained = await self.explain(stop)
        return verdict if explained.cause == failure.cause else judge([as_failure(explained)])

    def record_pending_notice(self, outcome: Outcome, verdict: Verdict | None) -> None:
        """Record the notification before the outcome, so that others send it if we are killed."""
        if self._is_notified(outcome):
            record = partial(
                self._notifier.owe, self._journal.attempt, outcome.state, _reason(verdict)
            )
            self._journal.leave_notice(record)

    def notify(self, outcome: Outcome, verdict: Verdict | None) -> None:
        """Run the user's command, unless another job continues the run.

        All results are written by now, so the command can read them.
        """
        if not self._is_notified(outcome):
            return
        self._journal.settle()
        wrong = self._notifier.tell(self._journal.attempt, outcome.state, _reason(verdict))
        self._journal.note(NotifyCommandRun(state=outcome.state, wrong=wrong))
        if wrong:
            self._journal.report(f"{self._run.run_id}: --notify command: {wrong}")

    def _is_notified(self, outcome: Outcome) -> bool:
        return bool(self._request.notify) and outcome.next in ("", "wanted")

    def _tell_next(self, verdict: Verdict, continues: str) -> None:
        name = self._run.run_id
        if verdict.failure.cause in PLANNED:
            self._journal.report(f"{name}: {verdict.failure.message}; {continues}")
            return
        self._journal.note(RestartDecided(verdict=verdict))
        self._journal.report(f"{name}: {continues}\n{render(verdict, run=self._run.path)}")

    def _tell_end(self, verdict: Verdict, why_not: str, saved: int) -> None:
        name, cause = self._run.run_id, verdict.failure.cause
        if cause in PLANNED:
            verdict = replace(verdict, not_retried=why_not)
        if cause in RESUMABLE and saved >= 0:
            verdict = replace(verdict, advice=f"continue with: echelon resume {name}")
        self._journal.leave_verdict(verdict)
        ended = "was stopped" if cause in RESUMABLE else "failed"
        self._journal.report(f"{name} {ended}\n{render(verdict, run=self._run.path)}")

    def _exclusions(self) -> str:
        """Return the nodes that a next attempt must not use, as far as known now."""
        request = self._request
        return exclusions(
            cluster_name(self._environ),
            self._environ,
            nodelist=request.nodelist,
            exclude=request.exclude,
            now_s=time.time(),
        )


def as_failure(stop: Stop) -> Failure:
    """Return a stop in the form that verdicts have."""
    return Failure(cause=stop.cause, message=stop.message, exit_code=stop.exit_code)


def _reason(verdict: Verdict | None) -> str:
    return headline(verdict.failure) if verdict else ""
