"""What the record of collectives, from which hangs are explained, costs while nothing hangs.

    PYTHONPATH=src python benchmarks/recording.py

torch keeps the record (its Flight Recorder) by default; Echelon adds a thread that waits to be
asked. Ranks with and without the record run at the same time and work in turns, because a training
differs by more from one moment to the next than the record costs. Each turn calls all_reduce many
times, or trains with DDP at batch 64, where a step has one all-reduce. Two processes also differ by
chance in how fast they train, so this is repeated with new processes, and a second one with the
record shows how much that is. It is more than the record costs, so the goal is about the time that
the record adds to an all-reduce. It is one rank each, because ranks that share a GPU take several
times as long. Needs one GPU. Writes benchmarks/results/recording.json.
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import measuring
import torch

PATIENCE_S = 100
SCRIPT = """
import socket, time
import torch
import torch.distributed as dist
from torch import nn


def shortest_us(work, repeats):
    times = []
    for _ in range(2):
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        for _ in range(repeats):
            work()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began_s) / repeats)
    return 1e6 * min(times)


def step():
    optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(x), y).backward()
    optimizer.step()


torch.cuda.set_device(0)
dist.init_process_group("nccl")
one = torch.ones(1, device="cuda")
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10)).cuda()
ddp = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(ddp.parameters())
x, y = torch.randn(64, 784, device="cuda"), torch.zeros(64, dtype=torch.long, device="cuda")
turns = {b"call": (lambda: dist.all_reduce(one), 1000), b"step": (step, 50)}
with socket.socket(socket.AF_UNIX) as asker:
    asker.connect("turns")
    while asked := asker.recv(4):
        asker.sendall(repr(shortest_us(*turns[asked])).encode())
dist.destroy_process_group()
"""
OFF = {"TORCH_FR_BUFFER_SIZE": "0", "TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}
ON_AGAIN = "recorded, once more"
WAYS = {"recorded": {}, "not recorded": OFF, ON_AGAIN: {}}
WHATS = {"an all_reduce": b"call", "a step with one all_reduce": b"step"}


def start(more, stack):
    """Start a rank, and return the socket to which it connects."""
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    Path(folder, "train.py").write_text(SCRIPT)
    listener = stack.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(f"{folder}/turns")
    listener.listen()
    listener.settimeout(PATIENCE_S)
    command = [sys.executable, "-m", "echelon", "run", "--procs=1", "train.py"]
    process = subprocess.Popen(
        command, cwd=folder, env={**os.environ, **more}, stdout=subprocess.DEVNULL
    )
    stack.callback(process.wait, PATIENCE_S)
    return listener


def connect(listener, stack):
    """Return the connection on which a rank is asked to take turns; it exits at its end."""
    rank, _ = listener.accept()
    rank.settimeout(PATIENCE_S)
    return stack.enter_context(rank)


def ask(rank, what):
    """Return how long one call or step took in a turn of a rank, in µs."""
    rank.sendall(what)
    return float(rank.recv(100))


def measure(turns, first):
    """Return by measurement and way the median over turns, in µs, with new processes."""
    ways = list(WAYS)[first:] + list(WAYS)[:first]
    with ExitStack() as runs, ExitStack() as connections:
        listeners = {way: start(WAYS[way], runs) for way in ways}
        ranks = {way: connect(one, connections) for way, one in listeners.items()}
        found = {(what, way): [] for what in WHATS for way in ways}
        for turn in range(turns + 1):
            for what, word in WHATS.items():
                for way in ways if turn % 2 else reversed(ways):
                    found[what, way].append(ask(ranks[way], word))
    return {key: statistics.median(times[1:]) for key, times in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=9, help="of each kind")
    parser.add_argument("--turns", type=int, default=20)
    asked = parser.parse_args()
    found = []
    for number in range(asked.processes):
        found.append(measure(asked.turns, number % len(WAYS)))
        print({" ".join(key): round(value, 2) for key, value in found[-1].items()}, flush=True)
    rows = {}
    for what in WHATS:
        for way in WAYS:
            times = [one[what, way] for one in found]
            rows[f"{what}, {way}"] = {
                "median_us": round(statistics.median(times), 2),
                "shortest_us": round(min(times), 2),
                "longest_us": round(max(times), 2),
            }
    call, step = WHATS
    on = max(rows[f"{call}, {way}"]["median_us"] for way in ("recorded", ON_AGAIN))
    off = rows[f"{call}, not recorded"]["median_us"]
    share = 100 * (on - off) / rows[f"{step}, not recorded"]["median_us"]
    goals = {"the record's share of a step, percent": (round(share, 2), 1.0)}
    measuring.write_results(
        Path(__file__).stem,
        rows,
        goals,
        gpu=torch.cuda.get_device_name(),
        processes_of_each=asked.processes,
        turns=asked.turns,
    )


if __name__ == "__main__":
    main()
