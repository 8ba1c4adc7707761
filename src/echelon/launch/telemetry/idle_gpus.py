"""GPUs that ranks have and do not use: noticed while the run still runs. Pure."""

from echelon.run.series import Sample

IDLE_S = 300.0
"""How long a GPU may do nothing before somebody is told."""
_NOTHING = 0.02


class IdleGpus:
    """Sees samples of a node, one a second, and says what users should hear, once for each rank."""

    def __init__(self) -> None:
        self._since_s: dict[tuple[str, float], float] = {}
        """By rank and generation: since when its GPU does nothing."""
        self._told: set[tuple[str, float]] = set()

    def feed(self, sample: Sample) -> list[str]:
        found = []
        for name, gpu in sample.lasts.items():
            rank, _, what = name.partition(".")
            if what != "gpu" or not rank.startswith("rank"):
                continue
            who = rank, sample.lasts.get(f"{rank}.generation", 0.0)
            if sample.means.get(f"gpu{int(gpu)}.util", 1.0) > _NOTHING:
                self._since_s.pop(who, None)
            elif (
                sample.time_s - self._since_s.setdefault(who, sample.time_s) >= IDLE_S
                and who not in self._told
            ):
                self._told.add(who)
                found.append(
                    f"GPU {int(gpu)}, which rank {rank.removeprefix('rank')} has, "
                    f"has done nothing for {IDLE_S / 60:.0f} minutes: see echelon watch"
                )
        return found
