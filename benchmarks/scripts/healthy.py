"""Healthy steps of all kinds, for some minutes: `healthy.py MINUTES`. It uses no library.

Between collectives a rank computes alone, compiles, saves or sleeps, each for less time than a hang
takes to be reported; on a GPU steps are also replayed from a CUDA graph. Without a GPU the ranks
use gloo and rest between steps, so that many such runs fit on a small machine.
"""

import os
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

until_s = time.monotonic() + 60 * float(sys.argv[1])
gpu = torch.cuda.is_available()
device = "cuda" if gpu else "cpu"
if gpu:
    torch.cuda.set_device(0)
else:
    torch.set_num_threads(1)
dist.init_process_group("nccl" if gpu else "gloo")
rank = dist.get_rank()
chance = random.Random(os.environ["MASTER_PORT"])  # noqa: S311  the same on all ranks
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
ddp = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
x, y = torch.randn(64, 256, device=device), torch.zeros(64, dtype=torch.long, device=device)
flat = torch.ones(1024, device=device)
kinds = ["step", "alone", "sleep", "save", "compile", "idle", *(["graph"] if gpu else [])]
counts = dict.fromkeys(kinds, 0)


def step():
    optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(x), y).backward()
    optimizer.step()


def spin(seconds):
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        model(x).sum().item()
        if not gpu:
            time.sleep(0.1)


def replay():
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        dist.all_reduce(flat)
    for _ in range(300):
        graph.replay()
    torch.cuda.synchronize()


while True:
    kind = chance.choice(kinds)
    who, seconds = chance.randrange(2), chance.uniform(0.5, 5.0)
    for _ in range(20):
        step()
    counts["step"] += 20
    if kind == "alone" and rank == who:
        spin(seconds)
    elif kind == "sleep" and rank == who:
        time.sleep(seconds)
    elif kind == "save" and rank == 0:
        torch.save(ddp.state_dict(), Path("model.pt"))
    elif kind == "compile":
        torch.compiler.reset()
        torch.compile(model, backend="inductor" if gpu else "aot_eager")(x).sum().item()
    elif kind == "graph":
        replay()
    elif kind == "idle":
        time.sleep(seconds)  # all of them: nobody waits for a collective
    elif not gpu:
        time.sleep(1)
    counts[kind] += kind != "step"
    # Ranks leave together: one of them decides.
    on = torch.tensor([float(time.monotonic() < until_s)], device=device)
    dist.broadcast(on, 0)
    if not on.item():
        break
print(f"steps: {counts}")
dist.destroy_process_group()
