"""Interrupted and resumed, a training ends where one that was never interrupted ends."""

import json
import os
import subprocess
import sys

import pytest

TRAIN = """\
import json, os, sys
from pathlib import Path
import torch
from torch import nn
import echelon

model_kind, kill_at = sys.argv[1], [int(step) for step in sys.argv[2].split(",") if step]
generation = int(os.environ["TORCHELASTIC_RESTART_COUNT"])

def make():
    torch.manual_seed(0)
    if model_kind == "plain":
        return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    return nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3),
                         nn.Linear(32, 3))

class Data(torch.utils.data.Dataset):
    def __init__(self):
        draw = torch.Generator().manual_seed(5)
        self.x, self.y = torch.randn(56, 8, generator=draw), torch.randint(3, (56,), generator=draw)
    def __len__(self):
        return 56
    def __getitem__(self, index):
        return self.x[index], self.y[index]

class Watch:
    def step_ended(self, trainer):
        if generation < len(kill_at) and trainer.step == kill_at[generation]:
            if trainer.world.rank == trainer.step % trainer.world.world_size:
                if trainer.checkpointer:
                    trainer.checkpointer.wait()
                os.kill(os.getpid(), 9)
    def epoch_ended(self, trainer, metrics):
        if trainer.world.is_main:
            with open("losses", "a") as file:
                file.write(json.dumps([trainer.epoch, metrics]) + "\\n")

with echelon.init() as world:
    trainer = echelon.Trainer(
        world, make(), loss=nn.functional.cross_entropy, seed=3, global_batch=12, epochs=4,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), save_every=1,
        callbacks=[Watch()])
    result = trainer.fit(Data(), Data())
    if world.is_main:
        torch.save(trainer.module.state_dict(), "weights.pt")
"""


def train(folder, ranks, kind, kills=()):
    """Train on some ranks, killing one at these steps; return weights and validation losses."""
    import torch

    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "echelon", "run", f"--procs={ranks}"),
            *("train.py", kind, ",".join(map(str, kills))),
        ],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("killed by SIGKILL") == len(kills)
    lines = (folder / "losses").read_text().splitlines()
    return torch.load(folder / "weights.pt"), dict(json.loads(line) for line in lines)


@pytest.mark.parametrize(
    ("ranks", "kind"),
    [
        (3, "full"),
        *(pytest.param(n, "full", marks=pytest.mark.full) for n in (2, 4)),
    ],
)
def test_a_training_that_was_killed_ends_bit_for_bit_as_one_that_was_not(tmp_path, ranks, kind):
    import torch

    whole, whole_losses = train(tmp_path / "whole", ranks, kind)
    broken, broken_losses = train(tmp_path / "broken", ranks, kind, kills=[3, 11])
    assert whole.keys() == broken.keys()
    for name, value in whole.items():
        assert torch.equal(value, broken[name]), name
    assert whole_losses == broken_losses
