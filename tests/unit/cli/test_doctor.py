"""The nodes and the Python that the doctor examines."""

import os
import sys

import pytest

from echelon.cli.doctor import choose_interpreter, count_nodes
from echelon.cli.main import run
from echelon.spec.job_spec import JobSpec
from echelon.spec.readers import NodeCount


@pytest.mark.parametrize(
    ("spec", "environ", "python"),
    [
        (JobSpec(python="/env/bin/python3.12"), {}, "/env/bin/python3.12"),
        (JobSpec(python="/env/python", venv="/other"), {"VIRTUAL_ENV": "/x"}, "/env/python"),
        (JobSpec(venv="/env"), {"VIRTUAL_ENV": "/x"}, "/env/bin/python"),
        (JobSpec(), {"VIRTUAL_ENV": "/x"}, "/x/bin/python"),
        (JobSpec(), {}, sys.executable),
    ],
)
def test_doctor_uses_the_python_of_the_ranks(spec, environ, python):
    assert choose_interpreter(spec, environ) == python


def test_doctor_finds_python_on_the_path(tmp_path):
    (tmp_path / "python9").touch(mode=0o755)
    path = f"/nowhere:{tmp_path}"
    assert choose_interpreter(JobSpec(python="python9"), {"PATH": path}) == f"{tmp_path}/python9"


def test_doctor_examines_all_nodes_of_nodelist():
    spec = JobSpec(nodelist="node[1-3],gpu7")
    assert count_nodes(spec, asked=False).nodes == NodeCount(4, 4)
    assert count_nodes(spec, asked=True) == spec


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "x"], "is not a number of nodes"),
        (["train.py"], "unexpected extra argument"),
        (["--set", "nodse=2"], "unknown key 'nodse'"),
    ],
)
def test_doctor_refuses_an_invalid_call(arguments, message, capsys):
    assert run(["doctor", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_doctor_refuses_more_nodes_than_the_allocation_has(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[1-2]")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    assert run(["doctor", "--nodes=3", f"--runs-dir={tmp_path}/runs"]) == 2
    assert "the allocation has 2 nodes, not 3" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_doctor_with_nodes_requires_slurm(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))  # noqa: PTH120
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert run(["doctor", "--nodes=3", f"--runs-dir={tmp_path}/runs"]) == 69
    assert "'scontrol' is not installed" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
