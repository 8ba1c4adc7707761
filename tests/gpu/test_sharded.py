"""The Trainer with FSDP, on several ranks with NCCL that share one GPU. Run by hand.

See test_nccl.py about NCCL.
"""

import json
import os
import subprocess
import sys

import pytest
import torch

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.timeout(300),
]

TRAIN = """\
import json, os, sys
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import TensorDataset
import echelon

options = json.loads(sys.argv[1])
dying_rank = options.pop("dying_rank", None)
draw = torch.Generator().manual_seed(1)
data = TensorDataset(
    torch.randn(1000, 64, generator=draw), torch.randint(0, 64, (1000,), generator=draw)
)
torch.manual_seed(0)
layers = [nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(3)]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(64, 64)

    def forward(self, x):
        x = x.unsqueeze(1).expand(-1, 8, -1)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


class Die:
    def step_ended(self, trainer):
        if trainer.step == 13 and dying_rank == world.rank:
            if os.environ["ECHELON_GENERATION"] == "0":
                trainer.checkpointer.wait()
                os.kill(os.getpid(), 9)


with echelon.init() as world:
    trainer = echelon.Trainer(
        world,
        Net(),
        optimizer=lambda p: torch.optim.AdamW(p, lr=1e-3),
        loss=nn.functional.cross_entropy,
        checkpoints=Path("checkpoints", options.pop("folder", "c")),
        callbacks=[Die()],
        **{"epochs": 2, "global_batch": 96, "log_every": 1, "clip_norm": 0.5} | options,
    )
    result = trainer.fit(data)
    own = sum(p.to_local().numel() if hasattr(p, "to_local") else p.numel()
              for p in trainer.module.parameters())
    total = sum(float((p.full_tensor() if hasattr(p, "full_tensor") else p).detach().double().sum())
                for p in trainer.module.parameters())
    if world.is_main:
        print(json.dumps({"backend": world.backend, "step": result.step, "own": own,
                          "loss": result.metrics["loss"], "sum": total}))
print("after the group")
"""


@pytest.fixture
def train(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)

    def train(*, ranks=2, restarts=0, **options):
        preload = os.environ.get("ECHELON_TEST_NCCL", "")
        own = {"LD_PRELOAD": preload} if preload else {}
        flags = [f"--procs={ranks}", f"--restarts={restarts}", "--hang-timeout=60"]
        said = subprocess.run(
            [sys.executable, "-m", "echelon", "run", *flags, "train.py", json.dumps(options)],
            cwd=tmp_path,
            env={**os.environ, "ECHELON_SHARE_GPU": "1", **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=150,
            check=False,
        ).stdout
        assert said.count("after the group") == ranks, said
        (line,) = [line for line in said.splitlines() if line.startswith('0: {"')]
        return json.loads(line.removeprefix("0: ")), said

    return train


def test_a_sharded_training_does_what_a_replicated_one_does(train):
    expected, _ = train(precision="fp32", folder="ddp", capture="never")
    found, said = train(precision="fp32", folder="fsdp", shard="fsdp", recompute=True)
    assert found["backend"] == "nccl"
    assert found["own"] < 0.6 * expected["own"]
    assert (found["step"], found["loss"]) == (
        expected["step"],
        pytest.approx(expected["loss"], 1e-3),
    )
    assert found["sum"] == pytest.approx(expected["sum"], rel=1e-2)
    assert "steps are not captured as CUDA graphs: the model is sharded" in said


def test_it_is_the_same_bit_for_bit_after_a_rank_was_killed(train):
    options = {"shard": "fsdp", "precision": "bf16", "deterministic": True, "save_every": 5}
    expected, _ = train(folder="whole", **options)
    found, said = train(folder="killed", restarts=1, dying_rank=1, **options)
    assert "restart" in said
    assert (found["loss"], found["sum"]) == (expected["loss"], expected["sum"])
