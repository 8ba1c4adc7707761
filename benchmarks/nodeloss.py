"""Time to recover from a lost node: from the fault to rank 0's first step in the smaller world.

    .venv/bin/python benchmarks/nodeloss.py [--trials N] [--peer-trials N]

A run on 3 nodes of a sandbox, which may continue with 2, loses node2: turned off, or disconnected
from the network. For comparison, one of three elastic torchrun agents on this machine is killed
with its rank (a plain Slurm job would end with the node). Needs root and Debian's Slurm. Writes
benchmarks/results/nodeloss.json.
"""

import argparse
import signal
import socket
import time
from contextlib import ExitStack

import measuring
import psutil
from measuring import (
    ECHELON,
    SCRIPTS,
    TORCHRUN,
    calm,
    cause,
    ratio,
    sandbox,
    started,
    steps,
    summary,
    workshop,
)

from echelon.core.waiting import wait_until

PERIOD_S = 0.05
GIVEN_UP_S = 120.0
FAULTS = {"kill": "node2 is turned off", "cut": "node2's cable is cut"}
THEIRS = "torchrun --nnodes=2:3, an agent is killed"
PUBLISHED_S = 47.6
"""torchrun of torch 2.13, one of two agents killed: measured earlier, on another machine."""


def script(folder):
    return [str(SCRIPTS / "steps.py"), str(folder), str(PERIOD_S)]


def await_smaller_world(folder, generation, began):
    """Return the seconds until rank 0 stepped with one rank less, or the limit if it did not."""
    if not wait_until(
        lambda: 0 in steps(folder, generation, 2), timeout_s=GIVEN_UP_S, interval_s=0.02
    ):
        return GIVEN_UP_S
    return steps(folder, generation, 2)[0][0] - began


def lose_node(box, folder, fault):
    """Run on three nodes, apply a fault to one, and return the seconds until the others step."""
    folder.mkdir()
    calm(box)
    argv = [*ECHELON, "submit", "--nodes", "2:3", "--nodelist", "node[1-3]", "--gpus", "1"]
    try:
        with started([*argv, "--follow", *script(folder)], folder):
            assert wait_until(lambda: len(steps(folder, 0, 3)) == 3, timeout_s=120)
            time.sleep(1.0)
            began = cause(box, fault, "node2")
            return await_smaller_world(folder, 1, began)
    finally:
        cause(box, "restore", "node2")


def lose_torchrun(folder):
    """Kill one of three torchrun agents, as turning its node off would."""
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    argv = [*TORCHRUN, "--nnodes=2:3", "--nproc-per-node=1", "--max-restarts=3"]
    argv += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=bench"]
    # Not the first one, which hosts the rendezvous.
    argvs = [[*argv, f"--rdzv-conf=is_host={host}", *script(folder)] for host in (1, 0, 0)]
    with ExitStack() as stack:
        agents = [stack.enter_context(started(words, folder)) for words in argvs]
        assert wait_until(lambda: len(steps(folder, 0, 3)) == 3, timeout_s=120)
        time.sleep(1.0)
        lost = psutil.Process(agents[-1].pid)
        began = time.monotonic()
        for process in [lost, *lost.children(recursive=True)]:
            process.send_signal(signal.SIGKILL)
        # torchrun does not count a membership change as a restart.
        return await_smaller_world(folder, "*", began)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--peer-trials", type=int, default=2)
    asked = parser.parse_args()
    taken = {**{what: [] for what in FAULTS.values()}, THEIRS: []}
    with workshop() as folder, sandbox("bench-nodes", nodes=4) as box:
        for trial in range(max(asked.trials, asked.peer_trials)):
            for fault, what in FAULTS.items():
                if trial < asked.trials:
                    taken[what].append(lose_node(box, folder / f"{fault}-{trial}", fault))
            if trial < asked.peer_trials:
                taken[THEIRS].append(lose_torchrun(folder / f"torchrun-{trial}"))
    rows = {what: summary(seconds) for what, seconds in taken.items() if seconds}
    goals = {f"{what}, slowest, s": (rows[what]["max_s"], 8.0) for what in FAULTS.values()}
    ratios = {
        what: {
            "to torchrun": ratio(rows[what], rows[THEIRS]) if THEIRS in rows else None,
            "to torchrun, as published": round(rows[what]["median_s"] / PUBLISHED_S, 3),
        }
        for what in FAULTS.values()
    }
    measuring.write_results(
        "nodeloss", rows, goals, ratios=ratios, torchrun_published_s=PUBLISHED_S
    )
    for what, values in ratios.items():
        for peer, value in values.items():
            print(f"{what}: {value} × {peer.removeprefix('to ')}")


if __name__ == "__main__":
    main()
