"""What the launcher makes of a run's frozen request."""

import signal

import pytest

from echelon.core.rundir import RunDir
from echelon.launch.ending import order_end
from echelon.launch.entries import Stop
from echelon.launch.rank import Program
from echelon.launch.request import from_spec, read_request
from echelon.merging import Layer, merge


def request(**values):
    return from_spec(merge([Layer(source="test", values=values)]).spec)


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
    found = read_request(run)
    assert found.program == Program(argv=("train.py", "--lr", "0.1"), kind="script")
    assert (found.low, found.high, found.procs, found.restarts) == (2, 4, 3, 7)
    assert found.preload == ("torch", "numpy")
    assert (found.hang_timeout_s, found.on_hang) == (90, "stop")


def test_without_a_number_there_is_a_rank_for_each_gpu():
    assert request(script="a.py", gpus="4").procs == 4
    assert request(script="a.py", gpus="4", procs="2").procs == 2
    assert request(script="a.py").procs in (0, 1)


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
    assert request(script=name, chdir=str(tmp_path)).program.kind == kind


def test_modules_and_what_is_not_there():
    assert request(script="my.train", module=True).program.kind == "module"
    assert request(script="hostname").program.kind == "binary"


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
    assert (found.lead_s, found.lead_signal) == (lead_s, number)
    stop = Stop("time limit", "", 75)
    # A program that knows nothing of Echelon gets the signal that its author chose.
    asked = order_end(1, stop, found, now_s=0).signal
    assert asked == (number if lead_s else signal.SIGTERM)
