"""Noticing that ranks make no progress, and which of them is the odd one. Pure: time is given.

A rank that speaks of its steps hangs when no step has begun for the time allowed. Of one that does
not, only its main thread is seen: blocked, in one wait, using no CPU at all for that long. A slow
rank is no hang, for those that wait for it wake at every step.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

_ASLEEP_S = 0.005
"""CPU time of a main thread that did nothing but wait."""
_RECENT_S = 2.5
"""Two pulses of an agent, and some delay."""
_STOPPED = ("T", "t")
_HELD = ("D",)
"""In a wait that nothing but its end can end: for storage, nearly always."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """Ranks that make no progress."""

    rank: int
    """The odd one, as far as it can be told."""
    message: str
    step: int = -1
    generation: int = 0
    sure: bool = False
    """Whether it is known without looking at stacks."""

    def with_stacks(self, stacks: Mapping[str, str]) -> "Hang":
        """Return what the ranks' stacks tell beyond it."""
        if self.sure or (found := find_odd(stacks)) is None:
            return self
        rank, message = found
        return replace(self, rank=rank, message=message)


@dataclass(slots=True)
class _Seen:
    """What was last seen of a rank, and since when it has been so."""

    step: int
    step_since_s: float
    cpu_s: float
    awake_s: float
    """When its main thread last used CPU."""
    state: str
    state_since_s: float
    felt_s: float
    """When it was last looked at: what has come since is not known, so nothing is said of it."""


class HangWatch:
    """Feels pulses, and judges; one generation at a time, and one alarm for each."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._generation = -1
        self._ranks: dict[int, _Seen] = {}

    def begin(self, generation: int) -> None:
        self._generation = generation
        self._ranks = {}

    def end(self) -> None:
        self._generation = -1

    def forget(self, rank: int) -> None:
        """Leave out a rank that has gone."""
        self._ranks.pop(rank, None)

    def feel(
        self, now_s: float, *, generation: int, rank: int, step: int, state: str, cpu_s: float
    ) -> None:
        """Take in what an agent has seen of a rank."""
        if generation != self._generation:
            return
        seen = self._ranks.get(rank)
        if seen is None:
            self._ranks[rank] = _Seen(step, now_s, cpu_s, now_s, state, now_s, now_s)
            return
        seen.felt_s = now_s
        if step != seen.step:
            seen.step, seen.step_since_s = step, now_s
        if cpu_s - seen.cpu_s > _ASLEEP_S:
            seen.cpu_s, seen.awake_s = cpu_s, now_s
        if any((state in kind) != (seen.state in kind) for kind in (_STOPPED, _HELD)):
            seen.state_since_s = now_s
        seen.state = state

    def judge(self, now_s: float) -> Hang | None:
        """Return the hang that there is; each is returned once."""
        if self._generation < 0 or not self._timeout_s or not self._ranks:
            return None
        hang = self._find(now_s)
        if hang is None:
            return None
        hang = replace(hang, generation=self._generation)
        self._generation = -1
        return hang

    def _find(self, now_s: float) -> Hang | None:
        stopped = [rank for rank, seen in self._ranks.items() if seen.state in _STOPPED]
        for rank in stopped:
            if self._is_long(self._ranks[rank], self._ranks[rank].state_since_s):
                return self._blame_stopped(rank, now_s)
        speak = any(seen.step >= 0 for seen in self._ranks.values())
        found = self._find_by_steps(now_s) if speak else self._find_by_waits(now_s)
        if found is None:
            return None
        # That it was stopped may be seen later than that nothing moves.
        return self._blame_stopped(stopped[0], now_s) if stopped else self._blame_storage(found)

    def _blame_storage(self, hang: Hang) -> Hang:
        """Return the hang of ranks that storage has held for most of the time, if it is that."""
        held = [
            rank
            for rank, seen in self._ranks.items()
            if seen.state in _HELD and seen.felt_s - seen.state_since_s >= self._timeout_s / 2
        ]
        if not held:
            return hang
        seen = self._ranks[held[0]]
        message = f"it waits for storage, for {seen.felt_s - seen.state_since_s:.0f} s"
        if others := len(held) - 1:
            so = "does another rank" if others == 1 else f"do {others} others"
            message = f"{message}, and so {so}"
        return replace(hang, rank=held[0], message=message, step=seen.step, sure=True)

    def _blame_stopped(self, rank: int, now_s: float) -> Hang:
        seen = self._ranks[rank]
        message = f"it is stopped (SIGSTOP), for {now_s - seen.state_since_s:.0f} s"
        return Hang(rank=rank, message=message, step=seen.step, sure=True)

    def _find_by_waits(self, now_s: float) -> Hang | None:
        waiting, busy = self._split(now_s)
        if not waiting:
            return None
        waits = f"nothing has moved for {self._timeout_s:g} s"
        if busy:
            return Hang(
                rank=busy[0],
                message=f"it computes or loops on, while {_count(waiting)} for it: {waits}",
                sure=True,
            )
        return Hang(rank=waiting[0], message=f"all ranks wait: {waits}")

    def _is_long(self, seen: _Seen, since_s: float) -> bool:
        """Tell whether what has been so since then is known to have lasted the time allowed."""
        return seen.felt_s - since_s >= self._timeout_s

    def _split(self, now_s: float) -> tuple[list[int], list[int]]:
        """Return the ranks that wait and those that compute; none of either while some do neither.

        Pulses of different nodes come at different times: a rank that has just begun to wait is
        no sign of anything.
        """
        waiting = [r for r, seen in self._ranks.items() if self._is_long(seen, seen.awake_s)]
        busy = [r for r, seen in self._ranks.items() if seen.awake_s > now_s - _RECENT_S]
        return (waiting, busy) if len(waiting) + len(busy) == len(self._ranks) else ([], [])

    def _find_by_steps(self, now_s: float) -> Hang | None:
        # Where only some speak of their steps, those who do not are not behind.
        ranks = {rank: seen for rank, seen in self._ranks.items() if seen.step >= 0}
        if not all(self._is_long(seen, seen.step_since_s) for seen in ranks.values()):
            return None
        behind = min(ranks, key=lambda rank: (ranks[rank].step, ranks[rank].awake_s))
        low, high = ranks[behind].step, max(seen.step for seen in ranks.values())
        stuck = f"no step has begun for {self._timeout_s:g} s"
        if low != high:
            return Hang(
                rank=behind,
                step=low,
                message=f"{stuck}; it is at step {low}, others at {high}",
                sure=True,
            )
        waiting, busy = self._split(now_s)
        if waiting and busy:
            return Hang(
                rank=busy[0],
                step=low,
                message=f"{stuck}; it computes or loops on, while {_count(waiting)} for it",
                sure=True,
            )
        return Hang(rank=behind, step=low, message=stuck)


def _count(ranks: list[int]) -> str:
    return "another rank waits" if len(ranks) == 1 else f"{len(ranks)} other ranks wait"


# --- stacks -----------------------------------------------------------------------------------

_FRAME = re.compile(r'^  File "([^"]*)", line (\d+) in (.+)$', re.MULTILINE)


def script_frames(stack: str) -> str:
    """Return a stack without the launcher's own frames."""
    own = re.compile(
        r'^  File "(?:.*/launcher/.*|<frozen runpy>)", line \d+ in .*\n?'
        r'|^  File "<string>", line \d+ in <module>\n?\Z',  # the outermost: what Python was given
        re.MULTILINE,
    )
    return own.sub("", stack)


def find_odd(stacks: Mapping[str, str]) -> tuple[int, str] | None:
    """Return the rank that is elsewhere than the others, and where; None when none is."""
    places = {int(rank): place_of(text) for rank, text in stacks.items()}
    if len(places) < 2:
        return None
    counts = Counter(places.values()).most_common()
    usual, most = counts[0]
    if len(counts) == 1 or (len(counts) > 1 and counts[1][1] == most and len(places) > 2):
        return None
    if len(places) == 2:
        # One of each: the one in no collective is the odd one, for it keeps the other waiting.
        outside = [rank for rank, place in places.items() if not place.startswith("in the coll")]
        odd = outside[0] if len(outside) == 1 else max(places)
        usual = next(place for rank, place in places.items() if rank != odd)
    else:
        odd = next(rank for rank, place in places.items() if place != usual)
    return odd, f"it is {places[odd]}, the others {usual}"


def place_of(text: str) -> str:
    """Say where a stack is: the collective it has entered, or else its own innermost line."""
    frames = [frame.groups() for frame in _main_thread(text)]
    for path, _, name in reversed(frames):
        if path.endswith(("distributed_c10d.py", "c10d_logger.py")) and name != "wrapper":
            return f"in the collective {name}"
    own = [f for f in frames if "/torch/" not in f[0] and "/lib/python" not in f[0]] or frames
    if not own:
        return text.splitlines()[0] if text else "nowhere to be seen"
    path, line, name = own[0]
    return f"in {name} ({path.rpartition('/')[2]}, line {line})"


def _main_thread(text: str) -> list[re.Match[str]]:
    """Return the frames of the thread that runs the script, the innermost first."""
    threads = re.split(r"^(?:Current thread|Thread) .*$", text, flags=re.MULTILINE)
    found = [list(_FRAME.finditer(thread)) for thread in threads]
    whole = [frames for frames in found if frames and frames[-1][3] == "<module>"]
    return (whole or [frames for frames in found if frames] or [[]])[-1]
