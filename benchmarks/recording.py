"""What the record of collectives, from which hangs are explained, costs while nothing hangs.

    PYTHONPATH=src python benchmarks/recording.py

A rank with NCCL trains with DDP at batch 64, in turns under torchrun and Echelon. torch keeps the
record (its Flight Recorder) by default under both; Echelon adds a thread that waits to be asked.
For comparison, the same with the record turned off. It is one rank, because steps of ranks that
share a GPU take several times as long. Needs one GPU. Writes benchmarks/results/recording.json.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import measuring
import torch

TURNS = 4
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
for _ in range(8):
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    for _ in range(250):
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(x), y).backward()
        optimizer.step()
    torch.cuda.synchronize()
    times.append((time.perf_counter() - began_s) * 4000)
print("step_us:", min(times[1:]), flush=True)
dist.destroy_process_group()
"""
TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node=1"]
ECHELON = ["echelon", "run", "--procs=1"]
OFF = {"TORCH_FR_BUFFER_SIZE": "0", "TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}
WAYS = {
    "torchrun": (TORCHRUN, {}),
    "Echelon": (ECHELON, {}),
    "Echelon, not recorded": (ECHELON, OFF),
}


def measure(launcher, more):
    """Return a step's time in a new process, in µs."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(SCRIPT)
        done = subprocess.run(
            [sys.executable, "-m", *launcher, "train.py"],
            cwd=folder,
            env={**os.environ, **more},
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
    (line,) = (line for line in done.stdout.splitlines() if "step_us:" in line)
    return float(line.rpartition(" ")[2])


def main():
    found = {way: [] for way in WAYS}
    for _ in range(TURNS):
        for way, (launcher, more) in WAYS.items():
            found[way].append(measure(launcher, more))
            print(way, found[way][-1], flush=True)
    shortest = {way: min(times) for way, times in found.items()}
    rows = {
        f"a step, {way}": {
            "shortest_us": round(shortest[way], 1),
            "median_us": round(statistics.median(times), 1),
        }
        for way, times in found.items()
    }
    slower = {"a step, of torchrun's": (round(shortest["Echelon"] / shortest["torchrun"], 4), 1.01)}
    more = {"gpu": torch.cuda.get_device_name(), "turns": TURNS}
    measuring.write_results(Path(__file__).stem, rows, slower, **more)


if __name__ == "__main__":
    main()
