"""What Slurm reports about the job around us: when it ends, and whether its nodes are taken away.

Everything that ends a job before its work is done becomes one `Stop` here. Slurm's own signals come
too late for a time limit (up to a minute off) and do not say why they come; `scontrol` does.
"""

import asyncio
import calendar
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from echelon.core.frozen import frozen
from echelon.core.jobs import own_job
from echelon.core.nodes import expand
from echelon.core.shell import Shell
from echelon.core.slurm import scrub
from echelon.core.slurm_text import word
from echelon.core.steady_clock import SteadyClock
from echelon.errors import EchelonError
from echelon.launch.backends.base import (
    ANSWER_S,
    LOOK_S,
    RESERVE_S,
    RESUMABLE_EXIT,
    OwnNodes,
    View,
)
from echelon.launch.backends.stop import Stop

_LIMIT = ("time limit", "the job reached its time limit")
_NODE = ("lost node", "a node of the job failed")
_ENDING = {
    "TIMEOUT": _LIMIT,
    "NODE_FAIL": _NODE,
    "PREEMPTED": ("preemption", "another job takes its nodes"),
    "CANCELLED": ("cancelled", "the job was cancelled"),
    "COMPLETING": ("cancelled", "the job was cancelled"),
}
"""States of a job that is being ended: cause and message."""
_REASONS = {"TimeLimit": _LIMIT, "NodeDown": _NODE}
"""Reasons of such a job. Most show only COMPLETING while they end."""
_CLOCK = re.compile(r"sdiag output at .*\((\d+)\)")


@frozen
class _Look:
    """One answer of Slurm about the job."""

    state: str
    end_s: float | None
    """When it ends, by this host's clock; None if never or unknown."""
    preempted: bool
    reason: str
    hosts: frozenset[str] = frozenset()
    """Its nodes that are left."""


class SlurmAllocation(OwnNodes):
    """A job of Slurm."""

    def __init__(self, shell: Shell, environ: Mapping[str, str]) -> None:
        # In UTC, because an hour of local time occurs twice when clocks are set back.
        self._shell, self._environ = shell, {**scrub(environ), "TZ": "UTC0"}
        self._job = own_job(environ)
        self._now = SteadyClock().now  # so that setting the clock does not end the job early
        self._ahead_s: float | None = None

    async def watch(self, post: Callable[[Stop], None], view: View) -> None:
        end_s: float | None = None
        while True:
            nodes = view.nodes() if view.can_move() else []
            look, drained = await asyncio.to_thread(self._look_around, nodes)
            if drained:
                post(Stop("maintenance", drained, RESUMABLE_EXIT))
                return
            end_s = look.end_s if look else end_s  # if slurmctld is away, its last answer counts
            while (pause_s := _pause(end_s, view.lead_s(), self._now())) > 0:
                await asyncio.sleep(min(pause_s, LOOK_S))
                if pause_s >= LOOK_S:
                    break
            else:
                assert end_s is not None
                left_s = max(0.0, end_s - self._now())
                deadline_s = time.monotonic() + left_s - RESERVE_S
                message = f"the job reaches its time limit in {left_s:.0f} s"
                post(Stop("time limit", message, RESUMABLE_EXIT, deadline_s=deadline_s))
                return

    async def explain(self, stop: Stop) -> Stop:
        look = await self._look_soon()
        return judge_stop(stop, look, self._now(), time.monotonic()) if look else stop

    async def reaches_cluster(self) -> bool:
        return await self._look_soon() is not None

    async def held(self, hosts: Collection[str]) -> frozenset[str] | None:
        look = await self._look_soon()
        return look.hosts & set(hosts) if look and look.hosts else None

    async def left_s(self) -> float | None:
        look = await self._look_soon()
        return max(0.0, look.end_s - self._now()) if look and look.end_s is not None else None

    async def _look_soon(self) -> _Look | None:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await asyncio.to_thread(self._look)
        except TimeoutError:
            return None

    def _look_around(self, nodes: Sequence[str]) -> tuple[_Look | None, str]:
        drained = find_drained(self._show("node", ",".join(nodes)).splitlines()) if nodes else ""
        return self._look(), drained

    def _look(self) -> _Look | None:
        """Ask once, without retries: the caller can proceed without an answer."""
        text = self._show("job", self._job)
        if "JobState=" not in text:
            return None
        end_s = parse_time(word(text, "EndTime"))
        return _Look(
            state=word(text, "JobState"),
            end_s=end_s - self._clock_ahead_s() if end_s is not None else None,
            preempted=parse_time(word(text, "PreemptTime")) is not None,
            reason=word(text, "Reason"),
            hosts=frozenset(expand(word(text, "NodeList").replace("(null)", ""))),
        )

    def _clock_ahead_s(self) -> float:
        """Return by how much slurmctld's clock is ahead of this host's; scontrol shows its times.

        The two may be minutes apart.
        """
        if self._ahead_s is None:
            found = _CLOCK.search(self._say(["sdiag"]))
            if not found:
                return 0.0
            self._ahead_s = float(found[1]) - self._now()
        # The answer has whole seconds and takes up to one more: less than that is no difference.
        return self._ahead_s if abs(self._ahead_s) > 2 else 0.0

    def _show(self, *what: str) -> str:
        return self._say(["scontrol", "--oneliner", "show", *what])

    def _say(self, argv: Sequence[str]) -> str:
        """Return the output of a Slurm command; empty if slurmctld is unavailable."""
        try:
            return self._shell.run(argv, env=self._environ, timeout_s=60).stdout
        except EchelonError:
            return ""


def _pause(end_s: float | None, lead_s: float, now_s: float) -> float:
    """Return how long to wait before ranks have to be told."""
    return LOOK_S if end_s is None else end_s - lead_s - now_s


def judge_stop(stop: Stop, look: _Look, now_s: float, monotonic_s: float) -> Stop:
    """Return what a signal means, given what Slurm reported after it arrived. Pure."""
    state = "PREEMPTED" if look.preempted else look.state
    if state not in _ENDING:
        return stop
    cause, message = _REASONS.get(look.reason, _ENDING[state])
    if cause in (stop.cause, "preemption"):
        message = stop.message
    if stop.at_once or look.end_s is None or cause != "preemption":
        return replace(stop, cause=cause, message=message, signalled=True)
    deadline_s = monotonic_s + max(0.0, look.end_s - now_s - 1)
    return replace(stop, cause=cause, message=message, signalled=True, deadline_s=deadline_s)


def find_drained(lines: Sequence[str]) -> str:
    """Describe the node that is being drained, from `scontrol --oneliner show node`; else empty."""
    for line in lines:
        state = word(line, "State")
        if "DRAIN" in state and "DOWN" not in state:
            reason = re.search(r" Reason=(.*?)(?: \[|$)", line)
            why = f" ({reason[1]})" if reason else ""
            return f"{word(line, 'NodeName')} is being drained{why}"
    return ""


def parse_time(text: str) -> float | None:
    """Parse a time that Slurm shows in UTC; None for Unknown, None, N/A."""
    try:
        return float(calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%S")))
    except (ValueError, OverflowError):
        return None
