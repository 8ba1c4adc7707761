"""Trains with DeepSpeed on CPUs, without Echelon's library: alone_deepspeed.py STEPS PACE_S."""

import sys
import time
from pathlib import Path

import deepspeed
import torch
from torch import nn

STEPS, PACE_S = int(sys.argv[1]), float(sys.argv[2])
CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
}

deepspeed.init_distributed("gloo")
model = nn.Linear(8, 1)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
_, saved = engine.load_checkpoint("saved") if Path("saved/latest").exists() else (None, None)
first = saved["step"] if saved else 0
for step in range(first + 1, STEPS + 1):
    time.sleep(PACE_S)
    x = torch.randn(4, 8)
    engine.backward(nn.functional.mse_loss(engine(x), x.sum(1, keepdim=True)))
    engine.step()
    if engine.global_rank == 0:
        sys.stdout.write(f"step {step}\n")
        sys.stdout.flush()
    if step % 5 == 0:
        engine.save_checkpoint("saved", client_state={"step": step})
if engine.global_rank == 0:
    Path("trained").write_text(str(step))
