"""On a GPU with `deterministic=True`, killed and resumed is bit for bit as never interrupted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

TRAIN = """\
import os, sys
import torch
from torch import nn
import echelon

precision, exact, kills = sys.argv[1], sys.argv[2] == "exact", list(map(int, sys.argv[3:]))
generation = int(os.environ["TORCHELASTIC_RESTART_COUNT"])

class Data(torch.utils.data.Dataset):
    def __init__(self):
        draw = torch.Generator().manual_seed(5)
        self.x = torch.randint(256, (1000, 3, 32, 32), generator=draw, dtype=torch.uint8)
        self.y = torch.randint(10, (1000,), generator=draw)
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        return self.x[index], self.y[index]

def make():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Dropout2d(0.1),
        nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.AvgPool2d(4), nn.Flatten(), nn.Dropout(0.3), nn.Linear(1024, 10))

class Watch:
    def step_ended(self, trainer):
        if generation < len(kills) and trainer.step == kills[generation]:
            trainer.checkpointer.wait()
            os.kill(os.getpid(), 9)

with echelon.init() as world:
    assert world.device.type == "cuda"
    trainer = echelon.Trainer(
        world, make(), loss=nn.functional.cross_entropy, seed=3, global_batch=96, epochs=3,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), save_every=4, workers=2,
        transform=echelon.ImageTransform(shift=4, flip=True), precision=precision,
        deterministic=True, exact_layers=exact, callbacks=[Watch()])
    trainer.fit(Data())
    torch.save(trainer.module.state_dict(), "weights.pt")
"""


def train(folder, *words, kills=()):
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "echelon", "run", "--procs=1"),
            *("train.py", *words, *map(str, kills)),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("killed by SIGKILL") == len(kills)
    return torch.load(folder / "weights.pt", map_location="cpu")


@pytest.mark.parametrize("layers", ["usual", "exact"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_training_that_was_killed_ends_bit_for_bit_as_one_that_was_not(
    tmp_path, precision, layers
):
    whole = train(tmp_path / "whole", precision, layers)
    broken = train(tmp_path / "broken", precision, layers, kills=(6, 21))
    assert whole.keys() == broken.keys()
    for name, value in whole.items():
        assert torch.equal(value, broken[name]), name
