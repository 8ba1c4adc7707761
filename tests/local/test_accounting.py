"""Where the time of a real run went: of one that is killed once, and of a stranger's."""

import json
import os
import re
import subprocess
import sys

import pytest

from local.liverun import SOURCE, live_run

ONE_NODE = ["--nodes=1", "--procs=2"]
PACE_S, SLOW_S = 0.05, 0.01
SCRIPT = """\
import os, signal, time
from pathlib import Path
import torch
from torch import nn
import echelon

torch.set_num_threads(1)

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 160
    def __getitem__(self, index):
        time.sleep(SLOW_S)
        return torch.ones(4), torch.tensor(index % 2)

class Harm:
    def step_ended(self, trainer):
        time.sleep(PACE_S)
        if trainer.step == 13 and os.environ["ECHELON_GENERATION"] == "0":
            trainer.checkpointer.wait()
            torch.distributed.barrier()
            if trainer.world.rank == 1 and KILLED:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600)  # until it is ended

with echelon.init() as world:
    trainer = echelon.Trainer(
        world, nn.Linear(4, 2), loss=nn.functional.cross_entropy, epochs=1, global_batch=8,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1), save_every=10, log_every=1,
        callbacks=[Harm()])
    assert trainer.fit(Data()).step == 20
"""


def script(*, killed):
    return f"PACE_S, SLOW_S, KILLED = {PACE_S}, {SLOW_S}, {killed}\n{SCRIPT}"


def status(run, *options):
    argv = [sys.executable, "-m", "echelon", "status", *options]
    argv += ["--runs-dir", str(run.folder / "runs"), run.path.name]
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.run(
        argv, env=env, capture_output=True, text=True, timeout=60, check=True
    ).stdout


def test_a_training_that_was_killed_once_has_redone_some_work(tmp_path):
    with live_run(tmp_path, script(killed=True), ONE_NODE) as run:
        assert run.wait() == 0, run.output
        failed, well = run.events("spent")
        assert (failed["again"], failed["first"], failed["last"]) == (True, 0, 13)
        assert (well["again"], well["first"], well["last"]) == (False, 10, 20)
        assert (
            failed["ranks"] == failed["known"] == 2
        )  # the other was killed, and told all the same
        assert failed["steps_s"] >= PACE_S
        told = json.loads(status(run, "--json"))
        time = told["time"]
        (began,), (ended,) = run.events("attempt"), run.events("ended")
        allocated_s = 2 * (ended["time"] - began["time"])
        assert sum(time.values()) - time["queue"] == pytest.approx(allocated_s, abs=1e-3)
        # Both ranks: 20 steps that count, 3 that do not, and 4 samples waited for in each of 23.
        assert time["productive"] >= 2 * 20 * PACE_S
        assert time["redone work"] >= 2 * 3 * PACE_S
        assert time["data wait"] >= 2 * 23 * 4 * SLOW_S
        for phase in ("launch", "rendezvous", "warm-up", "checkpoint stall", "restart", "idle"):
            assert time[phase] > 0, phase
        assert told["effective"] == pytest.approx(time["productive"] / allocated_s, abs=1e-3)
        shown = re.search(r"effective +(\d+) % of ", status(run))
        # Both were rounded, each for itself.
        assert shown
        assert int(shown[1]) == pytest.approx(100 * told["effective"], abs=0.51)


@pytest.mark.full
def test_the_time_of_a_hang_is_not_productive(tmp_path):
    options = [*ONE_NODE, "--hang-timeout=4", "--on-hang=restart"]
    with live_run(tmp_path, script(killed=False), options) as run:
        assert run.wait() == 0, run.output
        hung, well = (event["seconds"] for event in run.events("spent"))
        # Seen by looks, one a second: the last may have been just before the last move.
        assert hung["restart"] + hung["redone work"] >= 2 * (4 - 1)
        assert 0 < hung["redone work"] <= hung["productive"] / 13 + 0.01
        assert well["restart"] == well["redone work"] == 0


def test_of_a_script_that_knows_nothing_of_the_library_only_that_it_ran_is_known(tmp_path):
    stranger = """\
import os, time
from pathlib import Path

time.sleep(0.5)
done = Path("done")
if os.environ["RANK"] == "0":
    done.touch()
else:
    while not done.exists():
        time.sleep(0.01)
    time.sleep(1)
"""
    with live_run(tmp_path, stranger, [*ONE_NODE, "--set=preload="]) as run:
        assert run.wait() == 0, run.output
        (spent,) = run.events("spent")
        assert spent["seconds"].pop("productive") >= 1.5
        assert spent["seconds"].pop("idle") >= 0.5  # of the one that is done a second before
        assert set(spent["seconds"].values()) == {0}
        assert "first" not in spent
        told = json.loads(status(run, "--json"))
        assert told["effective"] is None
        assert (told["time"]["productive"], told["time"]["running"] >= 1.5) == (0, True)
        assert "unknown, no steps were reported" in status(run)
        assert "rank-seconds and reported no steps" in run.output
