"""Who goes on when this attempt ends before its work is done. One class per way.

A controller begins its succession when it starts, and concludes it when it knows how it ends.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Protocol

from echelon.core.shell import Shell
from echelon.core.slurm import OVER, Slurm
from echelon.errors import EchelonError, UnavailableError
from echelon.launch.backends.base import ANSWER_S
from echelon.launch.controller.standby import Standby
from echelon.launch.protocol.rank_environment import ON_RAY
from echelon.run.directory import RunDir
from echelon.run.events import MailRefused, StandbySubmitted
from echelon.run.journal import Journal

AGAIN_S = 60.0
"""Between tries to queue a standby while slurmctld is away."""
NODES: tuple[str, ...] = ("lost node", "start")
"""Causes that are mostly some node's."""
LAST_S = 90.0
"""How long the end of an attempt may wait for slurmctld."""


class Succession(Protocol):
    """See the module."""

    mends: tuple[str, ...]
    """Causes of failure that a next job may not have, for it has other nodes."""

    def begin(self, journal: Journal, exclude: str) -> None:
        """Prepare for the worst, in the background.

        Args:
            journal: told what was done.
            exclude: nodes that the next attempt shall not have.
        """

    def assured(self) -> bool:
        """Tell whether another job will take over."""

    async def exclude(self, hosts: str) -> None:
        """Have the next attempt do without these nodes."""

    async def conclude(self, *, wanted: bool) -> str:
        """Return who goes on (see `Outcome.next`); nobody, when it is not wanted."""

    async def withdraw(self) -> None:
        """Cancel a waiting job now, before `leave` would."""

    async def leave(self) -> None:
        """Do what has to be the last thing that this job does."""


class Mail:
    """What Slurm writes about our job: that the run is over, not that another job goes on.

    A standby is queued without mail, for most are withdrawn; whoever begins switches it on.
    """

    def __init__(self, slurm: Slurm, job_id: str, *, wanted: bool) -> None:
        self._slurm, self._job_id, self._wanted = slurm, job_id, wanted
        self._setting: asyncio.Task[None] | None = None
        self._journal: Journal | None = None

    def begin(self, journal: Journal) -> None:
        """Have our end told."""
        self._journal = journal
        if self._wanted:
            self._setting = asyncio.get_running_loop().create_task(self._set(OVER))

    async def hush(self) -> None:
        """Have it not told after all."""
        if self._setting is not None:
            await self._setting
            await self._set("NONE")

    async def speak(self) -> None:
        """Have it told all the same: nobody goes on."""
        if self._setting is not None:
            await self._set(OVER)

    async def _set(self, types: str) -> None:
        """Ask for mail. It is a courtesy: where Slurm does not answer, nobody waits for long."""
        assert self._journal is not None
        try:
            async with asyncio.timeout(ANSWER_S):
                await asyncio.to_thread(self._slurm.set_mail, self._job_id, types)
        except EchelonError as error:
            self._journal.note(MailRefused(types=types, refused=error.message))
        except TimeoutError:
            self._journal.note(MailRefused(types=types, refused="slurmctld did not answer"))


class NoSuccession:
    """Nobody goes on by itself: a run on one's own machine, or inside somebody else's job."""

    mends: tuple[str, ...] = NODES

    def begin(self, journal: Journal, exclude: str) -> None:
        pass

    def assured(self) -> bool:
        return False

    async def exclude(self, hosts: str) -> None:
        pass

    async def conclude(self, *, wanted: bool) -> str:  # noqa: ARG002  nobody is there
        return ""

    async def withdraw(self) -> None:
        pass

    async def leave(self) -> None:
        pass


class OthersSuccession(NoSuccession):
    """Somebody else has to submit the next job: whoever waits for the run, or its user.

    Nodes that are not there are waited for at the start: one that fails would fail again.
    """

    mends: tuple[str, ...] = ("lost node",)

    async def conclude(self, *, wanted: bool) -> str:
        return "wanted" if wanted else ""


class StandbySuccession:
    """A job that waits for our end: Slurm starts it, whoever is left."""

    mends: tuple[str, ...] = NODES

    def __init__(self, standby: Standby, mail: Mail) -> None:
        self._standby, self._mail = standby, mail
        self._handed_over = self._unwanted = False
        self._submitting: asyncio.Task[None] | None = None
        self._journal: Journal | None = None
        self._excluded = ""

    def begin(self, journal: Journal, exclude: str) -> None:
        self._journal, self._excluded = journal, exclude
        self._mail.begin(journal)
        self._submitting = asyncio.get_running_loop().create_task(self._submit())

    async def _submit(self) -> None:
        assert self._journal is not None
        while True:
            try:
                attempt = await asyncio.to_thread(self._standby.submit, self._excluded)
            except UnavailableError as error:
                self._journal.note(StandbySubmitted(refused=error.message))
                await asyncio.sleep(AGAIN_S)
            except EchelonError as error:  # a limit on jobs, say: it will be so the next time too
                self._journal.note(StandbySubmitted(refused=error.message))
                self._journal.report(f"no job waits to take over from this one: {error.message}")
                return
            else:
                self._journal.note(StandbySubmitted(job=attempt.job_id, attempt=attempt.number))
                return

    def assured(self) -> bool:
        return self._standby.attempt is not None

    async def exclude(self, hosts: str) -> None:
        self._excluded = hosts
        with contextlib.suppress(EchelonError):
            await asyncio.to_thread(self._standby.exclude, hosts)

    async def conclude(self, *, wanted: bool) -> str:
        await self._await_submitted()
        if not wanted:
            # It stays in the queue until we leave: if we are killed before the notification of the
            # run's end is sent, Slurm starts it, and it sends that.
            self._unwanted = True
            return ""
        if not self.assured():
            with contextlib.suppress(EchelonError):
                await asyncio.to_thread(self._standby.submit, self._excluded)
        elif await self._is_gone():
            return ""
        self._handed_over = self.assured()
        return "standby" if self._handed_over else "wanted"

    async def _await_submitted(self) -> None:
        """Wait for the submission: a job that is being queued must not be forgotten."""
        if self._submitting is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_S):
                    await self._submitting

    async def withdraw(self) -> None:
        await self._await_submitted()
        await asyncio.to_thread(self._standby.withdraw)

    async def _is_gone(self) -> bool:
        """Tell whether somebody has cancelled it: then nobody is to go on."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await asyncio.to_thread(self._standby.is_gone)
        except TimeoutError:
            return False

    async def leave(self) -> None:
        if self._unwanted:
            await asyncio.to_thread(self._standby.withdraw)
        if self._handed_over:
            await asyncio.to_thread(self._standby.speak)  # should it end before it begins
            await self._mail.hush()


class RequeueSuccession:
    """The same job once more: Slurm puts it back into the queue when we ask for that."""

    mends: tuple[str, ...] = NODES

    def __init__(self, slurm: Slurm, job_id: str, mail: Mail) -> None:
        self._slurm, self._job_id, self._mail = slurm, job_id, mail
        self._wanted = False

    def begin(self, journal: Journal, exclude: str) -> None:  # noqa: ARG002
        self._mail.begin(journal)

    def assured(self) -> bool:
        return True

    async def exclude(self, hosts: str) -> None:
        """Do without it: Slurm lets nobody change a job that runs."""

    async def conclude(self, *, wanted: bool) -> str:
        self._wanted = wanted
        return "requeue" if wanted else ""

    async def withdraw(self) -> None:
        """Do nothing: no other job waits."""

    async def leave(self) -> None:
        if self._wanted:  # it ends us as well
            await self._mail.hush()
            try:
                await asyncio.to_thread(self._slurm.ask, ["scontrol", "requeue", self._job_id])
            except EchelonError:  # mostly because it is ended before it can answer
                await self._mail.speak()


def choose_succession(
    mode: str,
    run: RunDir,
    shell: Shell,
    environ: Mapping[str, str],
    original: Mapping[str, str],
    *,
    script: bytes,
    owns_job: bool,
    mail: bool,
) -> Succession:
    """Return the way that was asked for.

    Args:
        mode: the request's `hand_over`.
        run: the run.
        shell: runs programs.
        environ: our variables,
        original: and those with which our job was submitted.
        script: the script that Slurm keeps of our job.
        owns_job: whether the job that we are in was submitted for this run.
        mail: whether Slurm is to write when the run is over.
    """
    if ON_RAY in environ and mode != "never":
        return OthersSuccession()
    if not owns_job or mode == "never":
        return NoSuccession()
    slurm, job_id = Slurm(shell, environ), environ["SLURM_JOB_ID"]
    own = Mail(slurm, job_id, wanted=mail)
    if mode == "requeue":
        return RequeueSuccession(slurm, job_id, own)
    standby = Standby(slurm, run, job_id=job_id, environ=original, script=script, quiet=mail)
    return StandbySuccession(standby, own)
