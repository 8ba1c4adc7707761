"""Nodes that are held for a short time: the call of salloc, and the end of its allocation."""

import os
import stat

import pytest

from echelon.clusters.slurm.allocating import hold_nodes, parse_held, render_salloc
from echelon.core.shell import LocalShell
from echelon.errors import UsageError
from echelon.spec.job_spec import JobSpec
from echelon.spec.readers import NodeCount


def test_salloc_gets_the_options_of_the_request():
    spec = JobSpec(
        nodes=NodeCount(4, 4),
        gpus=2,
        partition="a100",
        output="x.out",
        slurm_extra={"contiguous": ""},
    )
    argv = render_salloc(spec)
    assert argv[0] == "--no-kill"
    assert {"--nodes=4", "--partition=a100", "--gres=gpu:2", "--time=00:10:00"} <= set(argv)
    assert "--contiguous" in argv
    assert "--wait-all-nodes=1" in argv  # one that still starts is not broken
    assert not [word for word in argv if word.startswith("--output")]


def test_the_variables_of_an_allocation_are_parsed():
    output = "salloc: Granted job allocation 7\nSLURM_JOB_ID=7\nSLURM_JOB_NODELIST=n[1-2]\nready\n"
    assert parse_held(output) == {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}


@pytest.fixture
def salloc(tmp_path):
    """Installs a fake salloc; returns variables with its PATH."""

    def write(script):
        path = tmp_path / "salloc"
        path.write_text(f"#!/bin/bash\n{script}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    return write


class Found(LocalShell):
    """Finds programs on the PATH of the given variables."""

    def start(self, argv, *, log, env=None, keep=()):
        program = os.path.join(env["PATH"].split(":")[0], argv[0])  # noqa: PTH118
        return LocalShell.start(self, [program, *argv[1:]], log=log, env=env, keep=keep)


RUN_COMMAND = """\
while [ "${1#--}" != "$1" ]; do shift; done
echo 'salloc: Granted job allocation 7'
SLURM_JOB_ID=7 "$@"
touch "$(dirname "$0")/released"
"""


def test_nodes_are_held_until_the_block_ends(salloc, tmp_path):
    environ = {**salloc(RUN_COMMAND), "SLURM_JOB_ID": "1"}  # of some job around us
    with hold_nodes(JobSpec(), Found(), environ, tell=print) as held:
        assert held["SLURM_JOB_ID"] == "7"
        assert not (tmp_path / "released").exists()
    assert (tmp_path / "released").exists()


def test_nodes_are_released_after_an_error(salloc, tmp_path):
    with (
        pytest.raises(KeyboardInterrupt),
        hold_nodes(JobSpec(), Found(), salloc(RUN_COMMAND), tell=print),
    ):
        raise KeyboardInterrupt
    assert (tmp_path / "released").exists()


def test_a_refused_allocation_is_an_error(salloc):
    refused = "echo 'salloc: error: Invalid account' >&2; exit 1\n"
    with (
        pytest.raises(UsageError, match="Slurm does not allocate the nodes: Invalid account"),
        hold_nodes(JobSpec(), Found(), salloc(refused), tell=print),
    ):
        raise AssertionError


def test_waiting_for_nodes_to_start_is_reported(salloc):
    starting = f"echo 'salloc: Waiting for resource configuration'; sleep 0.2\n{RUN_COMMAND}"
    reported = []
    with hold_nodes(JobSpec(), Found(), salloc(starting), tell=reported.append):
        assert reported == ["waiting for the nodes to start"]


def test_an_interrupted_wait_cancels_the_allocation(salloc, tmp_path):
    waiting = """\
trap 'touch "$(dirname "$0")/revoked"; exit 1' TERM
echo 'salloc: job 7 queued and waiting for resources'
while :; do sleep 0.05; done
"""

    def tell(_text):
        raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        hold_nodes(JobSpec(), Found(), salloc(waiting), tell=tell),
    ):
        raise AssertionError
    assert (tmp_path / "revoked").exists()
