"""A real run, seen while it goes on and afterwards: telemetry, the terminal's view, the report."""

import fcntl
import json
import os
import pty
import subprocess
import sys
import termios
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from echelon.core.waiting import wait_until
from echelon.monitor.advice import LEAST_TRAINED_S, advise
from echelon.monitor.report import make_report
from echelon.run.directory import RunDir
from echelon.run.event_log import EventWriter
from echelon.run.series import read_series, summarise
from eventlines import raw
from local.liverun import SOURCE, live_run

SCRIPT = """\
import time
import torch
from torch import nn
import echelon

torch.set_num_threads(1)

class Slow(nn.Linear):
    def forward(self, x):
        time.sleep(0.25 if rank == 3 else 0.01)
        return super().forward(x)

with echelon.init() as world:
    rank = world.rank
    trainer = echelon.Trainer(
        world, Slow(4, 2), loss=nn.functional.cross_entropy, epochs=1000, global_batch=8,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1), log_every=5, max_steps=100_000)
    trainer.fit(torch.utils.data.TensorDataset(torch.ones(800, 4), torch.arange(800) % 2))
"""


def echelon(run, *words):
    argv = [sys.executable, "-m", "echelon", *words, "--runs-dir", str(run.folder / "runs")]
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "80", "LINES": "24"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def samples(run, node):
    found = RunDir.open(run.path)
    return read_series(lambda level: found.telemetry(1, node, level))


def is_measured(run):
    """Tell whether all ranks have trained for a while."""
    return all(
        sum(f"rank{2 * node}.busy" in one.means for one in samples(run, node)) >= 6
        for node in (0, 1)
    )


def test_a_slow_rank_is_seen_while_it_trains_and_afterwards(tmp_path):
    with live_run(tmp_path, SCRIPT, ["--set=preload="]) as run:
        assert wait_until(lambda: any((tmp_path / "runs").glob("*/telemetry/*")), timeout_s=60)
        assert wait_until(lambda: is_measured(run), timeout_s=60), run.output
        frame = echelon(run, "watch", "--once")
        assert len(frame.splitlines()) <= 24
        assert max(map(len, frame.splitlines())) <= 80
        assert "RUNNING" in frame
        assert "4 ranks" in frame
        slowest = next(line for line in frame.splitlines() if line[:5].strip().isdecimal())
        assert slowest.split()[0] == "3"
        echelon(run, "stop", "last")
        assert run.wait() == 143, run.output
        totals = [summarise(samples(run, node)) for node in (0, 1)]
        means = {**totals[0].means, **totals[1].means}
        assert means["rank3.busy"] > 0.8
        for rank in (0, 1, 2):
            assert means[f"rank{rank}.comm"] > 0.5, rank
        assert means["rank3.comm"] < 0.3
        told = json.loads(echelon(run, "report", "last", "--json"))
        assert {one["rank"] for one in told["ranks"]} == {0, 1, 2, 3}
        # A run this short gets no advice; what was measured is enough for it.
        assert told["findings"] == []
        assert "the ranks ran for less than a minute" in echelon(run, "report", "last")
        facts = make_report(RunDir.open(run.path)).facts
        found = advise(replace(facts, trained_s=LEAST_TRAINED_S))
        (slow,) = [one for one in found if one.code == "straggler"]
        assert "rank 3" in slow.seen


def test_it_can_be_switched_off(tmp_path):
    with live_run(tmp_path, "print('hello')\n", ["--set=telemetry=false", "--set=preload="]) as run:
        assert run.wait() == 0, run.output
        assert not (run.path / "telemetry").exists()
        assert "COMPLETED" in echelon(run, "watch", "--once", "last")


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_the_live_view_ends_at_a_key_and_leaves_the_terminal_as_it_was(key, tmp_path):
    run = RunDir.create(tmp_path, "train-abcd")
    run.spec.write_text('script = "train.py"\n')
    with EventWriter(run.events_of("controller-1"), clock=time.time) as writer:
        writer.write(raw("attempt", attempt=1, job="7"))
    ours, its = pty.openpty()
    before = termios.tcgetattr(its)
    argv = [sys.executable, "-m", "echelon", "watch", "--every=600", "--runs-dir", str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "TERM": "xterm"}
    with subprocess.Popen(
        argv,
        env=env,
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
        preexec_fn=partial(fcntl.ioctl, 0, termios.TIOCSCTTY, 0),  # noqa: PLW1509  no threads
    ) as watching:
        shown = b""
        while b"press q to quit" not in shown:
            shown += os.read(ours, 4096)
        os.write(ours, b"x")  # any other key only draws again
        os.write(ours, key)
        # It prints a last frame, which has to be read.
        os.set_blocking(ours, False)

        def is_over():
            with suppress(BlockingIOError):
                os.read(ours, 4096)
            return watching.poll() is not None

        assert wait_until(is_over, timeout_s=60)
        assert watching.returncode == 0
    assert termios.tcgetattr(its) == before
    os.close(ours)
    os.close(its)
