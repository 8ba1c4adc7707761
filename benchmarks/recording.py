"""What the record of collectives, from which hangs are explained, costs while nothing hangs.

    PYTHONPATH=src python benchmarks/recording.py

torch keeps the record (its Flight Recorder) by default; Echelon adds a thread that waits to be
asked. A rank with NCCL calls all_reduce many times, in turns with and without the record: steps of
a training vary by more than the record costs. The same rank then trains with DDP at batch 64, where
a step has one all-reduce. It is one rank, because ranks that share a GPU take several times as
long. Needs one GPU. Writes benchmarks/results/recording.json.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import measuring
import torch

TURNS = 4
MARK = "measured: "
SCRIPT = f"""
import json, time
import torch
import torch.distributed as dist
from torch import nn


def shortest_us(work, repeats):
    times = []
    for _ in range(8):
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
call_us = shortest_us(lambda: dist.all_reduce(one), 2000)
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10)).cuda()
ddp = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(ddp.parameters())
x, y = torch.randn(64, 784, device="cuda"), torch.zeros(64, dtype=torch.long, device="cuda")
print("{MARK}" + json.dumps({{"call": call_us, "step": shortest_us(step, 200)}}), flush=True)
dist.destroy_process_group()
"""
WAYS = {
    "recorded": {},
    "not recorded": {"TORCH_FR_BUFFER_SIZE": "0", "TORCH_NCCL_TRACE_BUFFER_SIZE": "0"},
}


def measure(more):
    """Return the times of a call and of a step in a new process, in µs."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(SCRIPT)
        done = subprocess.run(
            [sys.executable, "-m", "echelon", "run", "--procs=1", "train.py"],
            cwd=folder,
            env={**os.environ, **more},
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
    (line,) = (line for line in done.stdout.splitlines() if MARK in line)
    return json.loads(line.partition(MARK)[2])


def main():
    found = {way: [] for way in WAYS}
    for _ in range(TURNS):
        for way, more in WAYS.items():
            found[way].append(measure(more))
            print(way, found[way][-1], flush=True)
    shortest = {
        way: {what: min(one[what] for one in times) for what in ("call", "step")}
        for way, times in found.items()
    }
    rows = {
        f"an all_reduce, {way}": {"shortest_us": round(one["call"], 2)}
        for way, one in shortest.items()
    } | {
        f"a step with one all_reduce, {way}": {"shortest_us": round(one["step"], 1)}
        for way, one in shortest.items()
    }
    on, off = shortest.values()
    share = 100 * (on["call"] - off["call"]) / off["step"]
    goals = {"the record's share of a step, percent": (round(share, 2), 1.0)}
    more = {"gpu": torch.cuda.get_device_name(), "turns": TURNS}
    measuring.write_results(Path(__file__).stem, rows, goals, **more)


if __name__ == "__main__":
    main()
