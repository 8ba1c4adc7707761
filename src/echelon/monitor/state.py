"""The state of a run: everything that its processes wrote, folded into one value.

The terminal view, the web page, the report, accounting and export all start from this value.
`RunReader` feeds it with what is new.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from echelon.run import events
from echelon.run.event_log import Record
from echelon.run.metrics import MetricEvent, StepLogged, ValidationLogged
from echelon.run.request import Summary
from echelon.run.series import Sample
from echelon.run.verdict import Verdict

_MOST_POINTS = 20_000
"""Maximum number of points per curve."""
QUEUED, STARTING, RUNNING, RESTARTING = "QUEUED", "STARTING", "RUNNING", "RESTARTING"


@dataclass(slots=True, kw_only=True)
class RankState:
    """A rank, as it was last seen."""

    rank: int
    node: int = -1
    """Index of its node; -1 if it is not known."""
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
    import_s: float = 0.0
    """How long it took to import the ranks' modules,"""
    import_waited_s: float = 0.0
    """and how much of that was spent waiting, mostly for storage."""


@dataclass(slots=True, kw_only=True)
class GenerationState:
    """One generation of ranks, from its start to its end."""

    number: int
    began_s: float
    ranks: int
    nodes: int
    ended_s: float | None = None
    why: str = ""
    """The failure that ended it; empty for the last generation, and if it only made room."""
    beats: tuple[tuple[float, int], ...] = ()
    """The first and the last heartbeat: time and step."""
    has_steps: bool = False
    """Whether a rank has reported a step."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Phase → seconds of all ranks, as of the last heartbeat."""

    def beat(self, time_s: float, event: events.Heartbeat) -> None:
        self.has_steps = True
        if self.ended_s is None:
            self.beats = (*self.beats[:1], (time_s, event.step))
            self.seconds = event.seconds


_Timed = events.AttemptStarted | events.SlotsCounted | events.NodeDeparted | events.GenerationEnded
TimedEvent = _Timed | GenerationState


@dataclass(slots=True, kw_only=True)
class Timeline:
    """One controller process, for accounting. A job that Slurm requeues has several."""

    began_s: float
    seen_s: float
    """Time of the last event. It never goes back, even if the clock was set back."""
    ahead_s: float = 0.0
    """How far the clock has been set forward since its start; its times do not follow."""
    changes: list[tuple[float, TimedEvent]] = field(default_factory=list)
    """What changed the number of slots or ranks, and when."""

    def add(self, event: TimedEvent) -> None:
        self.changes.append((self.seen_s, event))


@dataclass(slots=True, kw_only=True)
class AttemptState:
    """One job."""

    number: int
    job_id: str = ""
    submitted_s: float | None = None
    """When it was submitted; None if that is not recorded. Not from an event: see reading.py."""
    began_s: float = 0.0
    ended_s: float | None = None
    outcome: str = ""
    """COMPLETED, FAILED, TIMEOUT, …; empty while it runs, or if none was recorded."""
    why: str = ""
    """What ended it, unless it was the end of the script."""
    hosts: dict[int, str] = field(default_factory=dict)
    """By index: names of the nodes whose agents ever joined."""
    gpus: bool = False
    """Whether any of them had GPUs."""
    restarts: int | None = None
    """How many restarts the run may have; None if that is not recorded."""
    generations: list[GenerationState] = field(default_factory=list)
    timelines: list[Timeline] = field(default_factory=list)

    def keep_time(self, record: Record[events.ControllerEvent]) -> Timeline:
        """Return the timeline that an event belongs to, after moving it forward."""
        if not self.timelines or isinstance(record.event, events.AttemptStarted):
            self.timelines.append(Timeline(began_s=record.time_s, seen_s=record.time_s))
        timeline = self.timelines[-1]
        timeline.seen_s = max(timeline.seen_s, record.time_s)
        if isinstance(record.event, events.ClockSet):
            timeline.ahead_s = record.event.seconds
        if isinstance(record.event, _Timed):
            timeline.add(record.event)
        return timeline


@dataclass(slots=True, kw_only=True)
class RunState:
    """Everything known about a run."""

    run_id: str
    asked: Summary = field(default_factory=Summary)
    """What was requested."""
    code: str = ""
    """The commit that it executes; empty if that is unknown."""
    attempts: dict[int, AttemptState] = field(default_factory=dict)
    nodes: dict[int, NodeState] = field(default_factory=dict)
    ranks: dict[int, RankState] = field(default_factory=dict)
    """Ranks of the newest generation."""
    reported_step: int = -1
    """The newest step in the controllers' events; -1 if there is none."""
    verdict: Verdict | None = None
    """Why the newest attempt failed or hangs, if it does."""
    metrics: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """By name: step and value."""
    said: list[tuple[float, str]] = field(default_factory=list)
    """Messages from agents, with their times."""

    @property
    def attempt(self) -> AttemptState | None:
        """The newest attempt."""
        return self.attempts[max(self.attempts)] if self.attempts else None

    @property
    def phase(self) -> str:
        """QUEUED, STARTING, RUNNING, RESTARTING, or how the run ended."""
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
        """The step that all ranks have reached; -1 if none reports steps."""
        steps = [
            int(rank.numbers["step"]) for rank in self.ranks.values() if "step" in rank.numbers
        ]
        return min(steps, default=-1)

    @property
    def restarts(self) -> int:
        """How often ranks were started again after a failure."""
        return sum(bool(one.why) for job in self.attempts.values() for one in job.generations)

    @property
    def seen_s(self) -> float:
        """When a node was last measured, by the controller's clock; 0 if none was."""
        return max((node.seen_s for node in self.nodes.values()), default=0.0)

    # --- input ----------------------------------------------------------------------------------

    def feed_event(  # noqa: C901, PLR0912  one case for each event
        self, number: int, record: Record[events.ControllerEvent]
    ) -> None:
        """Process an event of an attempt's controller."""
        attempt = self.attempts.setdefault(number, AttemptState(number=number))
        timeline = attempt.keep_time(record)
        match record.event:  # the most frequent events first
            case events.RankStarted():
                pass
            case events.RankExited() as event:
                if rank := self.ranks.get(event.rank):
                    rank.alive = False
                    rank.failed = bool(event.code or event.signal)
                    if event.step >= 0:
                        rank.numbers["step"] = max(event.step, rank.numbers.get("step", -1))
                        self._note_steps()
            case events.AttemptStarted() as event:
                attempt.job_id, attempt.began_s = event.job, record.time_s
                attempt.restarts = event.restarts
                # A job may have been requeued.
                attempt.ended_s, attempt.outcome, attempt.why = None, "", ""
                self.nodes, self.ranks, self.verdict = {}, {}, None
            case events.AgentJoined() as event:
                self.nodes[event.node] = NodeState(node=event.node, name=event.name)
                attempt.hosts[event.node] = event.name
                attempt.gpus |= event.gpus > 0
            case events.AgentLost(node=index) | events.NodeDeparted(node=index):
                if node := self.nodes.get(index):
                    node.here = False
            case events.GenerationStarted() as event:
                attempt.generations.append(self._start_generation(record.time_s, event))
                timeline.add(attempt.generations[-1])
            case events.Heartbeat() as event if event.step >= 0:
                self.reported_step = event.step
                if attempt.generations and attempt.generations[-1].number == event.generation:
                    attempt.generations[-1].beat(timeline.seen_s, event)
            case events.RanksStopped() as event if event.step >= 0:
                self.reported_step = event.step
            case events.GenerationEnded() as event:
                if attempt.generations:
                    attempt.generations[-1].ended_s = record.time_s
                if event.last is not None:
                    self.reported_step = event.last
            case events.RestartDecided() as event if attempt.generations:
                attempt.generations[-1].why = headline(event.verdict)
            case events.VerdictReached() | events.HangDetected() as event:
                self.verdict = event
            case events.ModulesImported() as event:
                if node := self.nodes.get(event.node):
                    node.import_s, node.import_waited_s = event.seconds, event.waited_s
            case events.AgentNote() as event:
                self.said.append((record.time_s, event.text))
            case events.AttemptEnded() as event:
                attempt.ended_s, attempt.outcome, attempt.why = (
                    record.time_s,
                    event.state,
                    event.why,
                )

    def _start_generation(self, now_s: float, event: events.GenerationStarted) -> GenerationState:
        number, count = event.generation, event.world_size
        self.ranks = {rank: RankState(rank=rank, generation=number) for rank in range(count)}
        return GenerationState(number=number, began_s=now_s, ranks=count, nodes=event.nodes)

    def feed_sample(self, number: int, node: int, sample: Sample) -> None:
        """Process a sample of a node; those of earlier attempts are ignored."""
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
        # Telemetry may lag behind the events, and describe ranks of an earlier generation.
        if rank and sample.lasts.get(f"rank{number}.generation") == rank.generation:
            rank.node = node
            if what != "step":
                rank.numbers[what] = value
            elif value >= 0:  # a script that does not use the library reports no steps
                self._note_steps()
                # The last sample may be older than the step that the rank reported when it exited.
                rank.numbers[what] = max(value, rank.numbers.get(what, value))

    def _note_steps(self) -> None:
        if self.attempt and self.attempt.generations:
            self.attempt.generations[-1].has_steps = True

    def feed_metric(self, record: Record[MetricEvent]) -> None:
        """Process a line of the training's metrics."""
        match record.event:
            case StepLogged(step=step, metrics=metrics):
                prefix = ""
            case ValidationLogged(step=step, metrics=metrics):
                prefix = "validation "  # its `loss` is a separate curve from that of the steps
            case _:
                return
        for name, value in metrics.items():
            self._add_point(f"{prefix}{name}", step, float(value))

    def _add_point(self, name: str, step: int, value: float) -> None:
        points = self.metrics.setdefault(name, [])
        points.append((step, value))
        if len(points) > _MOST_POINTS:  # a run of weeks: thin out the older half
            del points[: _MOST_POINTS // 2 : 2]


_OWNED = re.compile(r"(gpu|rank)([0-9]{1,6})\.(.*)", re.DOTALL)


@lru_cache(maxsize=1 << 16)
def split_name(name: str) -> tuple[str, int, str]:
    """Split `rank3.step` into owner, number and name. Cached: names recur every second."""
    if found := _OWNED.fullmatch(name):
        return found[1], int(found[2]), found[3]
    _, dot, what = name.partition(".")
    return ("?" if dot else ""), -1, what


def headline(verdict: Verdict | None) -> str:
    """Return why ranks failed, in one line; empty without a verdict."""
    if verdict is None:
        return ""
    failure = verdict.failure
    who = "" if failure.rank is None else f"rank {failure.rank}"
    where = f"on {failure.node}" if failure.node else ""
    place = " ".join(part for part in (who, where) if part)
    return f"{place}: {failure.message}" if place else failure.message
