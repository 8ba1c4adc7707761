"""How a run outlives its Slurm job: another job waits in the queue, or the same one is requeued.

Slurm starts a job that depends on the failure of another as soon as that one has ended, even if the
host of its batch script died and nobody is left to submit anything. If the other job completes,
Slurm removes the waiting one.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from echelon.core.jobs import Job
from echelon.core.slurm import OVER, Slurm
from echelon.errors import EchelonError, UnavailableError, UsageError
from echelon.launch.backends.base import ANSWER_S, NODE_CAUSES, NoStandby
from echelon.run.attempts import Attempt, submit_attempt
from echelon.run.directory import RunDir
from echelon.run.events import MailRefused, StandbySubmitted
from echelon.run.journal import Journal

AGAIN_S = 60.0
"""Pause between attempts to queue a standby while slurmctld is unavailable."""
LAST_S = 90.0
"""How long the end of an attempt may wait for slurmctld."""


class Mail:
    """Slurm's mail about our job: it should report the end of the run, not of a job.

    A standby is queued without mail because most are withdrawn. The job that starts turns it on.
    """

    def __init__(self, slurm: Slurm, job_id: str, *, wanted: bool) -> None:
        self.wanted = wanted
        self._slurm, self._job_id = slurm, job_id
        self._setting: asyncio.Task[None] | None = None
        self._journal: Journal | None = None

    def begin(self, journal: Journal) -> None:
        """Turn on mail about the end of our job."""
        self._journal = journal
        if self.wanted:
            self._setting = asyncio.get_running_loop().create_task(self._set(OVER))

    async def turn_off(self) -> None:
        """Turn it off: another job continues the run."""
        if self._setting is not None:
            await self._setting
            await self._set("NONE")

    async def turn_on_again(self) -> None:
        """Turn it on after all: no job continues the run."""
        if self._setting is not None:
            await self._set(OVER)

    async def _set(self, types: str) -> None:
        """Set the mail types. The run does without mail if Slurm refuses or does not answer."""
        assert self._journal is not None
        try:
            async with asyncio.timeout(ANSWER_S):
                await asyncio.to_thread(self._slurm.set_mail, self._job_id, types)
        except EchelonError as error:
            self._journal.note(MailRefused(types=types, refused=error.message))
        except TimeoutError:
            self._journal.note(MailRefused(types=types, refused="slurmctld did not answer"))


class WaitingStandby:
    """A job that waits in the queue for ours to end."""

    mends: tuple[str, ...] = NODE_CAUSES

    def __init__(
        self,
        slurm: Slurm,
        run: RunDir,
        *,
        job_id: str,
        environ: Mapping[str, str],
        script: bytes,
        mail: Mail,
    ) -> None:
        """Prepare one.

        Args:
            slurm: queues it.
            run: the run.
            job_id: our own job.
            environ: the variables with which our own job was submitted.
            script: the script that Slurm keeps of our own job.
            mail: Slurm's mail about our own job.
        """
        self._slurm, self._run, self._job_id = slurm, run, job_id
        self._environ, self._script, self._mail = environ, script, mail
        self._attempt: Attempt | None = None
        self._submitting: asyncio.Task[None] | None = None
        self._excluded = ""
        self._handed_over = self._unwanted = False

    def begin(self, journal: Journal, exclude: str) -> None:
        self._excluded = exclude
        self._mail.begin(journal)
        self._submitting = asyncio.get_running_loop().create_task(self._keep_submitting(journal))

    async def _keep_submitting(self, journal: Journal) -> None:
        while True:
            try:
                attempt = await asyncio.to_thread(self._submit)
            except UnavailableError as error:
                journal.note(StandbySubmitted(refused=error.message))
                await asyncio.sleep(AGAIN_S)
            except EchelonError as error:  # a limit on jobs, say, which stays
                journal.note(StandbySubmitted(refused=error.message))
                journal.report(f"no standby job: {error.message}")
                return
            else:
                journal.note(StandbySubmitted(job=attempt.job_id, attempt=attempt.number))
                return

    def _submit(self) -> Attempt:
        """Queue the job.

        Raises:
            UsageError: Slurm refuses it, or the script of our own job is unknown.
            UnavailableError: slurmctld does not answer, or there is no sbatch on this node.
        """
        if not self._script:
            raise UsageError(
                "the script of this job cannot be read",
                hint=f"continue by hand: echelon resume {self._run.run_id}",
            )

        def submit(number: int) -> str:
            return self._slurm.submit(
                self._run.script,
                content=self._script,
                run_id=self._run.run_id,
                attempt=number,
                environ=self._environ,
                exclude=self._excluded,
                after=self._job_id,
            )

        self._attempt = submit_attempt(self._run, submit, self._release, after=self._job_id)
        if self._mail.wanted:
            # Not as an option of sbatch, which adds to what the script says.
            with contextlib.suppress(EchelonError):
                self._slurm.set_mail(self._attempt.job_id, "NONE")
        return self._attempt

    def _release(self, job_id: str) -> Job:
        """Return the job as it is in the queue, released: `--hold` was for the first job only."""
        job = self._slurm.job(job_id, run_id=self._run.run_id)
        if job.reason == "JobHeldUser":
            self._slurm.ask(["scontrol", "release", job_id])
        return job

    def assured(self) -> bool:
        return self._attempt is not None

    async def exclude(self, hosts: str) -> None:
        self._excluded = hosts
        if self._attempt:
            change = [f"JobId={self._attempt.job_id}", f"ExcNodeList={hosts}"]
            await _try(self._slurm.ask, ["scontrol", "update", *change])

    async def conclude(self, *, wanted: bool) -> str:
        await self._await_submitted()
        if not wanted:
            # It stays in the queue until we leave: if we are killed before the notification of the
            # run's end is sent, Slurm starts it, and it sends the notification.
            self._unwanted = True
            return ""
        if self._attempt is None:
            await _try(self._submit)
        elif await self._is_cancelled(self._attempt):
            return ""
        self._handed_over = self.assured()
        return "standby" if self._handed_over else "wanted"

    async def _await_submitted(self) -> None:
        """Wait for the submission, so that no queued job is forgotten."""
        if self._submitting is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_S):
                    await self._submitting

    async def _is_cancelled(self, attempt: Attempt) -> bool:
        """Tell whether a user has cancelled the waiting job, who then wants the run to end."""
        try:
            async with asyncio.timeout(ANSWER_S):
                job = await asyncio.to_thread(
                    self._slurm.job, attempt.job_id, run_id=self._run.run_id
                )
        except (EchelonError, TimeoutError):
            return False
        return job.over

    async def withdraw(self) -> None:
        await self._await_submitted()
        if self._attempt:  # if this fails, the job finds that it has nothing to do
            await _try(self._slurm.end, self._attempt.job_id, self._run.run_id)

    async def leave(self) -> None:
        if self._unwanted and self._attempt:
            await _try(self._slurm.end, self._attempt.job_id, self._run.run_id)
        if self._handed_over and self._attempt:
            if self._mail.wanted:  # it may end before it starts
                await _try(self._slurm.set_mail, self._attempt.job_id, OVER)
            await self._mail.turn_off()


class RequeueStandby(NoStandby):
    """The same job again: Slurm puts it back into the queue on request.

    No other job waits, and Slurm does not allow changing a running one.
    """

    def __init__(self, slurm: Slurm, job_id: str, mail: Mail) -> None:
        self._slurm, self._job_id, self._mail = slurm, job_id, mail
        self._wanted = False

    def begin(self, journal: Journal, exclude: str) -> None:  # noqa: ARG002
        self._mail.begin(journal)

    def assured(self) -> bool:
        return True

    async def conclude(self, *, wanted: bool) -> str:
        self._wanted = wanted
        return "requeue" if wanted else ""

    async def leave(self) -> None:
        if self._wanted:
            await self._mail.turn_off()
            try:
                await asyncio.to_thread(self._slurm.ask, ["scontrol", "requeue", self._job_id])
            except EchelonError:  # mostly because the requeue ends this command as well
                await self._mail.turn_on_again()


async def _try(call: Callable[..., object], *arguments: object) -> None:
    """Ask Slurm for something that the run can do without."""
    with contextlib.suppress(EchelonError):
        await asyncio.to_thread(call, *arguments)
