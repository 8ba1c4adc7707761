"""The first look: its script, its parsing, and the steps that run it."""

import asyncio
import os
import subprocess
import sys
from collections import Counter

import pytest

from echelon.core.shell import LocalShell
from echelon.launch.backends.local import LocalStarter
from echelon.launch.doctor.first_look import (
    LIMIT_S,
    LONGER_LIMIT_S,
    SCRIPT,
    Setup,
    can_run_probe,
    describe_failure,
    look_at_nodes,
    look_step,
    parse_look,
)
from echelon.launch.doctor.probe_client import ProbeClient
from echelon.launch.doctor.results import Look
from echelon.launch.pool.agent_pool import AgentPool

WHOLE = """\
host=node3
files=1024
processes=128390
locked=8388608
shm=12315136
at=the directory /shared
folder=seen
type=nfs
at=the Python /env/bin/python
python=/opt/python3.11
version=3.11.7
prefix=/env
code=0
at=
"""


def test_a_complete_look_is_parsed():
    found = parse_look(WHOLE)
    assert (found.error, found.hostname, found.folder, found.folder_type) == (
        *("", "node3", "seen", "nfs"),
    )
    assert (found.python, found.python_version, found.python_prefix) == (
        *("/opt/python3.11", "3.11.7", "/env"),
    )
    assert found.limits == {"processes": 128390, "files": 1024, "locked_kib": 8192}
    assert found.shm_mib == 12026


def test_a_look_that_hangs_names_its_step():
    found = parse_look(WHOLE.partition("folder=")[0], error="no answer within 30 s")
    assert found.error == "no answer within 30 s while checking the directory /shared"
    assert found.hostname == "node3"


@pytest.mark.parametrize(
    ("said", "error", "told"),
    [
        ("", "", "no output"),
        ("", "Communication connection failure", "Communication connection failure"),
        ("sh: not found\n", "", "sh: not found"),
    ],
)
def test_a_look_without_output_has_an_error(said, error, told):
    assert parse_look(said, error).error == told


def test_a_look_reports_why_python_does_not_run():
    said = WHOLE.partition("python=")[0] + "sh: 23: /env/bin/python: not found\ncode=127\nat=\n"
    found = parse_look(said)
    assert found.python_error == "sh: 23: /env/bin/python: not found"
    assert found.error == ""


@pytest.mark.parametrize("name", ["plain", "a folder", "quo'te"])
def test_the_look_script_finds_folder_and_python(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "nonce").write_text("abc")
    argv = ["sh", "-c", SCRIPT, "sh", str(folder), "abc", sys.executable]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    found = parse_look(done.stdout)
    assert (found.error, found.folder, found.python_error) == ("", "seen", "")
    assert found.python == os.path.realpath(sys.executable)
    assert found.python_prefix == sys.prefix
    assert found.limits["files"]


def test_the_look_script_reports_a_missing_folder_and_python(tmp_path):
    argv = ["sh", "-c", SCRIPT, "sh", str(tmp_path / "none"), "abc", "/no/such/python"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    found = parse_look(done.stdout)
    assert (found.error, found.folder) == ("", "missing")
    assert "/no/such/python" in found.python_error


def test_the_look_script_reports_a_folder_without_the_new_file_as_stale(tmp_path):
    (tmp_path / "old").touch()
    argv = ["sh", "-c", SCRIPT, "sh", str(tmp_path), "abc", sys.executable]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    assert parse_look(done.stdout).folder == "stale"


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


def look_at_all(tmp_path, shell):
    told = []
    starter = LocalStarter(shell, len(shell.lines))
    setup = Setup(
        shell=shell,
        starter=starter,
        environ={"SLURM_JOB_ID": "42", "PATH": "/usr/bin:/bin"},
        probe=[],
        folder=tmp_path,
        python="python",
        scratch=tmp_path,
        tell=told.append,
        short=True,
    )

    async def scenario():
        pool = AgentPool(starter, lambda *_, **__: None, told.append)
        return await look_at_nodes(setup, ProbeClient(pool))

    return asyncio.run(scenario()), told


def test_nodes_that_do_not_respond_get_a_second_look(tmp_path):
    nodes = Nodes(node0=[WELL], node1=[BUSY, WELL], node2=[BUSY], node3=[HALF])
    found, told = look_at_all(tmp_path, nodes)
    assert nodes.asked == {"node0": 1, "node1": 2, "node2": 2, "node3": 1}
    assert [can_run_probe(found[node]) for node in range(4)] == [True, True, False, False]
    assert found[2].error == "Unable to create step: Requested nodes are busy"
    assert found[3].error == "the check exited with code 1 while checking the directory"
    assert told == ["first look at 4 nodes", "trying 2 nodes again that did not respond"]
    assert nodes.patience == ["--immediate=20"] * 4 + ["--immediate=40"] * 2
    assert LONGER_LIMIT_S > LIMIT_S


def test_nodes_that_respond_get_one_look(tmp_path):
    nodes = Nodes(node0=[WELL], node1=[WELL])
    _, told = look_at_all(tmp_path, nodes)
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
def test_a_failed_look_is_described_with_the_message_of_srun(code, said, told):
    assert describe_failure(code, said, 30.0) == told


def test_a_look_step_overlaps_others_and_starts_in_the_root_directory():
    argv = look_step("42", "node3", 30.0)
    assert {"--jobid=42", "--nodelist=node3", "--overlap", "--chdir=/", "--no-kill"} <= set(argv)
    assert "--immediate=20" in argv


def test_a_probe_can_run_after_a_look_without_errors():
    assert can_run_probe(Look(folder="seen"))
    assert not can_run_probe(Look(folder="missing"))
    assert not can_run_probe(Look(folder="seen", error="it hangs"))
    assert not can_run_probe(Look(folder="seen", python_error="not found"))
