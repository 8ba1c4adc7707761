"""How ranks spent their time: measured by the ranks, and reported when they exit.

A rank that uses the library writes to its shared memory when it had its process group, when its
training began, and how long it then waited. Nothing is known about other ranks: all of their time
is in `productive`, which monitor/accounting.py calls running where no steps are known.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NotRequired, TypedDict

if TYPE_CHECKING:
    from echelon.launch.protocol.messages import Pace, RankExited
    from echelon.launch.protocol.rank_shm import RankShm

# Phases of a rank's time; `queue` and `launch` come before ranks exist.
RENDEZVOUS, WARM_UP, PRODUCTIVE = "rendezvous", "warm-up", "productive"
DATA_WAIT, STALL, PEER_WAIT = "data wait", "checkpoint stall", "peer wait"
REDONE, RESTART, IDLE = "redone work", "restart", "idle"
PHASES = (RENDEZVOUS, WARM_UP, PRODUCTIVE, DATA_WAIT, STALL, PEER_WAIT, REDONE, RESTART, IDLE)


# --- the agent's side -------------------------------------------------------------------------


class Motion:
    """When a rank last made progress, sampled from its shared memory."""

    def __init__(self, beacon: "RankShm") -> None:
        self._beacon = beacon
        self._seen = (-1, -1)
        self._moved_s = float("inf")

    def look(self, now_s: float) -> float:
        """Return the seconds since its last progress; 0 if it never made any."""
        seen = (self._beacon.step, self._beacon.passed)
        if seen != self._seen:
            self._seen, self._moved_s = seen, now_s
        return max(0.0, now_s - self._moved_s)


def read_spent(beacon: "RankShm", still_s: float) -> dict[str, int]:
    """Return the numbers of a rank that has exited, `still_s` after its last progress."""
    return {
        "ran_us": beacon.elapsed_us(),
        "met_us": beacon.met_us,
        "began_us": beacon.began_us,
        "first": beacon.first,
        "data_us": beacon.data_us,
        "stall_us": beacon.stall_us,
        "comm_us": beacon.comm_us,
        "still_us": int(still_s * 1e6),
    }


def read_spent_so_far(beacons: Iterable["RankShm"]) -> dict[str, int]:
    """Return how a node's ranks have spent their time so far: phase → microseconds of all."""
    total: dict[str, int] = {}
    for beacon in beacons:
        for phase, spent_us in divide(read_spent(beacon, 0.0)).items():
            if spent_us:
                total[phase] = total.get(phase, 0) + spent_us
    return total


def read_pace(beacons: Sequence["RankShm"]) -> "Pace | None":
    """Return how fast a node's ranks save and could stop; None without ranks."""
    from echelon.launch.protocol.messages import Pace  # noqa: PLC0415  `status` does not need it

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


def split(gone: "RankExited") -> dict[str, int]:
    """Divide a rank's time from start to exit into phases, in microseconds."""
    return divide(gone.spent, failed=bool(gone.code or gone.signal), steps=steps_of(gone))


def divide(told: Mapping[str, int], *, failed: bool = False, steps: int = 0) -> dict[str, int]:
    """Divide a rank's time so far into phases, in microseconds, by what `read_spent` has returned.

    A rank that failed may have made no progress for a while: one unfinished step of that counts as
    redone work, the rest as the time until the failure was detected.
    """
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
    take(PEER_WAIT, told.get("comm_us", -1))
    still = min(left, told.get("still_us", 0)) if failed else 0
    take(PRODUCTIVE, left - still)
    if steps > 0:
        take(REDONE, found[PRODUCTIVE] // steps)
    take(RESTART, left)
    return found


def steps_of(gone: "RankExited") -> int:
    """Return the number of steps that a rank reported."""
    first = gone.spent.get("first", -1)
    return max(0, gone.step - first) if first >= 0 else 0


class Spent(TypedDict):
    """The fields of the event `GenerationEnded`, but for its number."""

    ranks: int
    known: int
    again: bool
    seconds: dict[str, float]
    first: NotRequired[int]
    last: NotRequired[int]
    steps_s: NotRequired[float]


class Spending:
    """How the ranks of one generation spent their time. Pure: the caller passes all times."""

    def __init__(self) -> None:
        self._began_s = 0.0
        self._here: set[int] = set()
        self._left: list[tuple[float, RankExited]] = []
        self._lost_s: list[float] = []
        """Run times of ranks that were lost without a report."""
        self._failed_s = float("inf")
        self._count = 0

    def begin(self, ranks: Iterable[int], now_s: float) -> None:
        self._here = set(ranks)
        self._count, self._began_s = len(self._here), now_s

    def leave(self, gone: "RankExited", now_s: float) -> None:
        """Add the report of a rank that has exited."""
        if gone.rank in self._here:
            self._here.discard(gone.rank)
            self._left.append((now_s, gone))
            if gone.code or gone.signal:
                self._failed_s = min(self._failed_s, now_s)

    def lose(self, rank: int, now_s: float) -> None:
        """Add a rank that was lost with its node, without a report."""
        if rank in self._here:
            self._here.discard(rank)
            self._lost_s.append(now_s - self._began_s)
            self._failed_s = min(self._failed_s, now_s)

    def record(self, now_s: float, *, again: bool) -> Spent:
        """Return the data of an event, once all ranks have exited: seconds by phase, of all ranks.

        `again` tells whether ranks will be restarted, which decides what idle time counts as. The
        sum is less than ranks times duration by the time from each exit to the last.
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
        spent = Spent(ranks=self._count, known=len(self._left), again=again, seconds=seconds)
        if trained := [gone for _, gone in self._left if gone.spent.get("first", -1) >= 0]:
            steps = sum(steps_of(gone) for gone in trained)
            productive_us = sum(split(gone)[PRODUCTIVE] for gone in trained)
            spent["first"] = max(gone.spent["first"] for gone in trained)
            spent["last"] = max(spent["first"], min(gone.step for gone in trained))
            spent["steps_s"] = round(productive_us / 1e6 / steps, 6) if steps else 0.0
        return spent

    def _add_lost(self, total: dict[str, float]) -> None:
        """Assume that lost ranks did what the others did; without others, that all was work."""
        known = dict(total) if any(total.values()) else {PRODUCTIVE: 1.0}
        whole, lost_s = sum(known.values()), sum(self._lost_s)
        for phase, spent_s in known.items():
            total[phase] += lost_s * spent_s / whole
