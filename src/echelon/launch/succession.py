"""Who goes on when this attempt ends before its work is done. One class per way.

A controller begins its succession when it starts, and concludes it when it knows how it ends.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Protocol

from echelon.core.rundir import RunDir
from echelon.core.shell import Shell
from echelon.core.slurm import Slurm
from echelon.errors import EchelonError, UnavailableError
from echelon.launch.allocation import ANSWER_S
from echelon.launch.contract import ON_RAY
from echelon.launch.handover import Standby
from echelon.launch.journal import Journal

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

    async def leave(self) -> None:
        """Do what has to be the last thing that this job does."""


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

    def __init__(self, standby: Standby) -> None:
        self._standby = standby
        self._submitting: asyncio.Task[None] | None = None
        self._journal: Journal | None = None
        self._excluded = ""

    def begin(self, journal: Journal, exclude: str) -> None:
        self._journal, self._excluded = journal, exclude
        self._submitting = asyncio.get_running_loop().create_task(self._submit())

    async def _submit(self) -> None:
        assert self._journal is not None
        while True:
            try:
                attempt = await asyncio.to_thread(self._standby.submit, self._excluded)
            except UnavailableError as error:
                self._journal.note("standby", refused=error.message)
                await asyncio.sleep(AGAIN_S)
            except EchelonError as error:  # a limit on jobs, say: it will be so the next time too
                self._journal.note("standby", refused=error.message)
                self._journal.report(f"no job waits to take over from this one: {error.message}")
                return
            else:
                self._journal.note("standby", job=attempt.job_id, attempt=attempt.number)
                return

    def assured(self) -> bool:
        return self._standby.attempt is not None

    async def exclude(self, hosts: str) -> None:
        self._excluded = hosts
        with contextlib.suppress(EchelonError):
            await asyncio.to_thread(self._standby.exclude, hosts)

    async def conclude(self, *, wanted: bool) -> str:
        if self._submitting is not None:
            # One that is being queued must not be forgotten; one that failed is tried once more.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_S):
                    await self._submitting
        if not wanted:
            await asyncio.to_thread(self._standby.withdraw)
            return ""
        if not self.assured():
            with contextlib.suppress(EchelonError):
                await asyncio.to_thread(self._standby.submit, self._excluded)
        elif await self._is_gone():
            return ""
        return "standby" if self.assured() else "wanted"

    async def _is_gone(self) -> bool:
        """Tell whether somebody has cancelled it: then nobody is to go on."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await asyncio.to_thread(self._standby.is_gone)
        except TimeoutError:
            return False

    async def leave(self) -> None:
        pass


class RequeueSuccession:
    """The same job once more: Slurm puts it back into the queue when we ask for that."""

    mends: tuple[str, ...] = NODES

    def __init__(self, slurm: Slurm, job_id: str) -> None:
        self._slurm, self._job_id = slurm, job_id
        self._wanted = False

    def begin(self, journal: Journal, exclude: str) -> None:
        pass

    def assured(self) -> bool:
        return True

    async def exclude(self, hosts: str) -> None:
        """Do without it: Slurm lets nobody change a job that runs."""

    async def conclude(self, *, wanted: bool) -> str:
        self._wanted = wanted
        return "requeue" if wanted else ""

    async def leave(self) -> None:
        if self._wanted:  # it ends us as well
            with contextlib.suppress(EchelonError):  # it may be ended before it can answer
                await asyncio.to_thread(self._slurm.ask, ["scontrol", "requeue", self._job_id])


def choose_succession(
    mode: str,
    run: RunDir,
    shell: Shell,
    environ: Mapping[str, str],
    original: Mapping[str, str],
    *,
    owns_job: bool,
) -> Succession:
    """Return the way that was asked for.

    Args:
        mode: the request's `hand_over`.
        run: the run.
        shell: runs programs.
        environ: our variables,
        original: and those with which our job was submitted.
        owns_job: whether the job that we are in was submitted for this run.
    """
    if ON_RAY in environ and mode != "never":
        return OthersSuccession()
    if not owns_job or mode == "never":
        return NoSuccession()
    slurm, job_id = Slurm(shell, environ), environ["SLURM_JOB_ID"]
    if mode == "requeue":
        return RequeueSuccession(slurm, job_id)
    return StandbySuccession(Standby(slurm, run, job_id=job_id, environ=original))
