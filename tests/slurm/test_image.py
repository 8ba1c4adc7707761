"""A run inside a container image on two nodes: a rank is killed, and the run outlives its job."""

import json
import os
import signal
from pathlib import Path

import pytest

from echelon.core.waiting import wait_until
from procfs import all_pids, environ_of
from slurm.survival import check_samples, start_chain, train_undisturbed

pytestmark = pytest.mark.timeout(900)  # the image is made first

STEPS = 100
SHAPE = ("--nodes=2", "--procs=1")


@pytest.fixture
def start(full, torch_image, tmp_path):
    """Starts a training inside the image; all of it is ended whatever happens."""
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    environ = {**full.environ, **cache, "SLURM_CONF": str(full.box.layout.slurm_conf)}
    image = (f"--image={torch_image.path}", "--image-runtime=podman")
    started = []

    def begin(*options, steps=STEPS, pace_s=0.1):
        one = start_chain(tmp_path, environ, *options, *image, steps=steps, pace_s=pace_s)
        started.append(one)
        return started[-1]

    yield begin
    for one in started:
        one.process.kill()
        one.process.wait()
        one.process.stdout.close()
    full.calm()


def find_inside(pid, run):
    """Return the processes inside an image that have a pid in the process table of their node."""
    own = os.fsencode(f"ECHELON_RUN_DIR={run}")
    return [
        one
        for one in all_pids()
        if {own, b"FROM_IMAGE=yes"} <= set(environ_of(one).split(b"\0"))
        and f"\t{pid}\n" in Path(f"/proc/{one}/status").read_text()
    ]


def test_ranks_train_inside_an_image_on_two_nodes(start, torch_image):
    run = start(*SHAPE, steps=10, pace_s=0)
    code, said = run.wait()
    assert code == 0, said
    check_samples(run.records(), 10)
    assert wait_until(lambda: torch_image.containers() == [], timeout_s=20)


@pytest.mark.full
def test_a_kill_and_a_hand_over_inside_an_image(full, start, torch_image, tmp_path):
    undisturbed = train_undisturbed(tmp_path / "plain", *SHAPE, steps=STEPS)
    run = start(*SHAPE, "--nodelist=node[1-2]")
    run.await_step(10)
    (rank,) = find_inside(json.loads((tmp_path / "where-1").read_text())["pid"], run.run)
    os.kill(rank, signal.SIGKILL)
    run.await_turns(2)
    script = f"#!/bin/bash\nuntil [ -e {tmp_path}/enough ]; do sleep 0.2; done\n"
    high = full.sbatch(tmp_path, script, "--partition=high", "--nodelist=node[1-2]", "--exclusive")
    full.await_job(high, "RUNNING")
    assert run.outcomes()[0]["state"] == "PREEMPTED", run.said_so_far()
    (tmp_path / "enough").touch()
    code, said = run.wait(timeout_s=240)
    assert code == 0, said
    assert (run.folder / "weights").read_text() == undisturbed
    check_samples(run.records(), STEPS)
    assert [one["state"] for one in run.outcomes()] == ["PREEMPTED", "COMPLETED"]
    lines = (run.run / "events" / "controller-1.jsonl").read_text().splitlines()
    ranks = [event for event in map(json.loads, lines) if event["kind"] == "rank"]
    assert [event["warm"] for event in ranks] == [True] * 4
    assert wait_until(lambda: torch_image.containers() == [], timeout_s=20)
