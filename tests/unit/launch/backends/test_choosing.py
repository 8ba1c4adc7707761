"""Which backend a job has, by its variables; and that of one's own machine."""

import asyncio
from pathlib import Path

import pytest

from echelon.core.shell import FakeShell
from echelon.launch.backends.base import AgentCommand, AttemptContext, NoStandby
from echelon.launch.backends.choosing import choose_backend
from echelon.launch.backends.local import LocalStarter, local_backend
from echelon.launch.backends.ray.backend import RayAllocation, RayStandby, RayStarter
from echelon.launch.backends.slurm.allocation import SlurmAllocation
from echelon.launch.backends.slurm.standby import RequeueStandby, WaitingStandby
from echelon.launch.backends.slurm.starter import SlurmStarter
from echelon.run.directory import RunDir
from echelon.spec.job_spec import JobSpec
from echelon.spec.readers import NodeCount

SLURM = {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "node[1,3]"}
RAY = {"ECHELON_ON_RAY": "train-abcd-1"}


@pytest.fixture
def choose(tmp_path):
    """Choose for an attempt of a run that wants up to five nodes."""
    run = RunDir.create(tmp_path, "r-1")

    def choose(environ, hand_over="auto", *, owns_job=True):
        context = AttemptContext(
            run=run,
            number=1,
            request=JobSpec(script="train.py", nodes=NodeCount(1, 5), hand_over=hand_over),
            owns_job=owns_job,
            environ=environ,
            script=b"",
        )
        return choose_backend(FakeShell(), environ, context)

    return choose


def kinds(backend):
    return tuple(type(part) for part in (backend.starter, backend.allocation, backend.standby))


def test_a_job_of_slurm(choose):
    backend = choose(SLURM)
    assert kinds(backend) == (SlurmStarter, SlurmAllocation, WaitingStandby)
    assert (backend.starter.nodes, backend.is_shared) == (2, True)


@pytest.mark.parametrize(
    ("hand_over", "owns_job", "kind"),
    [
        ("always", True, WaitingStandby),
        ("requeue", True, RequeueStandby),
        ("never", True, NoStandby),
        ("auto", False, NoStandby),  # somebody else's job
    ],
)
def test_what_continues_a_run_on_slurm(choose, hand_over, owns_job, kind):
    assert type(choose(SLURM, hand_over, owns_job=owns_job).standby) is kind


def test_a_job_of_ray(choose):
    backend = choose(RAY, owns_job=False)
    assert kinds(backend) == (RayStarter, RayAllocation, RayStandby)
    assert (backend.starter.nodes, backend.is_shared) == (5, False)
    assert type(choose(RAY, "never").standby) is NoStandby


def test_on_ray_somebody_else_submits_the_next_job(choose):
    standby = choose(RAY).standby
    assert standby.mends == ("lost node",)
    assert asyncio.run(standby.conclude(wanted=True)) == "wanted"
    assert asyncio.run(standby.conclude(wanted=False)) == ""


def test_ones_own_machine_plays_as_many_nodes_as_are_wanted(choose):
    backend = choose({})
    assert (backend.starter.nodes, backend.is_shared) == (5, False)
    assert asyncio.run(backend.allocation.left_s()) is None
    assert not backend.standby.assured()


def test_the_doctor_has_no_attempt():
    assert choose_backend(FakeShell(), SLURM).starter.nodes == 2
    assert type(choose_backend(FakeShell(), SLURM).standby) is NoStandby
    assert choose_backend(FakeShell(), {}).starter.nodes == 1
    assert local_backend(FakeShell()).starter.host(0) != "node0"  # but what it is called


def test_on_one_machine_each_agent_plays_a_node():
    seen = []

    class Noting(FakeShell):
        def start(self, argv, *, log, env=None, keep=(), stdin=b""):
            seen.append((tuple(argv), log, env, stdin))
            return FakeShell.start(self, argv, log=log, env=env, keep=keep)

    starter = LocalStarter(Noting(), 2)
    command = AgentCommand(argv=["agent"], env={"HOME": "/root"}, logs=Path("logs"), key=b"k" * 32)
    started, argv = starter.start([0, 1], command), ("agent",)
    key = (b"k" * 32).hex().encode() + b"\n"
    assert seen == [
        (argv, Path("logs/agent-0.log"), {"HOME": "/root", "ECHELON_NODE": "0"}, key),
        (argv, Path("logs/agent-1.log"), {"HOME": "/root", "ECHELON_NODE": "1"}, key),
    ]
    assert [one.nodes for one in started] == [{0}, {1}]
    assert starter.candidates() == ["127.0.0.1"]
