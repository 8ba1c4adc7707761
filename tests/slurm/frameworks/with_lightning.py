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


class Batches:
    """Batches of this rank. Lightning saves the position: a resumed epoch continues there."""

    def __init__(self, data, rank, ranks):
        self._data, self._rank, self._ranks, self._at = data, rank, ranks, 0

    def __len__(self):
        return len(self._data) // (4 * self._ranks)

    def __iter__(self):
        while self._at < len(self):
            start = 4 * (self._at * self._ranks + self._rank)
            self._at += 1
            yield self._data[start : start + 4]
        self._at = 0

    def state_dict(self):
        return {"at": self._at}

    def load_state_dict(self, state):
        self._at = state["at"]


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
loader = Batches(data, int(os.environ["RANK"]), nodes * ranks)
# Older versions load a checkpoint without being told that it is safe.
safe = {"weights_only": True} if "weights_only" in signature(trainer.fit).parameters else {}
net = Net()
trainer.fit(net, loader, ckpt_path=echelon.last_saved(), **safe)
if trainer.is_global_zero:
    torch.save(net.state_dict(), "weights.pt")
    Path("trained").write_text(str(trainer.global_step))
