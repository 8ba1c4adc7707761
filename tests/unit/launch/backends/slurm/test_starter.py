"""Getting one agent onto every node, whatever shape the job has."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from echelon.core.shell import FakeShell, Result
from echelon.errors import CommandError
from echelon.launch.backends.base import AgentCommand
from echelon.launch.backends.slurm.starter import SlurmStarter, parse_granted

RECORDED = Path(__file__).parents[4] / "golden" / "slurm-22.05"
JOB = {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "node[1,3]"}
KEY = b"k" * 32
AGENT = ["python", "launcher", "agent", "runs/x", "1"]


@dataclass(slots=True)
class Recorder(FakeShell):
    """Remembers also with which variables, and where the output goes."""

    started: list = field(default_factory=list)

    def start(self, argv, *, log, env=None, keep=(), stdin=b""):
        assert stdin == KEY.hex().encode() + b"\n"
        self.started.append((log, dict(env or {})))
        return FakeShell.start(self, argv, log=log, env=env, keep=keep)


def details(name):
    return (RECORDED / f"details-{name}.txt").read_text()


@pytest.mark.parametrize(
    ("name", "granted"),
    [
        ("even", {"node1": 2, "node2": 2}),
        ("uneven", {"node1": 2, "node3": 1}),
        ("none", {"node1": 0}),
    ],
)
def test_how_many_gpus_each_node_gives(name, granted):
    assert parse_granted(details(name)) == granted


@pytest.mark.parametrize("version", ["24.11", "26.05"])
@pytest.mark.parametrize(
    ("name", "granted"),
    [("even", {"node1": 2, "node2": 2}), ("uneven", {"node3": 2, "node4": 1})],
)
def test_newer_versions_show_it_in_the_same_way(version, name, granted):
    text = (RECORDED.with_name(f"slurm-{version}") / f"details-{name}.txt").read_text()
    assert parse_granted(text) == granted


@pytest.mark.parametrize(
    ("gres", "count"),
    [
        ("gpu:4(IDX:0-3)", 4),
        ("gpu:a100:2(IDX:0,3)", 2),
        ("gpu:a100:2(IDX:0-1),gpu:h100:1(IDX:4)", 3),
        ("nic:2(IDX:0-1),gpu:1(IDX:0)", 1),
        ("nic:gpu:2(IDX:0-1)", 0),
    ],
)
def test_other_forms_of_a_grant(gres, count):
    text = f"JOB_GRES=x   Nodes=n[01-02] CPU_IDs=0-3,8 Mem=0 GRES={gres} MinCPUsNode=1"
    assert parse_granted(text) == {"n01": count, "n02": count}


def command(environ):
    return AgentCommand(argv=AGENT, env=environ, logs=Path("logs"), key=KEY)


def start_step(name, environ, nodes=(0, 1), version="22.05.8"):
    answers = {
        "scontrol --details --oneliner show job 42": details(name),
        "scontrol --version": f"slurm-wlm {version}\n",
    }
    shell = Recorder(answers=answers)
    started = SlurmStarter(shell, JOB).start(nodes, command({**environ, **JOB}))
    return shell, started


@pytest.mark.parametrize(
    ("version", "option"), [("22.05.8", "--gpus="), ("24.11.5", "--gres=gpu:")]
)
def test_the_step_takes_every_node_and_all_its_gpus_once(version, option):
    shell, started = start_step("uneven", {}, version=version)
    calls = [call for call in shell.calls if call[0] == "srun"]
    fixed = (
        "--ntasks-per-node=1",
        *("--overlap", "--cpu-bind=none", "--mem=0", "--no-kill", "--export=ALL"),
        *("--kill-on-bad-exit=0", "--wait=0", "--unbuffered", "--input=all"),
    )
    assert calls == [
        (
            *("srun", "--jobid=42", "--nodelist=node1", "--nodes=1", "--ntasks=1"),
            *(*fixed, f"{option}2", *AGENT),
        ),
        (
            *("srun", "--jobid=42", "--nodelist=node3", "--nodes=1", "--ntasks=1"),
            *(*fixed, f"{option}1", *AGENT),
        ),
    ]
    assert [one.nodes for one in started] == [{0}, {1}]
    assert [one.log for one in started] == [Path("logs/srun-0.log"), Path("logs/srun-1.log")]


def test_nodes_that_give_the_same_share_one_step():
    shell, (started,) = start_step("none", {})  # it grants node1 none, and knows nothing of node3
    (call,) = [call for call in shell.calls if call[0] == "srun"]
    assert call[1:5] == ("--jobid=42", "--nodelist=node1,node3", "--nodes=2", "--ntasks=2")
    assert "--gres=none" in call
    assert (started.nodes, started.log) == ({0, 1}, Path("logs/srun-0.log"))


def test_one_node_can_be_reached_again():
    """By then the job's own host list may be shorter: the agent is told which node it is."""
    shell, (started,) = start_step("uneven", {}, nodes=[1])
    (call,) = [call for call in shell.calls if call[0] == "srun"]
    assert call[2:5] == ("--nodelist=node3", "--nodes=1", "--ntasks=1")
    assert "--gpus=1" in call  # as at first: `--gres` would be refused
    assert shell.started[0][1]["ECHELON_NODE"] == "1"
    assert started.log == Path("logs/srun-1.log")


def test_gpus_are_not_forgotten_while_slurm_is_away():
    away = Result(argv=("scontrol",), code=1, stderr="no contact")
    shell = Recorder(answers={"scontrol --details --oneliner show job 42": away})
    with pytest.raises(CommandError):
        SlurmStarter(shell, JOB).start([0], command(JOB))


@pytest.mark.parametrize(
    "name",
    [
        *("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_NPROCS", "SLURM_TASKS_PER_NODE"),
        *(
            "SLURM_CPUS_PER_TASK",
            "SRUN_CPUS_PER_TASK",
            "SLURM_TRES_PER_TASK",
            "SLURM_TRES_BIND",
            "SLURM_GPUS",
        ),
        *("SLURM_GPUS_PER_TASK", "SLURM_GPUS_ON_NODE", "SLURM_CPUS_PER_GPU", "SLURM_CPU_BIND"),
        *("SLURM_CPU_BIND_TYPE", "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_MEM_BIND"),
        *("SLURM_DISTRIBUTION", "SLURM_STEP_ID", "SLURM_STEP_GPUS", "SLURM_EXACT", "SLURM_OVERLAP"),
    ],
)
def test_the_jobs_shape_does_not_become_the_steps(name):
    shell, _ = start_step("even", {name: "4", "HOME": "/root"})
    assert shell.started[0][1] == {"HOME": "/root", **JOB}


@pytest.mark.parametrize(
    "name", ["SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_CONF", "SLURM_SUBMIT_DIR", "MY_GPUS"]
)
def test_other_variables_stay(name):
    shell, _ = start_step("even", {name: "x"})
    assert name in shell.started[0][1]


def test_where_slurms_nodes_reach_us(monkeypatch):
    towards = {"10.9.0.1": "127.0.0.1", "10.9.0.3": "10.9.0.1", "gone": ""}
    monkeypatch.setattr("echelon.core.addresses.address_towards", towards.get)
    monkeypatch.setattr(
        "echelon.core.addresses.host_addresses", lambda: ["192.168.1.1", "10.9.0.1"]
    )
    shown = "NodeName=node1 NodeAddr=10.9.0.1 \nNodeName=node3 NodeAddr=10.9.0.3 \nNodeAddr=gone\n"
    shell = FakeShell(answers={"scontrol show node node1,node3": shown})
    assert SlurmStarter(shell, JOB).candidates() == ["10.9.0.1", "192.168.1.1"]
    alone = SlurmStarter(FakeShell(), {**JOB, "SLURM_JOB_NODELIST": "node1"})
    assert alone.candidates() == ["127.0.0.1", "192.168.1.1", "10.9.0.1"]
