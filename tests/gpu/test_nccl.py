"""Several ranks with NCCL on one GPU. Run by hand.

NCCL lets ranks share a GPU since 2.30. Where torch has an older one, ECHELON_TEST_NCCL names a
libnccl.so.2 to preload.
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
import torch
from torch import nn
from torch.utils.data import TensorDataset
import echelon

capture, compiled = sys.argv[1], sys.argv[2] == "compiled"
draw = torch.Generator().manual_seed(1)
data = TensorDataset(
    torch.randn(1000, 16, generator=draw), torch.randint(0, 4, (1000,), generator=draw)
)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
with echelon.init() as world:
    trainer = echelon.Trainer(
        world,
        model,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        loss=nn.functional.cross_entropy,
        clip_norm=1.0,
        epochs=2,
        global_batch=96,
        precision="fp32",
        capture=capture,
        compiled=compiled,
        log_every=1,
    )
    result = trainer.fit(data)
    total = sum(float(p.detach().double().sum()) for p in trainer.module.parameters())
    if world.is_main:
        found = {"backend": world.backend, "graphs": trainer.graphs, "step": result.step}
        print(json.dumps({**found, "loss": result.metrics["loss"], "sum": total}))
print("after the group")
"""


@pytest.fixture
def train(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)

    def run(*arguments, ranks=2, **variables):
        preload = os.environ.get("ECHELON_TEST_NCCL", "")
        own = {"LD_PRELOAD": preload} if preload else {}
        options = [f"--procs={ranks}", "--restarts=0", "--hang-timeout=60"]
        done = subprocess.run(
            [sys.executable, "-m", "echelon", "run", *options, "train.py", *arguments],
            cwd=tmp_path,
            env={**os.environ, "ECHELON_SHARE_GPU": "1", **own, **variables},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        assert said.count("after the group") == ranks, said
        (line,) = [line for line in done.stdout.splitlines() if line.startswith('0: {"')]
        return json.loads(line.removeprefix("0: ")), said

    return run


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("way", ["plain", "compiled"])
def test_captured_steps_end_and_do_what_others_do(train, ranks, way):
    eager, _ = train("never", "plain", ranks=ranks)
    captured, said = train("always", way, ranks=ranks)
    assert eager["backend"] == captured["backend"] == "nccl"
    assert captured["graphs"] > 0, said
    assert captured["step"] == eager["step"]
    assert captured["loss"] == pytest.approx(eager["loss"], rel=1e-3)
    assert captured["sum"] == pytest.approx(eager["sum"], rel=1e-3)


def test_ranks_that_share_a_gpu_say_why_they_use_gloo(train):
    found, said = train("never", "plain", ECHELON_SHARE_GPU="")
    assert found["backend"] == "gloo"
    assert "gloo instead of NCCL: ranks 0, 1 are on one GPU" in said
