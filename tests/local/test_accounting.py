"""Where the time of a real run went: of one that is killed once, and of a stranger's."""

import json
import os
import re
import subprocess
import sys

import pytest

from echelon.monitor.accounting import account
from echelon.monitor.openmetrics import render_metrics
from echelon.monitor.overview import Overview
from echelon.monitor.page_report import render_page
from echelon.monitor.reading import RunReader
from echelon.monitor.report import make_report, render, to_record
from echelon.monitor.snapshot import describe
from echelon.run.directory import RunDir
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


STRAGGLER = """\
import time
from pathlib import Path
import torch
from torch import nn
import echelon

torch.set_num_threads(1)

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 80
    def __getitem__(self, index):
        return torch.ones(4), torch.tensor(index % 2)

with echelon.init() as world:
    def loss(outputs, targets):
        arrived = Path(f"step-{trainer.step}")
        if world.rank == 0:
            arrived.touch()
        while not arrived.exists():
            time.sleep(0.001)
        if world.rank == 1:
            time.sleep(SLOW_S)  # rank 0 waits for this
        return nn.functional.cross_entropy(outputs, targets)

    trainer = echelon.Trainer(
        world, nn.Linear(4, 2), loss=loss, epochs=1, global_batch=8,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    assert trainer.fit(Data()).step == 10
"""


def test_waiting_for_a_straggler_is_not_productive(tmp_path):
    slow_s = 0.3
    with live_run(tmp_path, f"SLOW_S = {slow_s}\n{STRAGGLER}", ONE_NODE) as run:
        assert run.wait() == 0, run.output
        told = json.loads(status(run, "--json"))
        time, effective = told["time"], told["effective"]
        # Of a busy machine, rank 0 may be late now and then.
        assert time["peer wait"] >= 10 * slow_s / 2
        assert time["productive"] >= 10 * slow_s  # rank 1 is busy, with whatever it does
        report = make_report(RunDir.open(run.path))
        allocated_s = report.accounts.allocated_us / 1e6
        assert sum(time.values()) - time["queue"] == pytest.approx(allocated_s, abs=1e-6)
        assert effective == pytest.approx(time["productive"] / allocated_s, abs=1e-4)
        # All of them show the same numbers.
        assert to_record(report)["seconds"] == time
        (sample,) = Overview(run.path.parent).samples()
        assert sample.seconds == time
        assert f'category="peer wait"}} {time["peer wait"]!r}' in render_metrics([sample])
        state = RunReader(RunDir.open(run.path)).read()
        page = describe(state, account(state))
        assert page["time"]["seconds"]["peer wait"] == pytest.approx(time["peer wait"], rel=1e-3)
        assert page["head"]["effective"] == pytest.approx(effective, rel=1e-3)
        headline = f"{100 * report.accounts.effective:.0f}% of"
        assert headline in render(report)
        assert headline in render_page(report, now_s=0.0)
        assert ">peer wait<" in render_page(report, now_s=0.0)


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
