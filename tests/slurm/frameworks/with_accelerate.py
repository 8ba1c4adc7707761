"""Trains with Accelerate, in a loop of its own: with_accelerate.py STEPS PACE_S."""

import sys
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

import echelon

STEPS, PACE_S = int(sys.argv[1]), float(sys.argv[2])

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 1))
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
with echelon.loop(STEPS, save_every=20) as loop:
    if loop.checkpoint:
        accelerator.load_state(loop.checkpoint)
    for step in loop:
        time.sleep(PACE_S)
        place = torch.Generator().manual_seed(step * 100 + accelerator.process_index)
        x = torch.randn(4, 8, generator=place)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        loop.log(loss=loss.item())
        if loop.save_here:
            accelerator.save_state(loop.path)
if accelerator.is_main_process:
    torch.save(accelerator.unwrap_model(model).state_dict(), "weights.pt")
    Path("trained").write_text(str(loop.step))
accelerator.end_training()
