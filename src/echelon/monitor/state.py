"""What a run is like now, and was: all that its processes have written, folded into one value.

The terminal's view, the web page and the report draw this value, and nothing else. It grows with
what is read: whoever follows a run feeds what is new.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from echelon.core.records import MOST_RANKS, to_count
from echelon.run.event_log import Event
from echelon.run.series import Sample

_MOST_POINTS = 20_000
"""Of one curve."""
QUEUED, STARTING, RUNNING, RESTARTING = "QUEUED", "STARTING", "RUNNING", "RESTARTING"


@dataclass(slots=True, kw_only=True)
class RankState:
    """A rank, as it was last seen."""

    rank: int
    node: int = -1
    """Where it is: its place among the nodes of the attempt."""
    generation: int = 0
    alive: bool = True
    failed: bool = False
    numbers: dict[str, float] = field(default_factory=dict)
    """step, steps (per second), data and stall (shares of its time), mem (bytes), gpu (which)."""


@dataclass(slots=True, kw_only=True)
class NodeState:
    """A node of the newest attempt."""

    node: int
    name: str = ""
    here: bool = True
    seen_s: float = 0.0
    """When it was last measured."""
    numbers: dict[str, float] = field(default_factory=dict)
    gpus: dict[int, dict[str, float]] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class GenerationState:
    """One set of ranks, from its start to its end."""

    number: int
    began_s: float
    ranks: int
    nodes: int
    ended_s: float | None = None
    why: str = ""
    """Why another followed; empty when it was the last, or had to make room."""


@dataclass(slots=True, kw_only=True)
class AttemptState:
    """One job."""

    number: int
    job_id: str = ""
    began_s: float = 0.0
    ended_s: float | None = None
    outcome: str = ""
    """COMPLETED, FAILED, TIMEOUT, …; empty as long as it lasts, or when nobody has said."""
    why: str = ""
    """What ended it, unless it was the end of the script."""
    generations: list[GenerationState] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class RunState:
    """See the module."""

    run_id: str
    attempts: dict[int, AttemptState] = field(default_factory=dict)
    nodes: dict[int, NodeState] = field(default_factory=dict)
    ranks: dict[int, RankState] = field(default_factory=dict)
    """Of the newest generation."""
    verdict: Mapping[str, Any] | None = None
    """Why it failed, or hangs, if it does."""
    metrics: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """By name: step and value."""
    said: list[tuple[float, str]] = field(default_factory=list)
    """What nodes had to say, and when."""

    @property
    def attempt(self) -> AttemptState | None:
        """The newest."""
        return self.attempts[max(self.attempts)] if self.attempts else None

    @property
    def phase(self) -> str:
        """In one word: QUEUED, STARTING, RUNNING, RESTARTING, or how it ended."""
        attempt = self.attempt
        if attempt is None:
            return QUEUED
        if attempt.outcome:
            return attempt.outcome
        now = [one for one in attempt.generations if one.began_s >= attempt.began_s]
        if not now:
            return STARTING
        return RUNNING if now[-1].ended_s is None else RESTARTING

    @property
    def step(self) -> int:
        """How far all ranks are; -1 where none speaks of steps."""
        steps = [
            int(rank.numbers["step"]) for rank in self.ranks.values() if "step" in rank.numbers
        ]
        return min(steps, default=-1)

    @property
    def seen_s(self) -> float:
        """When it was last measured, by its controller's clock; 0 where nobody measures."""
        return max((node.seen_s for node in self.nodes.values()), default=0.0)

    # --- what is fed ----------------------------------------------------------------------------

    def feed_event(self, number: int, event: Event) -> None:
        """Take in what an attempt's controller wrote."""
        attempt = self.attempts.setdefault(number, AttemptState(number=number))
        if take := _TAKES.get(event.kind):
            take(self, attempt, event)

    def _take_attempt(self, attempt: AttemptState, event: Event) -> None:
        attempt.job_id, attempt.began_s = str(event.data.get("job", "")), event.time_s
        # A job may have been queued again.
        attempt.ended_s, attempt.outcome, attempt.why = None, "", ""
        self.nodes, self.ranks, self.verdict = {}, {}, None

    def _take_joined(self, _attempt: AttemptState, event: Event) -> None:
        node = _int(event.data, "node")
        self.nodes[node] = NodeState(node=node, name=str(event.data.get("name", "")))

    def _take_lost(self, _attempt: AttemptState, event: Event) -> None:
        if known := self.nodes.get(_int(event.data, "node")):
            known.here = False

    def _take_exited(self, _attempt: AttemptState, event: Event) -> None:
        if rank := self.ranks.get(_int(event.data, "rank")):
            rank.alive = False
            if (step := _int(event.data, "step")) >= 0:
                rank.numbers["step"] = max(step, rank.numbers.get("step", -1))
            rank.failed = bool(event.data.get("code") or event.data.get("signal"))

    def _take_spent(self, attempt: AttemptState, event: Event) -> None:
        if attempt.generations:
            attempt.generations[-1].ended_s = event.time_s

    def _take_restart(self, attempt: AttemptState, event: Event) -> None:
        if attempt.generations:
            attempt.generations[-1].why = headline(event.data.get("verdict"))

    def _take_verdict(self, _attempt: AttemptState, event: Event) -> None:
        self.verdict = event.data

    def _take_note(self, _attempt: AttemptState, event: Event) -> None:
        self.said.append((event.time_s, str(event.data.get("text", ""))))

    def _take_ended(self, attempt: AttemptState, event: Event) -> None:
        attempt.ended_s, attempt.outcome = event.time_s, str(event.data.get("state", ""))
        attempt.why = str(event.data.get("why", ""))

    def _take_generation(self, attempt: AttemptState, event: Event) -> None:
        number, nodes = _int(event.data, "generation"), _int(event.data, "nodes")
        ranks = to_count(event.data.get("world_size"), below=MOST_RANKS) or 0
        attempt.generations.append(
            GenerationState(number=number, began_s=event.time_s, ranks=ranks, nodes=nodes)
        )
        self.ranks = {rank: RankState(rank=rank, generation=number) for rank in range(ranks)}

    def feed_sample(self, number: int, node: int, sample: Sample) -> None:
        """Take in what was measured on a node; of earlier attempts nothing is shown here."""
        if not self.attempt or number != self.attempt.number:
            return
        known = self.nodes.setdefault(node, NodeState(node=node))
        known.seen_s = sample.time_s
        for name, value in {**sample.lasts, **sample.peaks, **sample.means}.items():
            owner, number_of, what = split_name(name)
            if not owner:
                known.numbers[name] = value
            elif owner == "gpu":
                known.gpus.setdefault(number_of, {})[what] = value
            elif owner == "rank":
                self._see(number_of, node, what, value, sample)

    def _see(self, number: int, node: int, what: str, value: float, sample: Sample) -> None:
        rank = self.ranks.get(number)
        # The file may be behind the controller's, and speak of ranks that were before.
        if rank and sample.lasts.get(f"rank{number}.generation") == rank.generation:
            rank.node = node
            if what != "step":
                rank.numbers[what] = value
            elif value >= 0:  # a script that uses no library speaks of no steps
                # What was measured last may be older than what the rank said when it went.
                rank.numbers[what] = max(value, rank.numbers.get(what, value))

    def feed_metric(self, event: Event) -> None:
        """Take in a line of what the training measured."""
        step, told = _int(event.data, "step"), event.data.get("metrics")
        # What a validation calls `loss` is another curve than that of the steps.
        kind = "" if event.kind == "step" else f"{event.kind} "
        for name, value in told.items() if isinstance(told, Mapping) else ():
            if isinstance(value, int | float) and not isinstance(value, bool):
                with suppress(OverflowError):  # an integer of any length
                    self._add_point(f"{kind}{name}", step, float(value))

    def _add_point(self, name: str, step: int, value: float) -> None:
        points = self.metrics.setdefault(name, [])
        points.append((step, value))
        if len(points) > _MOST_POINTS:  # a run of weeks: every other of the older ones will do
            del points[: _MOST_POINTS // 2 : 2]


_TAKES: Mapping[str, Callable[[RunState, AttemptState, Event], None]] = {
    "attempt": RunState._take_attempt,  # noqa: SLF001  of this very module
    "joined": RunState._take_joined,  # noqa: SLF001
    "lost": RunState._take_lost,  # noqa: SLF001
    "departed": RunState._take_lost,  # noqa: SLF001
    "generation": RunState._take_generation,  # noqa: SLF001
    "exited": RunState._take_exited,  # noqa: SLF001
    "spent": RunState._take_spent,  # noqa: SLF001
    "restart": RunState._take_restart,  # noqa: SLF001
    "verdict": RunState._take_verdict,  # noqa: SLF001
    "hang": RunState._take_verdict,  # noqa: SLF001
    "note": RunState._take_note,  # noqa: SLF001
    "ended": RunState._take_ended,  # noqa: SLF001
}


_OWNED = re.compile(r"(gpu|rank)([0-9]{1,6})\.(.*)", re.DOTALL)


@lru_cache(maxsize=1 << 16)
def split_name(name: str) -> tuple[str, int, str]:
    """Return whose a value is and which it is: `rank3.step`. Names come again every second."""
    if found := _OWNED.fullmatch(name):
        return found[1], int(found[2]), found[3]
    _, dot, what = name.partition(".")
    return ("?" if dot else ""), -1, what


def _int(data: Mapping[str, Any], name: str) -> int:
    value = to_count(data.get(name))
    return -1 if value is None else value


def headline(verdict: Any) -> str:
    """Return why ranks failed, in a line: of a verdict's record; empty without one."""
    failure = verdict.get("failure") if isinstance(verdict, Mapping) else None
    if not isinstance(failure, Mapping):
        return ""
    rank = _int(failure, "rank")
    who = f"rank {rank}" if rank >= 0 else ""
    where = f"on {failure['node']}" if failure.get("node") else ""
    place = " ".join(part for part in (who, where) if part)
    return f"{place}: {failure.get('message', '')}" if place else str(failure.get("message", ""))
