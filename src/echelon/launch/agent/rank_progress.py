"""What ranks report in their shared memory about their progress, their time, and their pace."""

from collections.abc import Iterable, Sequence

from echelon.launch.protocol.messages import Pace
from echelon.launch.protocol.rank_shm import RankShm
from echelon.run.rank_time import divide


class Motion:
    """When a rank last made progress, sampled from its shared memory."""

    def __init__(self, shm: RankShm) -> None:
        self._shm = shm
        self._seen = (-1, -1)
        self._moved_s = float("inf")

    def look(self, now_s: float) -> float:
        """Return the seconds since its last progress; 0 if it never made any."""
        seen = (self._shm.step, self._shm.passed)
        if seen != self._seen:
            self._seen, self._moved_s = seen, now_s
        return max(0.0, now_s - self._moved_s)


def read_spent(shm: RankShm, still_s: float) -> dict[str, int]:
    """Return the numbers of a rank that has exited, `still_s` after its last progress."""
    return {
        "ran_us": shm.elapsed_us(),
        "met_us": shm.met_us,
        "began_us": shm.began_us,
        "first": shm.first,
        "data_us": shm.data_us,
        "stall_us": shm.stall_us,
        "comm_us": shm.comm_us,
        "still_us": int(still_s * 1e6),
    }


def read_spent_so_far(ranks: Iterable[RankShm]) -> dict[str, int]:
    """Return how a node's ranks have spent their time so far: phase → microseconds of all."""
    total: dict[str, int] = {}
    for shm in ranks:
        for phase, spent_us in divide(read_spent(shm, 0.0)).items():
            if spent_us:
                total[phase] = total.get(phase, 0) + spent_us
    return total


def read_pace(ranks: Sequence[RankShm]) -> Pace | None:
    """Return how fast a node's ranks save and could stop; None without ranks."""
    if not ranks:
        return None
    saved = [shm.saved for shm in ranks]
    return Pace(
        save_us=max(shm.save_us for shm in ranks),
        stop_interval_us=max(shm.stop_interval_us for shm in ranks),
        saved_low=min(saved),
        saved_high=max(saved),
    )
