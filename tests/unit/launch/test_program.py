"""What job-side programs make of a run's frozen request."""

import signal

import pytest

from echelon.launch.backends.stop import Stop
from echelon.launch.controller.stopping import order_end
from echelon.launch.program import Program, find_program
from echelon.run.directory import RunDir
from echelon.run.request import read_spec
from echelon.spec.merging import Layer, merge


def request(**values):
    return merge([Layer(source="test", values=values)]).spec


def test_a_request_is_read_from_the_runs_file(tmp_path):
    run = RunDir.create(tmp_path, "x")
    run.spec.write_text(
        """
script = "train.py"
args = ["--lr", "0.1"]
nodes = "2:4"
procs = 3
restarts = 7
preload = ["torch", "numpy"]
hang_timeout = "90s"
on_hang = "stop"

[slurm.extra]
licenses = "matlab"
"""
    )
    found = read_spec(run)
    assert find_program(found) == Program(argv=("train.py", "--lr", "0.1"), kind="script")
    assert (found.nodes.low, found.nodes.high, found.procs, found.restarts) == (2, 4, 3, 7)
    assert found.preload == ("torch", "numpy")
    assert (found.hang_timeout_s, found.on_hang) == (90, "stop")


@pytest.mark.parametrize(
    ("name", "first", "kind"),
    [
        ("train.py", "import torch", "script"),
        ("train", "#!/usr/bin/env python3", "script"),
        ("train", "#!/bin/bash", "binary"),
        ("train.sh", "python train.py", "binary"),
        ("train", "\x7fELF", "binary"),
    ],
)
def test_what_kind_of_program_it_is(tmp_path, name, first, kind):
    (tmp_path / name).write_text(f"{first}\n")
    assert find_program(request(script=name, chdir=str(tmp_path))).kind == kind


def test_modules_and_what_is_not_there():
    assert find_program(request(script="my.train", module=True)).kind == "module"
    assert find_program(request(script="hostname")).kind == "binary"


def test_how_a_program_is_started_plainly():
    def command(kind):
        return Program(argv=("x", "1"), kind=kind).command("/usr/bin/python3")

    assert command("script") == ["/usr/bin/python3", "x", "1"]
    assert command("module") == ["/usr/bin/python3", "-m", "x", "1"]
    assert command("binary") == ["x", "1"]


def test_cpus_of_a_rank_are_known_where_they_were_asked_for_as_such():
    assert request(script="a.py", cpus_per_task="3", gpus="2").cpus_per_task == 3
    assert request(script="a.py", cpus_per_gpu="3", gpus="2").cpus_per_task == 0


@pytest.mark.parametrize(
    ("values", "lead_s", "number"),
    [
        ({}, 0, signal.SIGUSR1),
        ({"signal_lead": 30}, 30, signal.SIGUSR1),
        ({"slurm.extra": {"signal": "B:TERM@90"}}, 90, signal.SIGTERM),
        ({"slurm.extra": {"sig": "B:TERM@90"}}, 90, signal.SIGTERM),
        ({"signal_lead": 120, "slurm.extra": {"signal": "HUP@90"}}, 120, signal.SIGHUP),
    ],
)
def test_a_warning_before_the_limit_is_ours_to_give(values, lead_s, number):
    found = request(script="a.py", **values)
    assert found.limit_lead_s == lead_s
    stop = Stop("time limit", "", 75)
    # A program that knows nothing of Echelon gets the signal that its author chose.
    asked = order_end(1, stop, found, now_s=0).signal
    assert asked == (number if lead_s else signal.SIGTERM)
