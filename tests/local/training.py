"""The training that `test_exactness.py` interrupts: a script for `echelon run`, and a function.

It writes down which samples each rank consumed in each step, and in the end the weights.
"""

import json
import os
import random
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import echelon


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is trained, and what happens to it."""

    model: str = "plain"
    exact_layers: bool = False
    shard: str = "none"
    shard_size: int | None = None
    double: bool = False
    """Whether in double precision, in which float noise is far below any mistake."""
    samples: int = 56
    global_batch: int = 12
    epochs: int = 4
    augment: bool = False
    """Whether samples are drawn anew each time."""
    workers: int = 0
    log_every: int = 1
    save_every: int = 2
    kills: tuple[int, ...] = ()
    """After which step a rank is killed: one in each generation of ranks."""
    stop: int | None = None
    """After which step the training ends as if it were over."""
    leg: int = 0
    """How many runs were there before on the same checkpoints."""

    @property
    def steps(self):
        return self.epochs * -(-self.samples // self.global_batch)


def make_model(plan):
    torch.manual_seed(0)
    if plan.model == "plain":
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    elif plan.model == "conv":  # BatchNorm has several values of a single sample
        model = nn.Sequential(
            *(nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 8, 3, padding=1), nn.BatchNorm1d(8)),
            *(nn.ReLU(), nn.Dropout1d(0.2), nn.Flatten(), nn.Linear(32, 3)),
        )
    else:
        model = nn.Sequential(
            *(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3)),
            *(nn.Linear(32, 16), nn.BatchNorm1d(16, momentum=None), nn.ReLU(), nn.Dropout(0.1)),
            nn.Linear(16, 3),
        )
    return model.double() if plan.double else model


class Data(torch.utils.data.Dataset):
    """Points, to which all three generators that a transform may use add something."""

    def __init__(self, plan, *, augment):
        draw = torch.Generator().manual_seed(5)
        self.x = torch.randn(plan.samples, 8, generator=draw)
        self.y = torch.randint(3, (plan.samples,), generator=draw)
        self.dtype = torch.float64 if plan.double else torch.float32
        self.augment = augment

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        x = self.x[index].to(self.dtype)
        if self.augment:
            noise = torch.randn(8) + random.random() + float(np.random.rand())  # noqa: NPY002, S311
            x = x + 0.2 * noise.to(self.dtype)
        return x, self.y[index]


class Watch:
    """Kills a rank where the plan says so: the first time when its checkpoint is whole."""

    def __init__(self, plan):
        self.generation = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self.kill_at = dict(enumerate(plan.kills)).get(self.generation)

    def step_ended(self, trainer):
        if trainer.step != self.kill_at:
            return
        if self.generation == 0:
            trainer.checkpointer.wait()
            dist.barrier()
        if trainer.world.rank == trainer.step % trainer.world.world_size:
            os.kill(os.getpid(), signal.SIGKILL)


class Consumption:
    """Writes down the samples of each step, before a checkpoint of that step is written."""

    def __init__(self, path):
        self.path = path

    def step_ended(self, trainer):
        with self.path.open("a") as file:
            print(json.dumps([trainer.step, trainer.indices]), file=file)


def train(world, plan, folder):
    """Train, and leave everything in a folder."""
    watch = Watch(plan)
    consumption = Consumption(folder / f"consumed-{plan.leg}-{watch.generation}-{world.rank}")
    trainer = echelon.Trainer(
        world,
        make_model(plan),
        loss=nn.functional.cross_entropy,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        seed=3,
        global_batch=plan.global_batch,
        epochs=plan.epochs,
        max_steps=plan.stop,
        workers=plan.workers,
        exact_layers=plan.exact_layers,
        shard=plan.shard,
        shard_size=plan.shard_size,
        save_every=plan.save_every,
        log_every=plan.log_every,
        log_dir=folder,
        checkpoints=folder / "checkpoints",
        callbacks=[consumption, watch],
    )
    trainer.fit(Data(plan, augment=plan.augment), Data(plan, augment=False))
    weights = {name: whole(value) for name, value in trainer.module.state_dict().items()}
    if world.is_main:
        torch.save(weights, folder / "weights.pt")


def whole(value):
    """Return the whole tensor, also if it is sharded over the ranks."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def words(plan):
    """Return the script's arguments for a plan."""
    return [__file__, json.dumps(asdict(plan))]


if __name__ == "__main__":
    with echelon.init() as place:
        train(place, Plan(**json.loads(sys.argv[1])), Path.cwd())
