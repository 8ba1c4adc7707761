"""What a controller needs from the place where its nodes are. Each backend implements this."""

import asyncio
import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from echelon.core.frozen import frozen
from echelon.core.shell import signal_group
from echelon.launch.backends.stop import Stop
from echelon.launch.protocol.messages import Pace
from echelon.run.directory import RunDir
from echelon.run.journal import Journal
from echelon.spec.job_spec import JobSpec

CAUSE = "no agents: "
"""Prefix of the line in a starting process's log that says why its agents did not start."""
LOOK_S = 30.0
"""How often the cluster is asked whether anything has changed."""
RESERVE_S = 5.0
"""Part of the job's time that is kept for dismissing agents and recording the outcome."""
ANSWER_S = 5.0
"""How long an answer may take while ranks wait for it."""
RESUMABLE_EXIT = 75
"""Exit code of a job that was stopped before its work was done and can be resumed: EX_TEMPFAIL."""
SUPERSEDED = Stop(
    "superseded", "another attempt of this run has started", RESUMABLE_EXIT, at_once=True
)
_SAVE_S = 20.0
"""Assumed time to save as long as none was measured."""


# --- agents -----------------------------------------------------------------------------------


@frozen
class AgentCommand:
    """How to start an agent."""

    argv: Sequence[str]
    env: Mapping[str, str]
    logs: Path
    """Directory for the logs of the processes that start agents."""
    key: bytes
    """Agents read it from their input (`receive_key`)."""
    arguments: Sequence[str] = ()
    """The last words of `argv`: all that a process needs that is forked instead of started."""


class Started(Protocol):
    """What was started to bring up some of the agents, and exits with them."""

    nodes: frozenset[int]
    log: Path

    def poll(self) -> int | None:
        """Return how it exited, as `subprocess` does; None while it runs."""

    def end(self, number: int = signal.SIGKILL) -> None:
        """Signal it and what it has started; it may have exited already."""

    def dismiss(self) -> None:
        """Tell it that no more agents are wanted, if it would not exit with them."""


@dataclass(eq=False)
class StartedProcess:
    """A process of ours."""

    pid: int
    nodes: frozenset[int]
    log: Path
    dismissal: int = 0
    """Signal that tells it that no more agents are wanted; 0 if it exits with its agents."""

    def poll(self) -> int | None:
        try:
            found, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            return 0
        return os.waitstatus_to_exitcode(status) if found else None

    def end(self, number: int = signal.SIGKILL) -> None:
        signal_group(self.pid, number)

    def dismiss(self) -> None:
        if self.dismissal:
            os.kill(self.pid, self.dismissal)  # it may have exited, but is not collected yet


@frozen
class Outlook:
    """What is known about nodes whose agents have not connected yet."""

    waits: str = ""
    """What the run is waiting for, like a job in a queue; empty once it has nodes."""
    absent: frozenset[int] = frozenset()
    """Nodes that the run will not get."""
    lost: frozenset[int] = frozenset()
    """Nodes that were lost and may be replaced."""
    faults: Mapping[int, str] = field(default_factory=dict)
    """Nodes on which no agent can run, and why."""


class Starter(Protocol):
    """Starts agents."""

    nodes: int
    """Number of nodes."""

    def ranks(self, node: int) -> int:
        """Return the ranks of a node, if neither the request nor its GPUs determine them."""

    def host(self, node: int) -> str:
        """Return the cluster's name for a node."""

    def candidates(self) -> list[str]:
        """Return our own addresses at which agents may reach us, the best first."""

    def start(self, nodes: Sequence[int], command: AgentCommand) -> list[Started]:
        """Start the agents of some nodes."""

    def outlook(self) -> Outlook:
        """Return what is known about nodes whose agents have not connected yet."""

    def on_exit(self, look: Callable[[], None]) -> None:
        """Call this function when something that was started may have exited; in the event loop."""


class ChildStarter:
    """A starter whose processes are our children."""

    def on_exit(self, look: Callable[[], None]) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, look)


# --- the allocation ---------------------------------------------------------------------------


class View(Protocol):
    """What an allocation has to know about the run to decide when it should stop."""

    def lead_s(self) -> float:
        """Return how long before the end of the job its ranks have to be told."""

    def can_move(self) -> bool:
        """Tell whether another job would continue the run from where it is."""

    def nodes(self) -> list[str]:
        """Return the names of its nodes."""


class Allocation(Protocol):
    """The nodes that a controller has, and for how long."""

    async def watch(self, post: Callable[[Stop], None], view: View) -> None:
        """Post a stop in time before the run has to stop."""

    async def explain(self, stop: Stop) -> Stop:
        """Return a stop that a signal caused, completed with what the cluster reports about it."""

    async def reaches_cluster(self) -> bool:
        """Tell whether the cluster answers; if it does not, we may be the ones cut off."""

    async def held(self, hosts: Collection[str]) -> frozenset[str] | None:
        """Return which of these nodes still belong to the job; None if the cluster does not answer.

        A node that has died does not.
        """

    async def left_s(self) -> float | None:
        """Return how much time is left; None if unlimited, or if the cluster does not answer."""

    async def await_grant(self) -> None:
        """Wait until ranks may start: other programs may still use the nodes."""

    def release(self) -> None:
        """Tell that no more ranks will be started."""


class OwnNodes:
    """An allocation that no other program shares."""

    async def await_grant(self) -> None:
        pass

    def release(self) -> None:
        pass


# --- the next job -----------------------------------------------------------------------------

NODE_CAUSES: tuple[str, ...] = ("lost node", "start")
"""Causes of failure that usually lie with some node."""


class Standby(Protocol):
    """What continues the run if this job ends before the work is done."""

    mends: tuple[str, ...]
    """Causes of failure that another job may avoid, because it gets other nodes."""

    def begin(self, journal: Journal, exclude: str) -> None:
        """Prepare the next job, in the background.

        Args:
            journal: records what was done.
            exclude: nodes that the next attempt must not use.
        """

    def assured(self) -> bool:
        """Tell whether another job will take over."""

    async def exclude(self, hosts: str) -> None:
        """Keep the next attempt off these nodes."""

    async def conclude(self, *, wanted: bool) -> str:
        """Return what continues the run (see `Outcome.next`); empty if nothing does."""

    async def withdraw(self) -> None:
        """Cancel a waiting job now, before `leave` would."""

    async def leave(self) -> None:
        """Do what has to be the last action of this job."""


class NoStandby:
    """No job continues the run: it is on one's own machine, or inside somebody else's job."""

    mends: tuple[str, ...] = NODE_CAUSES

    def begin(self, journal: Journal, exclude: str) -> None:
        pass

    def assured(self) -> bool:
        return False

    async def exclude(self, hosts: str) -> None:
        pass

    async def conclude(self, *, wanted: bool) -> str:  # noqa: ARG002  there is no job
        return ""

    async def withdraw(self) -> None:
        pass

    async def leave(self) -> None:
        pass


# --- all of it --------------------------------------------------------------------------------


@frozen
class Backend:
    """One kind of place for a run. `choosing.py` chooses it."""

    starter: Starter
    allocation: Allocation
    standby: Standby
    is_shared: bool = False
    """Whether nodes come from a cluster, so that examining them first and excluding some pays."""
    key: bytes = b""
    """The key that agents have to know; empty for a new one."""
    neighbours: Callable[[str], Collection[str]] = lambda _host: ()
    """Returns the other runs that have used a node of the allocation."""


@frozen
class AttemptContext:
    """The attempt that a backend serves."""

    run: RunDir
    number: int
    request: JobSpec
    owns_job: bool
    """Whether the job around us was submitted for this run."""
    environ: Mapping[str, str]
    """Variables with which that job was submitted."""
    script: bytes
    """The script that Slurm keeps of that job; the run directory may contain another one."""


def lead_from(paces: Sequence[Pace]) -> float:
    """Return how long ranks need to reach a point where they can stop, and to save. Pure."""
    save_s = max(pace.save_us for pace in paces) / 1e6
    stop_interval_s = max(pace.stop_interval_us for pace in paces) / 1e6
    return 2 * RESERVE_S + 2 * stop_interval_s + max(_SAVE_S, 2 * save_s)
