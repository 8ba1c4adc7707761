"""The first look at all nodes: only nodes that do not respond are tried once more."""

import asyncio
from collections import Counter

import pytest

from echelon.core.shell import LocalShell
from echelon.launch.backends.local import LocalStarter
from echelon.launch.doctor.asking import Questioner
from echelon.launch.doctor.looking import AGAIN, FIRST, Looking, is_well, look_step, tell_failure
from echelon.launch.doctor.record import Look
from echelon.launch.doctor.site import Place
from echelon.launch.pool.agent_pool import AgentPool
from echelon.launch.pool.hang import HangWatch

BUSY = "echo 'srun: error: Unable to create step: Requested nodes are busy'; exit 1"
WELL = "echo host=n; echo folder=seen; echo at="
HALF = "echo host=n; echo at=the directory; exit 1"


class Nodes(LocalShell):
    """Has each node say one line of sh after the other; the last one stays."""

    def __init__(self, **lines):
        self.lines = {name: list(said) for name, said in lines.items()}
        self.asked = Counter()
        self.patience = []

    def start(self, argv, *, log, env=None, keep=()):
        (name,) = [word.partition("=")[2] for word in argv if word.startswith("--nodelist=")]
        self.patience += [word for word in argv if word.startswith("--immediate=")]
        self.asked[name] += 1
        said = self.lines[name]
        line = said.pop(0) if len(said) > 1 else said[0]
        return LocalShell.start(self, ["sh", "-c", line], log=log, env=env, keep=keep)


def look(tmp_path, shell):
    told = []
    starter = LocalStarter(shell, len(shell.lines))
    place = Place(probe=[], folder=tmp_path, python="python", scratch=tmp_path)

    async def scenario():
        pool = AgentPool(starter, HangWatch(0), lambda *_, **__: None, told.append)
        looking = Looking(
            Questioner(pool),
            shell=shell,
            starter=starter,
            environ={"SLURM_JOB_ID": "42", "PATH": "/usr/bin:/bin"},
            place=place,
            tell=told.append,
        )
        return await looking.look()

    return asyncio.run(scenario()), told


def test_a_node_that_still_starts_is_asked_once_more(tmp_path):
    nodes = Nodes(node0=[WELL], node1=[BUSY, WELL], node2=[BUSY], node3=[HALF])
    found, told = look(tmp_path, nodes)
    assert nodes.asked == {"node0": 1, "node1": 2, "node2": 2, "node3": 1}
    assert [is_well(found[node]) for node in range(4)] == [True, True, False, False]
    assert found[2].error == "Unable to create step: Requested nodes are busy"
    assert found[3].error == "the check exited with code 1 while checking the directory"
    assert told == ["first look at 4 nodes", "trying 2 nodes again that did not respond"]
    assert (
        nodes.patience == [f"--immediate={FIRST.step_s}"] * 4 + [f"--immediate={AGAIN.step_s}"] * 2
    )
    assert AGAIN.look_s > FIRST.look_s


def test_where_all_answer_none_is_asked_again(tmp_path):
    nodes = Nodes(node0=[WELL], node1=[WELL])
    _, told = look(tmp_path, nodes)
    assert set(nodes.asked.values()) == {1}
    assert told == ["first look at 2 nodes"]


@pytest.mark.parametrize(
    ("code", "said", "told"),
    [
        (0, "srun: error: a word of warning", ""),
        (1, "srun: error: no route\nsrun: error: more", "no route"),
        (3, "what", "the check exited with code 3"),
        (None, "host=n", "no answer within 30 s"),
    ],
)
def test_how_a_look_failed(code, said, told):
    assert tell_failure(code, said, 30.0) == told


def test_a_first_look_needs_no_folder_and_waits_for_no_other_step():
    argv = look_step("42", "node3", 20)
    assert {"--jobid=42", "--nodelist=node3", "--overlap", "--chdir=/", "--no-kill"} <= set(argv)
    assert "--immediate=20" in argv


def test_where_a_probe_can_be_started():
    assert is_well(Look(folder="seen"))
    assert not is_well(Look(folder="missing"))
    assert not is_well(Look(folder="seen", error="it hangs"))
    assert not is_well(Look(folder="seen", python_error="not found"))
