"""How much a flood of connections from another user delays the joining of nodes.

    .venv/bin/python benchmarks/strangers.py [--trials N]

Runs on 4 nodes of this machine, from the start of the controller until the last agent has joined:
without a flood, and while one process of another user opens connections as fast as it can, for as
long as the run lasts and at most 60 s. Needs root. Writes benchmarks/results/strangers.json.
"""

import argparse
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))

import measuring
from measuring import ratio, summary, workshop

from connection_flood import flood
from local.liverun import live_run
from local.test_flood import FLOODS, OPTIONS, SCRIPT, await_listening

QUIET = "no flood"
LIMIT_S = 5.0


def join(folder, options):
    """Return the seconds until the last of four nodes has joined, with or without a flood."""
    with live_run(folder, SCRIPT, OPTIONS) as run:
        around = (
            nullcontext() if options is None else flood(await_listening(run), nice=0, **options)
        )
        with around:
            code = run.wait(120)
        joined = run.events("joined")
        assert (code, len(joined)) == (0, 4), run.output
        (began,) = run.events("attempt")
        return joined[-1]["time"] - began["time"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=7)
    asked = parser.parse_args()
    kinds = {QUIET: None, **{f"{kind} connections": options for kind, options in FLOODS.items()}}
    taken = {kind: [] for kind in kinds}
    with workshop() as folder:
        for _ in range(asked.trials):
            for kind, options in kinds.items():
                place = Path(tempfile.mkdtemp(dir=folder))
                taken[kind].append(join(place, options))
    rows = {f"4 nodes join, {kind}": summary(seconds) for kind, seconds in taken.items()}
    quiet, *floods = rows
    goals = {
        f"{what}, slowest, s later": (
            round(rows[what]["max_s"] - rows[quiet]["median_s"], 3),
            LIMIT_S,
        )
        for what in floods
    }
    ratios = {what: {"to no flood": ratio(rows[what], rows[quiet])} for what in floods}
    measuring.write_results("strangers", rows, goals, ratios=ratios)


if __name__ == "__main__":
    main()
