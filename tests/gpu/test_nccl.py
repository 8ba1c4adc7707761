"""Several ranks with NCCL on one GPU. Run by hand.

NCCL lets ranks share a GPU since 2.30. Where torch has an older one, ECHELON_TEST_NCCL names a
libnccl.so.2 to preload.
"""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from echelon.core.waiting import wait_until
from echelon.monitor.advice import LEAST_TRAINED_S, advise
from echelon.monitor.report import make_report
from echelon.run.directory import RunDir
from echelon.run.series import read_series, summarise

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.timeout(300),
]

TRAIN = """\
import json, os, sys, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import TensorDataset
import echelon

options = json.loads(sys.argv[1])
slow_rank, dying_rank, stubborn_rank = (options.pop(f"{what}_rank", None)
                                        for what in ("slow", "dying", "stubborn"))
pace_s = options.pop("pace_s", 0)
if options.pop("scheduled", False):
    options["scheduler"] = lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=3, gamma=0.9)
    options["schedule_steps"] = True
if "checkpoints" in options:
    options["checkpoints"] = Path(options["checkpoints"])
draw = torch.Generator().manual_seed(1)
data = TensorDataset(
    torch.randn(1000, 16, generator=draw), torch.randint(0, 4, (1000,), generator=draw)
)
torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(),
    nn.Dropout(options.pop("dropout", 0.0)), nn.Linear(32, 4)
)

def step(model, batch):
    inputs, targets = batch
    loss = nn.functional.cross_entropy(model(inputs), targets, reduction="sum")
    if world.rank == stubborn_rank:
        loss.item()  # cannot be captured
    return {"loss": loss, "count": len(targets)}

class Disturb:
    def step_ended(self, trainer):
        if pace_s or slow_rank == world.rank:
            time.sleep(pace_s or 0.02)
        if trainer.step == 12:
            Path("step-12").touch()
        if trainer.step == 13 and dying_rank == world.rank:
            if os.environ["ECHELON_GENERATION"] == "0":
                trainer.checkpointer.wait()
                os.kill(os.getpid(), 9)

with echelon.init() as world:
    trainer = echelon.Trainer(
        world,
        model,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        train_step=step,
        **{"epochs": 2, "global_batch": 96, "precision": "fp32", "log_every": 1} | options,
        callbacks=[Disturb()],
    )
    result = trainer.fit(data)
    total = sum(float(p.detach().double().sum()) for p in trainer.module.parameters())
    if world.is_main:
        found = {"backend": world.backend, "graphs": trainer.graphs, "step": result.step}
        print(json.dumps({**found, "loss": result.metrics["loss"], "sum": total}))
print("after the group")
"""


@pytest.fixture
def start(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)

    def start(*, ranks=2, restarts=0, shared="1", **options):
        preload = os.environ.get("ECHELON_TEST_NCCL", "")
        own = {"LD_PRELOAD": preload} if preload else {}
        flags = [f"--procs={ranks}", f"--restarts={restarts}", "--hang-timeout=60"]
        return subprocess.Popen(
            [sys.executable, "-m", "echelon", "run", *flags, "train.py", json.dumps(options)],
            cwd=tmp_path,
            env={**os.environ, "ECHELON_SHARE_GPU": shared, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


@pytest.fixture
def train(start):
    def train(*, ranks=2, **options):
        said, _ = start(ranks=ranks, **options).communicate(timeout=150)
        assert said.count("after the group") == ranks, said
        (line,) = [line for line in said.splitlines() if line.startswith('0: {"')]
        return json.loads(line.removeprefix("0: ")), said

    return train


def assert_same(one, other, rel=1e-3):
    assert other["step"] == one["step"]
    assert other["loss"] == pytest.approx(one["loss"], rel=rel)
    assert other["sum"] == pytest.approx(one["sum"], rel=rel)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compiled": True},
        {"dropout": 0.5},
        {"accumulate": 2, "clip_norm": 0.5, "scheduled": True},
        {"accumulate": 2, "clip_norm": 0.5, "scheduled": True, "dropout": 0.5, "compiled": True},
    ],
    ids=lambda options: " ".join(options) or "plain",
)
def test_captured_steps_end_and_do_what_others_do(train, ranks, options):
    """1,000 samples in batches of 96: the last of each epoch has 40."""
    eager, _ = train(ranks=ranks, capture="never", **{**options, "compiled": None})
    captured, said = train(ranks=ranks, **options)
    assert eager["backend"] == captured["backend"] == "nccl"
    assert captured["graphs"] == 2, said
    # Compiled code draws other random numbers for dropout.
    assert_same(eager, captured, rel=0.2 if {"dropout", "compiled"} <= set(options) else 1e-3)


def test_a_rank_that_is_killed_between_replays_is_replaced(train):
    usual, _ = train(dropout=0.5, checkpoints="usual", save_every=5)
    again, said = train(
        dropout=0.5, checkpoints="again", save_every=5, restarts=1, dying_rank=1
    )  # fmt: skip
    assert "resumed at step 11" in said
    assert usual["graphs"] == again["graphs"] == 2
    assert_same(usual, again, rel=1e-6)


def test_captured_steps_stop_at_one_step_and_resume(start, train, tmp_path):
    usual, _ = train(dropout=0.5, checkpoints="usual")
    (tmp_path / "step-12").unlink()
    stopped = start(dropout=0.5, checkpoints="again", pace_s=0.1)
    assert wait_until((tmp_path / "step-12").exists, timeout_s=60)
    stopped.send_signal(signal.SIGINT)
    said, _ = stopped.communicate(timeout=60)
    assert '{"backend"' not in said
    again, said = train(dropout=0.5, checkpoints="again")
    assert "resumed at step 1" in said
    assert_same(usual, again, rel=1e-6)


def test_if_one_rank_cannot_capture_none_does(train):
    eager, _ = train(capture="never")
    found, said = train(stubborn_rank=1)
    assert found["graphs"] == 0
    assert said.count("steps are not captured as CUDA graphs: the capture failed on another") == 1
    assert_same(eager, found)


@pytest.mark.parametrize("capture", ["never", "auto"])
def test_the_rank_that_all_wait_for_is_named(train, tmp_path, capture):
    train(capture=capture, slow_rank=1, epochs=40, log_every=10)
    (path,) = (tmp_path / "runs").glob("train-*")
    run = RunDir.open(path)
    means = summarise(read_series(lambda level: run.telemetry(1, 0, level))).means
    assert means["rank0.comm"] > 0.5, means
    assert means["rank1.comm"] < 0.3, means
    facts = make_report(run).facts
    (slow,) = [
        one for one in advise(replace(facts, trained_s=LEAST_TRAINED_S)) if one.code == "straggler"
    ]
    assert "rank 1" in slow.seen


def test_ranks_that_share_a_gpu_say_why_they_use_gloo(train):
    found, said = train(capture="never", shared="")
    assert found["backend"] == "gloo"
    assert "gloo instead of NCCL: ranks 0, 1 are on one GPU" in said
