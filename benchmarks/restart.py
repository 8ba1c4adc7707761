"""Time to recover from a killed rank: from SIGKILL until all ranks have stepped again.

    .venv/bin/python benchmarks/restart.py [--trials N] [--peer-trials N] [--nccl]

4 ranks (gloo) all-reduce every 20 ms, and a random one is killed repeatedly. The same is done with
torchrun, with and without the shared store in which it is known to hang. A run that has not
recovered after 40 s counts as not recovered. Writes benchmarks/results/restart.json.

With --nccl it is 2 ranks that share a GPU (NCCL 2.30 or newer; ECHELON_TEST_NCCL names one to
preload), and benchmarks/results/restart-nccl.json.
"""

import argparse
import math
import os
import random
import signal
import time

import measuring
from measuring import ECHELON, SCRIPTS, TORCHRUN, ratio, started, steps, summary, workshop

from echelon.core.waiting import wait_until

RANKS = 4
PERIOD_S = 0.02
GIVEN_UP_S = 40.0
BLOCKS = 10
"""Number of times that the two sides alternate."""
OURS = "echelon run"
THEIRS = "torchrun"
THEIRS_UNSHARED = "torchrun, TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"


def all_stepped(folder, generation):
    return len(steps(folder, generation, RANKS)) == RANKS


def kill_repeatedly(argv, folder, kills, chance, **variables):
    """Start 4 ranks and kill one repeatedly; return the seconds to recover, inf if it did not.

    After a failed recovery there are no further kills, so fewer values are returned.
    """
    folder.mkdir()
    delays = []
    script = [str(SCRIPTS / "steps.py"), str(folder), str(PERIOD_S)]
    with started([*argv, *script], folder, **variables):
        assert wait_until(lambda: all_stepped(folder, 0), timeout_s=120)
        for generation in range(kills):
            time.sleep(chance.uniform(0.1, 0.5))  # hit steps at different points
            _, victim = steps(folder, generation, RANKS)[chance.randrange(RANKS)]
            began = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            # Poll rarely, to leave the CPU to the ranks; they record the times of their steps.
            if not wait_until(
                lambda after=generation + 1: all_stepped(folder, after),
                timeout_s=GIVEN_UP_S,
                interval_s=0.05,
            ):
                return [*delays, math.inf]
            stepped = max(at for at, _ in steps(folder, generation + 1, RANKS).values())
            delays.append(stepped - began)
    return delays


def measure(folder, trials, peer_trials, chance):
    """Return the seconds to recover for each side; the sides alternate."""
    ours = [*ECHELON, "run", "--procs", str(RANKS), "--restarts", "100000"]
    theirs = [*TORCHRUN, "--standalone", f"--nproc-per-node={RANKS}", "--max-restarts=1000"]
    unshared = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    taken = {OURS: [], THEIRS: [], THEIRS_UNSHARED: []}
    blocks = min(BLOCKS, trials)
    for block in range(blocks):
        share = trials * (block + 1) // blocks - trials * block // blocks
        goal = len(taken[OURS]) + share
        while len(taken[OURS]) < goal:
            place = folder / f"ours-{len(taken[OURS])}"
            taken[OURS] += kill_repeatedly(ours, place, goal - len(taken[OURS]), chance)
        while len(taken[THEIRS]) < peer_trials * (block + 1) // blocks:
            number = len(taken[THEIRS])
            taken[THEIRS] += kill_repeatedly(theirs, folder / f"theirs-{number}", 1, chance)
            place = folder / f"unshared-{number}"
            taken[THEIRS_UNSHARED] += kill_repeatedly(theirs, place, 1, chance, **unshared)
    return taken


def describe(delays):
    recovered = [delay for delay in delays if delay < math.inf]
    share = {"recovered_percent": round(100 * len(recovered) / len(delays), 1)}
    if not recovered:
        return {**share, "trials": len(delays)}
    return {**summary(recovered), **share, "trials": len(delays)}


def use_nccl():
    """Have all ranks use NCCL, two of them on one GPU."""
    global RANKS, BLOCKS
    RANKS, BLOCKS = 2, 3
    os.environ |= {"ECHELON_BENCHMARK_BACKEND": "nccl", "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    if library := os.environ.get("ECHELON_TEST_NCCL"):
        os.environ["LD_PRELOAD"] = library


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--peer-trials", type=int, default=10)
    parser.add_argument("--nccl", action="store_true")
    asked = parser.parse_args()
    if asked.nccl:
        use_nccl()
    chance = random.Random(0)  # noqa: S311  not a secret
    with workshop() as folder:
        taken = measure(folder, asked.trials, asked.peer_trials, chance)
    rows = {name: describe(delays) for name, delays in taken.items() if delays}
    goals = {
        "not recovered, percent": (round(100 - rows[OURS]["recovered_percent"], 1), 0),
        "median, s": (rows[OURS].get("median_s"), 1.0),
        "p99, s": (rows[OURS].get("p99_s"), 3.0),
    }
    ratios = {
        name: ratio(rows[OURS], row)
        for name, row in rows.items()
        if name != OURS and "median_s" in row and "median_s" in rows[OURS]
    }
    name = "restart-nccl" if asked.nccl else "restart"
    measuring.write_results(name, rows, goals, ratio_to=ratios)
    for name, value in ratios.items():
        print(f"ours / {name}, where that recovers: {value}")


if __name__ == "__main__":
    main()
