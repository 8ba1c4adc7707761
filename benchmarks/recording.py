"""What the record of collectives, from which hangs are explained, costs while nothing hangs.

    PYTHONPATH=src python benchmarks/recording.py

A rank with NCCL trains with DDP at batch 64, in turns with and without the record (torch's Flight
Recorder). It is one rank, because steps of ranks that share a GPU take ten times as long. Needs one
GPU. Writes benchmarks/results/recording.json.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import measuring
import torch

TURNS = 5
SCRIPT = """
import time
import torch
import torch.distributed as dist
from torch import nn

torch.cuda.set_device(0)
dist.init_process_group("nccl")
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10)).cuda()
ddp = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(ddp.parameters())
x, y = torch.randn(64, 784, device="cuda"), torch.zeros(64, dtype=torch.long, device="cuda")
times = []
for turn in range(6):
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    for _ in range(1000):
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(x), y).backward()
        optimizer.step()
    torch.cuda.synchronize()
    times.append((time.perf_counter() - began_s) * 1000)
print("step_us:", min(times[1:]), flush=True)
dist.destroy_process_group()
"""
WAYS = {
    "recorded": {},
    "not recorded": {"TORCH_FR_BUFFER_SIZE": "0", "TORCH_NCCL_TRACE_BUFFER_SIZE": "0"},
}


def measure(more):
    """Return a step's time in a new process, in µs."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(SCRIPT)
        done = subprocess.run(
            [sys.executable, "-m", "echelon", "run", "--procs=1", "train.py"],
            cwd=folder,
            env={**os.environ, **more},
            capture_output=True,
            text=True,
            timeout=200,
            check=True,
        )
    (line,) = (line for line in done.stdout.splitlines() if "step_us:" in line)
    return float(line.rpartition(" ")[2])


def main():
    found = {way: [] for way in WAYS}
    for _ in range(TURNS):
        for way, more in WAYS.items():
            found[way].append(measure(more))
            print(way, found[way][-1], flush=True)
    rows = {
        f"a step, {way}": {
            "shortest_us": round(min(times), 1),
            "median_us": round(statistics.median(times), 1),
        }
        for way, times in found.items()
    }
    pairs = [one / two for one, two in zip(*found.values(), strict=True)]
    slower = {"a step, recorded / not recorded": (round(statistics.median(pairs), 4), 1.01)}
    more = {"gpu": torch.cuda.get_device_name(), "turns": TURNS}
    measuring.write_results(Path(__file__).stem, rows, slower, **more)
    print(json.dumps(rows, indent=1), slower)


if __name__ == "__main__":
    main()
