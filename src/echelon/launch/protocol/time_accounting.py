"""What ranks did with their time: measured by themselves, and told when they are gone.

A rank that uses the library says in its beacon when it had its process group, when its training
began, and how long it then waited. Of any other nothing is known: from its start to its exit, all
of its time counts as productive.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from echelon.launch.protocol.messages import Pace, RankExited
from echelon.launch.protocol.rank_shm import RankShm

# What the time of a rank goes to; `queue` and `launch` come before there are any.
RENDEZVOUS, WARM_UP, PRODUCTIVE = "rendezvous", "warm-up", "productive"
DATA_WAIT, STALL = "data wait", "checkpoint stall"
REDONE, RESTART, IDLE = "redone work", "restart", "idle"
PHASES = (RENDEZVOUS, WARM_UP, PRODUCTIVE, DATA_WAIT, STALL, REDONE, RESTART, IDLE)


# --- the agent's side -------------------------------------------------------------------------


class Motion:
    """When a rank was last seen to move, by looks at its beacon: that costs the rank nothing."""

    def __init__(self, beacon: RankShm) -> None:
        self._beacon = beacon
        self._seen = (-1, -1)
        self._moved_s = float("inf")

    def look(self, now_s: float) -> float:
        """Return for how long it has not moved; 0 when it never has."""
        seen = (self._beacon.step, self._beacon.passed)
        if seen != self._seen:
            self._seen, self._moved_s = seen, now_s
        return max(0.0, now_s - self._moved_s)


def read_spent(beacon: RankShm, still_s: float) -> dict[str, int]:
    """Return the numbers of a rank that has gone, and had not moved for so long."""
    return {
        "ran_us": beacon.elapsed_us(),
        "met_us": beacon.met_us,
        "began_us": beacon.began_us,
        "first": beacon.first,
        "data_us": beacon.data_us,
        "stall_us": beacon.stall_us,
        "still_us": int(still_s * 1e6),
    }


def read_pace(beacons: Sequence[RankShm]) -> Pace | None:
    """Return how fast a node's ranks save and could stop; None without ranks."""
    if not beacons:
        return None
    saved = [beacon.saved for beacon in beacons]
    return Pace(
        save_us=max(beacon.save_us for beacon in beacons),
        way_us=max(beacon.pass_us for beacon in beacons),
        saved_low=min(saved),
        saved_high=max(saved),
    )


# --- the controller's side --------------------------------------------------------------------


def split(gone: RankExited) -> dict[str, int]:
    """Divide the time of a rank, from its start to its exit; microseconds.

    One that did not end well may not have moved for a while: a step that it did not finish is to
    be done again, and the rest is what it took to find out.
    """
    told = gone.spent
    ran = left = told.get("ran_us", 0)
    found = dict.fromkeys(PHASES, 0)

    def take(phase: str, wanted: int) -> None:
        nonlocal left
        found[phase] += (taken := min(left, max(0, wanted)))
        left -= taken

    if (met := told.get("met_us", -1)) >= 0:
        take(RENDEZVOUS, met or ran)
    if (began := told.get("began_us", -1)) >= 0:
        take(WARM_UP, (began or ran) - found[RENDEZVOUS])
    take(STALL, told.get("stall_us", -1))
    take(DATA_WAIT, told.get("data_us", -1))
    still = min(left, told.get("still_us", 0)) if gone.code or gone.signal else 0
    take(PRODUCTIVE, left - still)
    if (steps := steps_of(gone)) > 0:
        take(REDONE, found[PRODUCTIVE] // steps)
    take(RESTART, left)
    return found


def steps_of(gone: RankExited) -> int:
    """Return how many steps a rank has taken, as far as it said so."""
    first = gone.spent.get("first", -1)
    return max(0, gone.step - first) if first >= 0 else 0


class Spending:
    """What the ranks of one generation did with their time. Pure: it is told when what happens."""

    def __init__(self) -> None:
        self._began_s = 0.0
        self._here: set[int] = set()
        self._left: list[tuple[float, RankExited]] = []
        self._lost_s: list[float] = []
        """For how long those were here of whom nothing was heard again."""
        self._failed_s = float("inf")
        self._count = 0

    def begin(self, ranks: Iterable[int], now_s: float) -> None:
        self._here = set(ranks)
        self._count, self._began_s = len(self._here), now_s

    def leave(self, gone: RankExited, now_s: float) -> None:
        """Take the account of a rank that has gone."""
        if gone.rank in self._here:
            self._here.discard(gone.rank)
            self._left.append((now_s, gone))
            if gone.code or gone.signal:
                self._failed_s = min(self._failed_s, now_s)

    def lose(self, rank: int, now_s: float) -> None:
        """Do without the account of one that was lost with its node."""
        if rank in self._here:
            self._here.discard(rank)
            self._lost_s.append(now_s - self._began_s)
            self._failed_s = min(self._failed_s, now_s)

    def record(self, now_s: float, *, again: bool) -> dict[str, Any]:
        """Return it for an event, once all are gone: seconds by phase, over all ranks.

        Whether ranks are to be started `again` says what the time is that the first to go waited.

        What is missing from ranks times duration is from one's exit to the end of all.
        """
        for rank in sorted(self._here):
            self.lose(rank, now_s)
        total = dict.fromkeys(PHASES, 0.0)
        for _, gone in self._left:
            for phase, spent_us in split(gone).items():
                total[phase] += spent_us / 1e6
        self._add_lost(total)
        until_s = min(now_s, self._failed_s)
        total[IDLE] = sum(max(0.0, until_s - left_s) for left_s, _ in self._left)
        seconds = {phase: round(spent_s, 6) for phase, spent_s in total.items()}
        counts = {"ranks": self._count, "known": len(self._left)}
        return {**counts, "again": again, "seconds": seconds, **self._steps()}

    def _add_lost(self, total: dict[str, float]) -> None:
        """Let the lost have done as the others did; of a lost generation nothing is known."""
        known = dict(total) if any(total.values()) else {PRODUCTIVE: 1.0}
        whole, lost_s = sum(known.values()), sum(self._lost_s)
        for phase, spent_s in known.items():
            total[phase] += lost_s * spent_s / whole

    def _steps(self) -> dict[str, Any]:
        """Return from which step to which all ranks came, and seconds of a rank for each."""
        trained = [gone for _, gone in self._left if gone.spent.get("first", -1) >= 0]
        if not trained:
            return {}
        first = max(gone.spent["first"] for gone in trained)
        last = max(first, min(gone.step for gone in trained))
        steps = sum(steps_of(gone) for gone in trained)
        productive_us = sum(split(gone)[PRODUCTIVE] for gone in trained)
        steps_s = round(productive_us / 1e6 / steps, 6) if steps else 0.0
        return {"first": first, "last": last, "steps_s": steps_s}
