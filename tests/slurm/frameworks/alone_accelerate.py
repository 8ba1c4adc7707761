"""Trains with Accelerate, without Echelon's library: alone_accelerate.py STEPS PACE_S."""

import sys
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

STEPS, PACE_S = int(sys.argv[1]), float(sys.argv[2])

accelerator = Accelerator(cpu=True)
model = nn.Linear(8, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
first = max((int(path.name) for path in Path("saved").glob("[0-9]*")), default=0)
if first:
    accelerator.load_state(f"saved/{first}")
for step in range(first + 1, STEPS + 1):
    time.sleep(PACE_S)
    x = torch.randn(4, 8)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    accelerator.print(f"step {step}", flush=True)
    if step % 5 == 0:
        accelerator.save_state("unfinished")
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            Path("saved").mkdir(exist_ok=True)
            Path("unfinished").rename(f"saved/{step}")
        accelerator.wait_for_everyone()
if accelerator.is_main_process:
    Path("trained").write_text(str(step))
accelerator.end_training()
