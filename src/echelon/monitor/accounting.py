"""Where the time of a run went: each second of each slot of a rank has one purpose.

A slot is a GPU, or a CPU rank where there is none, from the start of an attempt's controller to its
end. It all comes from the controllers' events. Times are compared within one controller's file
only, with the exception of the queue, whose beginning nobody there has seen.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from echelon.core.records import MOST_COUNT, MOST_RANKS, read_record, to_count
from echelon.launch.protocol.time_accounting import IDLE, PHASES, PRODUCTIVE, REDONE, RESTART
from echelon.run.directory import RunDir
from echelon.run.event_log import Event, EventReader

QUEUE, LAUNCH = "queue", "launch"
CATEGORIES = (QUEUE, LAUNCH, *PHASES)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEvents:
    """What is known of one attempt."""

    submitted_s: float | None = None
    """When it was queued, in seconds since the epoch; None when nobody wrote it down."""
    events: Sequence[Event] = ()
    """Of its controller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """Where the time went. Whole microseconds, so that nothing is lost in adding up."""

    spent_us: Mapping[str, int]
    """By category. All but the queue are times of slots, and add up to what was allocated; the
    queue is the time on the clock."""
    allocated_us: int
    """Slots, times how long they were there."""
    gpus: bool = False
    """Whether slots are GPUs."""

    @property
    def seconds(self) -> dict[str, float]:
        return {category: spent_us / 1e6 for category, spent_us in self.spent_us.items()}

    @property
    def effective(self) -> float | None:
        """Share of the allocated time that was productive; None when nothing was allocated."""
        return self.spent_us[PRODUCTIVE] / self.allocated_us if self.allocated_us else None

    def render(self) -> str:
        """Return a line for people; empty when there is nothing to say."""
        if self.effective is None:
            return ""
        unit = "GPU" if self.gpus else "rank"
        return f"{100 * self.effective:.0f} % of {self.allocated_us / 1e6:,.0f} {unit}-seconds"


@dataclass(slots=True, kw_only=True)
class _Generation:
    """One set of ranks, while it is read."""

    number: int
    began_us: int
    ranks: int
    steps: list[tuple[int, int]] = field(default_factory=list)
    """When it was at which step."""
    spent_us: dict[str, int] = field(default_factory=dict)
    first: int | None = None
    last: int = 0
    step_us: float = 0.0
    """Of one rank."""

    def end(self, now_us: int, spent: Mapping[str, Any] | None) -> None:
        """Account for all of it; by what its ranks said, if that is known."""
        whole = self.ranks * (now_us - self.began_us)
        if spent is None:
            self.spent_us = {PRODUCTIVE: whole}
            self._guess_pace()
            return
        self.spent_us = _fit(_phases(spent), whole)
        rest = RESTART if spent.get("again") is True else IDLE
        self.spent_us[rest] += whole - sum(self.spent_us.values())
        first, last = to_count(spent.get("first")), to_count(spent.get("last"))
        if first is not None and last is not None:
            self.first, self.last = first, last
            self.step_us = 1e6 * _number(spent.get("steps_s"))

    def _guess_pace(self) -> None:
        """Take the steps of one that vanished from what was written down while it lived."""
        if self.steps:
            (from_us, self.first), (to_us, self.last) = self.steps[0], self.steps[-1]
            self.step_us = (to_us - from_us) / max(1, self.last - self.first)

    def redo_from(self, step: int) -> None:
        """Take back steps that were done again, because the ranks after it began at this one."""
        if self.first is None:
            return
        lost = max(0, self.last - max(self.first, step))
        redone = min(self.spent_us[PRODUCTIVE], round(lost * self.step_us * self.ranks))
        self.spent_us[PRODUCTIVE] -= redone
        self.spent_us[REDONE] = self.spent_us.get(REDONE, 0) + redone


@dataclass(slots=True, kw_only=True)
class _Session:
    """One life of a controller; a job that was queued again has several in one file."""

    began_us: int
    ended_us: int
    allocated_us: int
    generations: list[_Generation]
    spent_us: dict[str, int]
    """What is no rank's."""


def account(attempts: Sequence[AttemptEvents], seen_s: float = 0.0) -> Accounts:
    """Return where the time of a run went, over all its attempts.

    A controller that vanished is counted until its last event, and what its last ranks did, which
    nobody has said, as productive; but the steps that had to be done again are not.

    Args:
        attempts: the first one first.
        seen_s: when a run that goes on was last seen alive, by its controller's clock: its time
            counts until then.
    """
    total = dict.fromkeys(CATEGORIES, 0)
    generations: list[_Generation] = []
    allocated_us, before_us = 0, 0
    for attempt in _prolong(attempts, seen_s):
        submitted_us = _micros(attempt.submitted_s)
        for session in map(_read_session, _sessions(attempt.events)):
            # The next attempt may be in the queue while the last one still runs.
            if waits_us := max(submitted_us, before_us):
                total[QUEUE] += max(0, session.began_us - waits_us)
            before_us = session.ended_us
            allocated_us += session.allocated_us
            _add(total, session.spent_us)
            generations += session.generations
    _find_redone(generations)
    for generation in generations:
        _add(total, generation.spent_us)
    joined = [event for attempt in attempts for event in attempt.events if event.kind == "joined"]
    gpus = any(event.data.get("gpus") for event in joined)
    return Accounts(spent_us=total, allocated_us=allocated_us, gpus=gpus)


def _prolong(attempts: Sequence[AttemptEvents], seen_s: float) -> Sequence[AttemptEvents]:
    """Let the last attempt, if nobody has ended it, last until it was seen."""
    if not attempts or not attempts[-1].events:
        return attempts
    *earlier, newest = attempts
    last = newest.events[-1]
    if last.kind == "ended" or last.time_s >= seen_s:
        return attempts
    events = [*newest.events, Event(time_s=seen_s, kind="seen", data={})]
    return [*earlier, replace(newest, events=events)]


def _find_redone(generations: Sequence[_Generation]) -> None:
    """Let each step count once: what a later generation went back behind was done in vain."""
    resumed: int | None = None
    for generation in reversed(generations):
        if resumed is not None:
            generation.redo_from(resumed)
        if generation.first is not None:
            resumed = generation.first if resumed is None else min(resumed, generation.first)


def _sessions(events: Sequence[Event]) -> Iterator[list[Event]]:
    """Divide a file where a controller begins."""
    session: list[Event] = []
    for event in events:
        if event.kind == "attempt" and session:
            yield session
            session = []
        session.append(event)
    if session:
        yield session


class _Reader:
    """Reads one life of a controller, event by event."""

    def __init__(self, began_us: int, slots: int) -> None:
        self._now_us, self._slots = began_us, slots
        self._running: _Generation | None = None
        self._session = _Session(
            began_us=began_us,
            ended_us=began_us,
            allocated_us=0,
            generations=[],
            spent_us={LAUNCH: 0, RESTART: 0, IDLE: 0},
        )
        self._between = LAUNCH
        """What the time is in which no ranks are there."""
        self._held_us = 0
        """The same time, of all slots, since there were ranks."""

    def read(self, event: Event) -> None:
        self._pass_time(_micros(event.time_s))
        number = to_count(event.data.get("generation")) or 0
        if event.kind in ("slots", "departed"):
            told = to_count(event.data.get("slots"))
            self._slots = self._slots if told is None else told
        elif event.kind == "generation":
            self._end_ranks(None)
            self._spend(self._between, self._held_us)
            self._between, self._held_us = RESTART, 0
            ranks = to_count(event.data.get("world_size"), below=MOST_RANKS) or 0
            self._running = _Generation(number=number, began_us=self._now_us, ranks=ranks)
            self._session.generations.append(self._running)
        elif self._running is None or number != self._running.number:
            return
        elif event.kind == "spent":
            self._end_ranks(event.data)
        elif event.kind == "alive" and (step := to_count(event.data.get("step"))) is not None:
            self._running.steps.append((self._now_us, step))

    def end(self) -> _Session:
        self._end_ranks(None)
        self._spend(IDLE if self._session.generations else LAUNCH, self._held_us)
        self._session.ended_us = self._now_us
        return self._session

    def _pass_time(self, now_us: int) -> None:
        passed_us = max(0, now_us - self._now_us)  # a clock may have been set back
        self._now_us += passed_us
        ranks = self._running.ranks if self._running else 0
        slots = max(self._slots, ranks)  # ranks are there until their end is known
        self._session.allocated_us += slots * passed_us
        if self._running:
            self._spend(IDLE, (slots - ranks) * passed_us)
        else:
            self._held_us += slots * passed_us

    def _end_ranks(self, spent: Mapping[str, Any] | None) -> None:
        if self._running:
            self._running.end(self._now_us, spent)
            self._running = None

    def _spend(self, category: str, us: int) -> None:
        self._session.spent_us[category] += us


def _read_session(events: Sequence[Event]) -> _Session:
    reader = _Reader(_micros(events[0].time_s), _first_slots(events))
    for event in events:
        reader.read(event)
    return reader.end()


def _first_slots(events: Sequence[Event]) -> int:
    """Return how many there were at first; it is known for sure when the nodes have come."""
    guess, used = 0, 0
    for event in events:
        slots = to_count(event.data.get("slots")) or 0
        if event.kind == "attempt":
            guess = left = slots
        elif event.kind == "departed" and guess:
            left = slots
        elif event.kind == "slots":
            return slots + (max(0, guess - left) if guess else 0)
        elif event.kind == "generation":
            used = to_count(event.data.get("world_size"), below=MOST_RANKS) or 0
            break
    return max(guess, used)


# --- numbers that somebody has written --------------------------------------------------------


def _phases(spent: Mapping[str, Any]) -> dict[str, int]:
    told = spent.get("seconds")
    known = told if isinstance(told, Mapping) else {}
    return {phase: _micros(known.get(phase)) for phase in PHASES}


def _fit(spent_us: dict[str, int], whole: int) -> dict[str, int]:
    """Shrink times that are more than there was: clocks of two machines differ a little."""
    found = sum(spent_us.values())
    if found <= whole:
        return spent_us
    return {phase: us * whole // found for phase, us in spent_us.items()}


def _add(total: dict[str, int], spent_us: Mapping[str, int]) -> None:
    for category, us in spent_us.items():
        total[category] += us


def _number(value: Any) -> float:
    """Return a time that was written down; 0 when it is none."""
    return float(value) if isinstance(value, int | float) and 0 < value < MOST_COUNT else 0.0


def _micros(seconds: Any) -> int:
    return round(_number(seconds) * 1e6)


# --- from files -------------------------------------------------------------------------------


class AttemptsReader:
    """Follows what a run's controllers write: each file is read once."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._readers: dict[int, EventReader] = {}
        self._events: dict[int, list[Event]] = {}

    def read(self) -> bool:
        """Take in what is new; tell whether there was anything."""
        found = False
        for number in self._run.begun_numbers():
            path = self._run.events_of(f"controller-{number}")
            new = self._readers.setdefault(number, EventReader(path)).read()
            self._events.setdefault(number, []).extend(new)
            found = found or bool(new)
        return found

    def attempts(self) -> list[AttemptEvents]:
        """Return all of it, the first attempt first."""
        return [
            AttemptEvents(submitted_s=_submitted(self._run, number), events=events)
            for number, events in sorted(self._events.items())
        ]


def read_attempts(run: RunDir) -> list[AttemptEvents]:
    """Return what a run's controllers have written, the first attempt first."""
    reader = AttemptsReader(run)
    reader.read()
    return reader.attempts()


def _submitted(run: RunDir, attempt: int) -> float | None:
    try:
        record = read_record(run.attempt(attempt) / "job.json")
        return datetime.fromisoformat(record["submitted"]).timestamp()
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return None
