"""How the ranks of a generation spent their time, by what they measured and reported."""

from collections.abc import Iterable
from typing import NotRequired, TypedDict

from echelon.launch.protocol.messages import RankExited
from echelon.run.rank_time import IDLE, PHASES, PRODUCTIVE, divide


def split(gone: RankExited) -> dict[str, int]:
    """Divide a rank's time from start to exit into phases, in microseconds."""
    return divide(gone.spent, failed=bool(gone.code or gone.signal), steps=steps_of(gone))


def steps_of(gone: RankExited) -> int:
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


class GenerationTimes:
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

    def leave(self, gone: RankExited, now_s: float) -> None:
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
