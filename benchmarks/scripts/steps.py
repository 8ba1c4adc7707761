"""All-reduce at every step until killed: `steps.py FOLDER SECONDS_PER_STEP`.

After its first step each rank writes a file g<generation>-w<world size>-r<rank> with the time of
that step and its pid, and nothing afterwards.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

folder, period_s = Path(sys.argv[1]), float(sys.argv[2])
gpu = os.environ.get("ECHELON_BENCHMARK_BACKEND") == "nccl"
if gpu:
    torch.cuda.set_device(0)
dist.init_process_group("nccl" if gpu else "gloo")
rank, world = dist.get_rank(), dist.get_world_size()
generation = os.environ["TORCHELASTIC_RESTART_COUNT"]
total = torch.ones(1, device="cuda" if gpu else "cpu")
dist.all_reduce(total)
total.item()
name = f"g{generation}-w{world}-r{rank}"
part = folder / f".{name}.{os.getpid()}"
part.write_text(f"{time.monotonic()} {os.getpid()}\n")
part.rename(folder / name)
while True:
    time.sleep(period_s)
    total.fill_(1)
    dist.all_reduce(total)
    total.item()
