"""How long `echelon lint` takes for one script, its start included.

    .venv/bin/python benchmarks/lint.py [--trials N]

Every script of tests/golden/lint, each in a process of its own. Writes benchmarks/results/lint.json.
"""

import argparse
import subprocess
import time
from pathlib import Path

from measuring import ECHELON, summary, write_results

SCRIPTS = Path(__file__).parents[1] / "tests" / "golden"
GOAL_S = 0.5


def measure(argv):
    began = time.monotonic()
    done = subprocess.run([*ECHELON, *argv], capture_output=True, check=False)
    assert done.returncode in (0, 1), done.stderr.decode()
    return time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=1, help="of each script")
    trials = parser.parse_args().trials
    corpus = sorted([*SCRIPTS.glob("lint/*/*.sh"), *SCRIPTS.glob("scripts/*.sh")])
    measure(["--version"])  # the first start reads from the disk
    each = [measure(["lint", path]) for path in corpus for _ in range(trials)]
    bare = [measure(["--version"]) for _ in range(max(3, trials))]
    rows = {
        "one script": summary(each),
        "a bare start (--version)": summary(bare),
        f"all {len(corpus)} at once": summary([measure(["lint", *corpus])]),
    }
    write_results("lint", rows, {"one script, seconds": (rows["one script"]["max_s"], GOAL_S)})


if __name__ == "__main__":
    main()
