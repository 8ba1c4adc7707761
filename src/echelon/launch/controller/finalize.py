"""How an attempt ends: whether another job goes on, what its users are told, what it leaves.

The decisions are pure (handover.py), and the ways to a next job are another's (succession.py).
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from echelon.launch.backends.base import STOPPED_IN_TIME
from echelon.launch.controller.notify import Notifier
from echelon.launch.controller.standby import PLANNED, RESUMABLE, decide_hand_over
from echelon.launch.controller.succession import Succession
from echelon.run.attempts import Outcome
from echelon.run.directory import RunDir
from echelon.run.events import NotifyCommandRun, RestartDecided
from echelon.run.history import History
from echelon.run.journal import Journal
from echelon.run.node_record import cluster_name, exclusions
from echelon.run.verdict import Failure, Verdict, headline, render
from echelon.spec.job_spec import JobSpec

_GOES_ON = {
    "standby": "the job that waits for this one's end goes on",
    "requeue": "the job goes back into the queue",
    "wanted": "go on with: echelon resume {run}",
}
_STATES = {
    "cancelled": "CANCELLED",
    "preemption": "PREEMPTED",
    "maintenance": "PREEMPTED",
    "time limit": "TIMEOUT",
}


class Conclusion:
    """See the module."""

    def __init__(
        self,
        *,
        run: RunDir,
        request: JobSpec,
        history: History,
        succession: Succession,
        journal: Journal,
        notifier: Notifier,
        environ: Mapping[str, str],
    ) -> None:
        self._run, self._request, self._history = run, request, history
        self._succession, self._journal, self._environ = succession, journal, environ
        self._notifier = notifier
        self._excluded = self._exclusions()
        self._withdrawing: asyncio.Task[None] | None = None

    def prepare(self) -> None:
        """See to it, at the beginning, that there is somebody who could go on."""
        self._succession.begin(self._journal, self._excluded)

    def withdraw(self) -> None:
        """Take what waits out of the queue: somebody has cancelled the run.

        Slurm may kill us before our ranks are gone, so this comes first.
        """
        if self._withdrawing is None:
            withdraw = self._succession.withdraw()
            self._withdrawing = asyncio.get_running_loop().create_task(withdraw)

    async def reach(
        self,
        verdict: Verdict | None,
        *,
        failures: Sequence[Failure],
        nodes: int,
        saved: int,
        progress: bool,
    ) -> Outcome:
        """See to it that another job goes on, if one should; say how this one has ended.

        Args:
            verdict: why; None when the work is done.
            failures: those of the whole run that cost a restart.
            nodes: how many are left.
            saved: the step that a next attempt would go on from; -1 when nothing is saved.
            progress: whether that is later than where this one began.
        """
        if self._withdrawing is not None:
            await self._withdrawing
        if verdict is None:
            await self._succession.conclude(wanted=False)
            return Outcome(state="COMPLETED", exit_code=0)
        if verdict.failure.cause == "superseded":
            why = verdict.failure.message
            return Outcome(state="CANCELLED", exit_code=STOPPED_IN_TIME, next="standby", why=why)
        too_few = nodes < self._request.nodes.low
        why_not = decide_hand_over(
            verdict.failure,
            replace(self._history, failures=tuple(failures)),
            mode=self._request.hand_over,
            restarts=self._request.restarts,
            saved=saved,
            progress=progress,
            nodes_are_why=too_few and verdict.failure.cause in self._succession.mends,
        )
        if not why_not and (hosts := self._exclusions()) != self._excluded:
            await self._succession.exclude(hosts)
        followed = await self._succession.conclude(wanted=not why_not)
        if not followed and not why_not:
            why_not = "nobody is there to go on: the job that waited has been cancelled"
        if followed:
            self._tell_next(verdict, _GOES_ON[followed].format(run=self._run.run_id))
        else:
            self._tell_end(verdict, why_not, saved)
        state = _STATES.get(verdict.failure.cause, "FAILED")
        code, why = verdict.failure.exit_code or 1, verdict.failure.message
        if verdict.failure.node:
            why = headline(verdict.failure)
        return Outcome(state=state, exit_code=code, next=followed, why=why)

    def promise(self, outcome: Outcome, verdict: Verdict | None) -> None:
        """Record the notification ahead of the outcome: if we are killed, others send it."""
        if self._is_notified(outcome):
            record = partial(
                self._notifier.owe, self._journal.attempt, outcome.state, _reason(verdict)
            )
            self._journal.leave_notice(record)

    def notify(self, outcome: Outcome, verdict: Verdict | None) -> None:
        """Run the user's command, unless another job goes on by itself.

        What the run leaves behind is written by now, for the command to look at.
        """
        if not self._is_notified(outcome):
            return
        self._journal.settle()
        wrong = self._notifier.tell(self._journal.attempt, outcome.state, _reason(verdict))
        self._journal.note(NotifyCommandRun(state=outcome.state, wrong=wrong))
        if wrong:
            self._journal.report(f"{self._run.run_id}: the command of --notify: {wrong}")

    def _is_notified(self, outcome: Outcome) -> bool:
        return bool(self._request.notify) and outcome.next not in ("standby", "requeue")

    def _tell_next(self, verdict: Verdict, goes_on: str) -> None:
        name = self._run.run_id
        if verdict.failure.cause in PLANNED:
            self._journal.report(f"{name}: {verdict.failure.message}; {goes_on}")
            return
        self._journal.note(RestartDecided(verdict=verdict))
        self._journal.report(f"{name}: {goes_on}\n{render(verdict, run=self._run.path)}")

    def _tell_end(self, verdict: Verdict, why_not: str, saved: int) -> None:
        name, cause = self._run.run_id, verdict.failure.cause
        if cause in PLANNED:
            verdict = replace(verdict, not_retried=why_not)
        if cause in RESUMABLE and saved >= 0:
            verdict = replace(verdict, advice=f"go on with: echelon resume {name}")
        self._journal.leave_verdict(verdict)
        ended = "was stopped" if cause in RESUMABLE else "failed"
        self._journal.report(f"{name} {ended}\n{render(verdict, run=self._run.path)}")

    def _exclusions(self) -> str:
        """Return the nodes that a next attempt shall not have, by what is known now."""
        request = self._request
        return exclusions(
            cluster_name(self._environ),
            self._environ,
            nodelist=request.nodelist,
            exclude=request.exclude,
            now_s=time.time(),
        )


def _reason(verdict: Verdict | None) -> str:
    return headline(verdict.failure) if verdict else ""
