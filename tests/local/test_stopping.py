"""A training that is asked to stop does so at one step on all ranks, saves, and goes on later."""

import json
import os
import signal

import pytest

from echelon.core.waiting import wait_until
from local.liverun import START_S, live_run

SCRIPT = """\
import json, os, sys, time
from pathlib import Path
import torch
from torch import nn
import echelon

torch.set_num_threads(1)

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.randn(4), torch.tensor(index % 2)

class Tell:
    def step_ended(self, trainer):
        Path(f"step-{trainer.world.rank}").write_text(str(trainer.step))
        if trainer.step == 5:
            Path(f"ready-{trainer.world.rank}").touch()
        if PACE:
            time.sleep(PACE * (1 + trainer.world.rank))

def slowly(model, batch):
    Path(f"measuring-{os.environ['RANK']}").touch()
    time.sleep(PACE)
    return {"count": 1, "loss": 0.0}

PACE, EPOCHS, EVALUATE = @@@
with echelon.init() as world:
    trainer = echelon.Trainer(
        world, nn.Linear(4, 2), loss=nn.functional.cross_entropy, epochs=EPOCHS, global_batch=8,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1), measure=slowly, eval_batch=1,
        checkpoints=Path("checkpoints"), callbacks=[Tell()])
    result = trainer.fit(Data(), Data() if EVALUATE else None)
    Path(f"done-{world.rank}").touch()
"""

LOOP = """\
import sys, time
from pathlib import Path
import torch
from torch import nn
import echelon

torch.set_num_threads(1)
with echelon.init() as world, echelon.StopBarrier() as stop_barrier:
    net = nn.Linear(4, 2)
    checkpoints = echelon.Checkpointer(Path("checkpoints"))
    found = checkpoints.load()
    step = found.step if found else 0
    while step < LAST:
        time.sleep(0.02 * (1 + world.rank))
        torch.distributed.all_reduce(torch.ones(1))
        step += 1
        Path(f"step-{world.rank}").write_text(str(step))
        stop = stop_barrier.reached(step)
        if stop or step == 10:
            checkpoints.save({"model": net.state_dict()}, step=step)
        if step == 15:
            Path(f"ready-{world.rank}").touch()
        if stop:
            checkpoints.wait()
            sys.exit()
    print("went on from", found.step)
"""


def script(pace, epochs=10_000, *, evaluate=False):
    return SCRIPT.replace("@@@", repr((pace, epochs, evaluate)))


def interrupt(run, folder, mark):
    """Send Ctrl-C once each of four ranks has left its mark; the run ends by that."""
    marks = [folder / f"{mark}-{rank}" for rank in range(4)]
    assert wait_until(lambda: all(one.exists() for one in marks), timeout_s=START_S), run.output
    os.kill(run.command.pid, signal.SIGINT)
    assert run.wait() == 128 + signal.SIGINT, run.output


def steps(folder):
    return [int((folder / f"step-{rank}").read_text()) for rank in range(4)]


@pytest.mark.parametrize("pace", [0.0, pytest.param(0.02, marks=pytest.mark.full)])
def test_all_ranks_stop_at_one_step_and_have_saved_it(tmp_path, pace):
    with live_run(tmp_path, script(pace)) as run:
        interrupt(run, tmp_path, "ready")
        (reached,) = set(steps(tmp_path))
        assert f"all ranks saved and stopped after step {reached}" in run.output
        newest = max((tmp_path / "checkpoints").glob("step-*"))
        assert json.loads((newest / "manifest.json").read_text())["step"] == reached
        assert not (tmp_path / "done-0").exists()


@pytest.mark.quick
def test_a_loop_of_ones_own_stops_at_one_step_and_goes_on_there(tmp_path):
    with live_run(tmp_path, LOOP.replace("LAST", "10_000")) as run:
        interrupt(run, tmp_path, "ready")
        (reached,) = set(steps(tmp_path))
        assert f"all ranks saved and stopped after step {reached}" in run.output
    with live_run(tmp_path, LOOP.replace("LAST", str(reached + 5))) as run:
        assert run.wait() == 0, run.output
        assert run.output.count(f"went on from {reached}\n") == 4
        assert set(steps(tmp_path)) == {reached + 5}


@pytest.mark.full
def test_it_stops_in_the_middle_of_a_validation(tmp_path):
    with live_run(tmp_path, script(0.2, evaluate=True)) as run:
        interrupt(run, tmp_path, "measuring")
        assert set(steps(tmp_path)) == {8}
        assert "all ranks saved and stopped after step 8" in run.output


def test_ctrl_c_is_a_keyboard_interrupt_for_scripts_without_the_library(tmp_path):
    script = """\
import os, time
from pathlib import Path

rank = os.environ["RANK"]
try:
    Path(f"ready-{rank}").touch()
    time.sleep(600)
except KeyboardInterrupt:
    Path(f"interrupted-{rank}").touch()
"""
    with live_run(tmp_path, script, ["--set=preload="]) as run:
        interrupt(run, tmp_path, "ready")
        assert len(list(tmp_path.glob("interrupted-*"))) == 4, run.output
