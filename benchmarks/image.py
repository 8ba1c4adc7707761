"""What a container image costs: start of 4 ranks on 2 nodes, and recovery from a killed rank.

    .venv/bin/python benchmarks/image.py [--trials N] [--kills N]

Both are measured inside an image that is on the node already (podman), and without one, in turns.
The image has the same Python and torch as this machine. The start is from the command to the first
all-reduce. Writes benchmarks/results/image.json.
"""

import argparse
import random
import sys
import time
from pathlib import Path

import measuring
from measuring import ECHELON, SCRIPTS, ratio, started, steps, summary, workshop
from restart import kill_repeatedly

from echelon.core.waiting import wait_until

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from container_image import Image

RANKS = 4
RUN = [*ECHELON, "run", "--nodes", "2", "--procs", "2", "--restarts", "1000"]
INSIDE, OUTSIDE = "in an image", "without"


def time_start(argv, folder):
    """Return the seconds from a command to the first all-reduce."""
    folder.mkdir()
    began = time.monotonic()
    with started([*argv, str(SCRIPTS / "steps.py"), str(folder), "0.02"], folder):
        met = lambda: len(steps(folder, 0, RANKS)) == RANKS  # noqa: E731
        assert wait_until(met, timeout_s=120, interval_s=0.05), (folder / "output").read_text()
        return max(at for at, _ in steps(folder, 0, RANKS).values()) - began


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=7)
    parser.add_argument("--kills", type=int, default=20)
    asked = parser.parse_args()
    chance = random.Random(0)  # noqa: S311  not a secret
    starts, delays = {INSIDE: [], OUTSIDE: []}, {INSIDE: [], OUTSIDE: []}
    with workshop() as folder:
        image = Image(folder, "torch")
        try:
            inside = [*RUN, "--image", str(image.path), "--image-runtime", "podman"]
            inside += ["--image-cache", str(folder / "cache")]
            commands = {INSIDE: inside, OUTSIDE: RUN}
            time_start(inside, folder / "first")  # finds out how containers start here
            for trial in range(asked.trials):
                for name, argv in commands.items():
                    place = folder / f"{trial}-{name.replace(' ', '-')}"
                    place.mkdir()
                    starts[name].append(time_start(argv, place / "start"))
                    kills = asked.kills // asked.trials + 1
                    delays[name] += kill_repeatedly(argv, place / "kill", kills, chance)
        finally:
            image.remove()
    rows = {f"start {name}": summary(taken) for name, taken in starts.items()}
    rows |= {f"restart {name}": summary(taken) for name, taken in delays.items()}
    ratios = {
        what: ratio(rows[f"{what} {INSIDE}"], rows[f"{what} {OUTSIDE}"])
        for what in ("start", "restart")
    }
    goals = {
        "start, in an image / without": (ratios["start"], 1.3),
        "restart, in an image / without": (ratios["restart"], 1.1),
    }
    measuring.write_results("image", rows, goals, ratio_to=ratios)


if __name__ == "__main__":
    main()
