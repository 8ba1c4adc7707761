"""Trains with Lightning: with_lightning.py STEPS PACE_S."""

import os
import sys
import time
from inspect import signature
from pathlib import Path

import lightning
import torch
from torch import nn

import echelon
from echelon.integrations.lightning import EchelonCallback

STEPS, PACE_S = int(sys.argv[1]), float(sys.argv[2])


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 1)

    def training_step(self, batch, _):
        time.sleep(PACE_S)
        return nn.functional.mse_loss(self.layer(batch), batch.sum(1, keepdim=True))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


ranks = int(os.environ["LOCAL_WORLD_SIZE"])
nodes = int(os.environ["WORLD_SIZE"]) // ranks
data = torch.randn(40 * 4 * nodes * ranks, 8, generator=torch.Generator().manual_seed(0))
trainer = lightning.Trainer(
    max_steps=STEPS,
    accelerator="cpu",
    devices=ranks,
    num_nodes=nodes,
    strategy="ddp",
    callbacks=[EchelonCallback(every_n_steps=20)],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    log_every_n_steps=5,
)
loader = torch.utils.data.DataLoader(data, batch_size=4)
# Older versions load a checkpoint without being told that it is safe.
safe = {"weights_only": True} if "weights_only" in signature(trainer.fit).parameters else {}
trainer.fit(Net(), loader, ckpt_path=echelon.last_saved(), **safe)
if trainer.is_global_zero:
    Path("trained").write_text(str(trainer.global_step))
