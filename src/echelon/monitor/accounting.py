"""Where the time of a run went: each second of each slot counts towards one category.

A slot is a GPU, or a CPU rank if there are no GPUs, from the start of an attempt's controller to
its end. Times are compared within one controller only. The exception is the queue: its start is
known from the submission.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from echelon.core.frozen import frozen
from echelon.monitor.state import GenerationState, RunState, TimedEvent, Timeline
from echelon.run.events import AttemptStarted, GenerationEnded, NodeDeparted, SlotsCounted
from echelon.run.rank_time import (
    DATA_WAIT,
    IDLE,
    PEER_WAIT,
    PHASES,
    PRODUCTIVE,
    REDONE,
    RESTART,
    STALL,
)

QUEUE, LAUNCH = "queue", "launch"
RUNNING = "running"
"""Of ranks that reported no steps: how much of it was training is unknown."""
_LOOP = (PRODUCTIVE, DATA_WAIT, STALL, PEER_WAIT)
CATEGORIES = (QUEUE, LAUNCH, *PHASES, RUNNING)


@frozen
class Accounts:
    """Where the time went. In whole microseconds, so that sums are exact."""

    spent_us: Mapping[str, int]
    """By category. The queue is wall-clock time; the others are times of slots, and add up to what
    was allocated."""
    allocated_us: int
    """The sum of the slots' lifetimes."""
    gpus: bool = False
    """Whether slots are GPUs."""

    @property
    def seconds(self) -> dict[str, float]:
        return {category: spent_us / 1e6 for category, spent_us in self.spent_us.items()}

    @property
    def effective(self) -> float | None:
        """Share of the allocated time that was productive; None if that is unknown."""
        if not self.allocated_us or (self.running and not self.spent_us[PRODUCTIVE]):
            return None
        return self.spent_us[PRODUCTIVE] / self.allocated_us

    @property
    def running(self) -> float:
        """Share of the allocated time of ranks that reported no steps."""
        return self.spent_us.get(RUNNING, 0) / self.allocated_us if self.allocated_us else 0.0

    def render(self) -> str:
        """Return a line for people; empty if nothing was allocated."""
        if self.effective is None:
            return "unknown, no steps were reported" if self.running else ""
        unit = "GPU" if self.gpus else "rank"
        return f"{100 * self.effective:.0f} % of {self.allocated_us / 1e6:,.0f} {unit}-seconds"


def account(state: RunState) -> Accounts:
    """Return where the time of a run went, over all its attempts.

    An attempt whose controller vanished counts until its last event, or until its nodes were last
    measured if it is the newest. The time of its last ranks, which was never reported, counts as
    productive if they reported steps, except for steps that were repeated later.
    """
    total = dict.fromkeys(CATEGORIES, 0)
    generations: list[_Generation] = []
    allocated_us, before_us = 0, 0
    for _, attempt in sorted(state.attempts.items()):
        submitted_us = _micros(attempt.submitted_s or 0.0)
        goes_on = attempt is state.attempt and attempt.ended_s is None
        for timeline in attempt.timelines:
            last = goes_on and timeline is attempt.timelines[-1]
            session = _Session(timeline, state.seen_s if last else 0.0)
            # The next attempt may be in the queue while the last one still runs.
            if waits_us := max(submitted_us, before_us):
                total[QUEUE] += max(0, session.began_us - waits_us)
            before_us = session.now_us + _micros(timeline.ahead_s)
            allocated_us += session.allocated_us
            _add(total, session.spent_us)
            generations += session.generations
    _find_redone(generations)
    for generation in generations:
        _add(total, generation.spent_us)
    gpus = any(attempt.gpus for attempt in state.attempts.values())
    return Accounts(spent_us=total, allocated_us=allocated_us, gpus=gpus)


@dataclass(slots=True, kw_only=True)
class _Generation:
    """The account of one generation of ranks."""

    state: GenerationState
    began_us: int
    spent_us: dict[str, int] = field(default_factory=dict)
    first: int | None = None
    last: int = 0
    step_us: float = 0.0
    """Time of one rank for one step."""

    def end(self, now_us: int, ended: GenerationEnded | None) -> None:
        """Account for all its time, by what its ranks reported if that is known."""
        whole = self.state.ranks * (now_us - self.began_us)
        if ended is None:
            if beats := self.state.beats:  # of a generation that vanished
                (from_s, self.first), (to_s, self.last) = beats[0], beats[-1]
                self.step_us = _micros(to_s - from_s) / max(1, self.last - self.first)
            self._estimate(whole)
            return
        phases = {phase: _micros(ended.seconds.get(phase, 0.0)) for phase in PHASES}
        self.spent_us = _fit(phases, whole)
        self.spent_us[RESTART if ended.again else IDLE] += whole - sum(self.spent_us.values())
        if ended.first is not None and ended.last is not None:
            self.first, self.last = ended.first, ended.last
            self.step_us = 1e6 * (ended.steps_s or 0.0)
        else:
            self.spent_us[RUNNING] = self.spent_us.pop(PRODUCTIVE)

    def _estimate(self, whole: int) -> None:
        """Account for ranks that have not reported their end, by their last heartbeat.

        Since then, they have probably spent their time as they did in the training loop before.
        """
        if not self.state.has_steps:
            self.spent_us = {RUNNING: whole}
            return
        known = {phase: _micros(self.state.seconds.get(phase, 0.0)) for phase in PHASES}
        self.spent_us = _fit(known, whole)
        rest, loop = whole - sum(self.spent_us.values()), sum(self.spent_us[one] for one in _LOOP)
        for phase in _LOOP if loop else ():
            self.spent_us[phase] += rest * self.spent_us[phase] // loop
        self.spent_us[PRODUCTIVE] += whole - sum(self.spent_us.values())
        loop = sum(self.spent_us[one] for one in _LOOP)
        self.step_us *= self.spent_us[PRODUCTIVE] / loop if loop else 1.0

    def redo_from(self, step: int) -> None:
        """Reclassify the steps from this one on, where later ranks started: they were repeated."""
        if self.first is None:
            return
        lost = max(0, self.last - max(self.first, step))
        redone = min(self.spent_us[PRODUCTIVE], round(lost * self.step_us * self.state.ranks))
        self.spent_us[PRODUCTIVE] -= redone
        self.spent_us[REDONE] = self.spent_us.get(REDONE, 0) + redone


def _find_redone(generations: Sequence[_Generation]) -> None:
    """Count each step once: a step that a later generation repeated was lost work before."""
    resumed: int | None = None
    for generation in reversed(generations):
        if resumed is not None:
            generation.redo_from(resumed)
        if generation.first is not None:
            resumed = generation.first if resumed is None else min(resumed, generation.first)


class _Session:
    """The account of one controller process, apart from its generations' own."""

    def __init__(self, timeline: Timeline, seen_s: float) -> None:
        self.began_us = self.now_us = _micros(timeline.began_s)
        self.allocated_us = 0
        self.generations: list[_Generation] = []
        self.spent_us = {LAUNCH: 0, RESTART: 0, IDLE: 0}
        self._slots = _first_slots(timeline)
        self._running: _Generation | None = None
        self._held_us = 0
        """Time of all slots since there were ranks."""
        for time_s, event in timeline.changes:
            self._pass_time(time_s)
            self._read(event)
        self._pass_time(max(timeline.seen_s, seen_s))
        self._end_ranks(None)
        self.spent_us[IDLE if self.generations else LAUNCH] += self._held_us

    def _read(self, event: TimedEvent) -> None:
        match event:
            case SlotsCounted(slots=slots) | NodeDeparted(slots=slots) if slots >= 0:
                self._slots = slots
            case GenerationState():
                self._end_ranks(None)
                self.spent_us[RESTART if self.generations else LAUNCH] += self._held_us
                self._held_us = 0
                self._running = _Generation(state=event, began_us=self.now_us)
                self.generations.append(self._running)
            case GenerationEnded(generation=number):
                if self._running and self._running.state.number == number:
                    self._end_ranks(event)

    def _pass_time(self, time_s: float) -> None:
        passed_us = _micros(time_s) - self.now_us
        self.now_us += passed_us
        ranks = self._running.state.ranks if self._running else 0
        slots = max(self._slots, ranks)  # ranks hold their slots until their end is known
        self.allocated_us += slots * passed_us
        if self._running:
            self.spent_us[IDLE] += (slots - ranks) * passed_us
        else:
            self._held_us += slots * passed_us

    def _end_ranks(self, ended: GenerationEnded | None) -> None:
        if self._running:
            self._running.end(self.now_us, ended)
            self._running = None


def _first_slots(timeline: Timeline) -> int:
    """Return how many slots there were at first; that is certain once all agents have joined."""
    guess = left = 0
    for _, event in timeline.changes:
        match event:
            case AttemptStarted(slots=slots):
                guess = left = max(0, slots)
            case NodeDeparted(slots=slots):
                left = max(0, slots)
            case SlotsCounted(slots=slots):
                return max(0, slots) + (max(0, guess - left) if guess else 0)
            case GenerationState(ranks=ranks):
                return max(guess, ranks)
    return guess


def _fit(spent_us: dict[str, int], whole: int) -> dict[str, int]:
    """Shrink times whose sum exceeds the whole: the clocks of two machines differ a little."""
    found = sum(spent_us.values())
    if found <= whole:
        return spent_us
    return {phase: us * whole // found for phase, us in spent_us.items()}


def _add(total: dict[str, int], spent_us: Mapping[str, int]) -> None:
    for category, us in spent_us.items():
        total[category] += us


def _micros(seconds: float) -> int:
    return round(seconds * 1e6)
