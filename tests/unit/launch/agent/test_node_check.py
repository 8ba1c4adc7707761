"""A node's start check, with real programs, and what a controller makes of several."""

import asyncio
import contextlib
import os
import signal
import stat
from pathlib import Path

import pytest

from echelon.core.shell import LocalShell
from echelon.core.waiting import wait_until
from echelon.launch.agent import node_check as nodecheck
from echelon.launch.agent.node_check import Fault, NodeCheck, check_places, judge_checks
from echelon.launch.protocol.messages import Hello


class FakeGuard:
    def __init__(self):
        self.watched = []

    def watch(self, group):
        self.watched.append(group)

    def forget(self, group):
        self.watched.remove(group)


class ShellWithGpus(LocalShell):
    """Finds nvidia-smi only where the test has put one."""

    def __init__(self, folder):
        self._folder = folder

    def which(self, program):
        path = self._folder / program
        return path if path.exists() else None


def run_check(tmp_path, *, command="", gpus=0, **variables):
    """Check this machine as an agent does, which reaps all children itself."""
    guard = FakeGuard()
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **variables}

    async def run():
        check = NodeCheck(
            shell=ShellWithGpus(tmp_path),
            guard=guard,
            env=env,
            log=tmp_path / "check.log",
            scratch=tmp_path,
        )

        def reap():
            with contextlib.suppress(ChildProcessError):
                while (gone := os.waitpid(-1, os.WNOHANG))[0]:
                    check.collected(*gone)

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, reap)
        try:
            return await check.run(gpus=gpus, command=command)
        finally:
            loop.remove_signal_handler(signal.SIGCHLD)

    try:
        return asyncio.run(run())
    finally:
        assert guard.watched == []


def make_nvidia_smi(folder, text):
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(stat.S_IRWXU)


def test_without_gpus_or_a_command_nothing_is_run(tmp_path):
    make_nvidia_smi(tmp_path, "exit 9")
    assert run_check(tmp_path) is None
    assert not (tmp_path / "check.log").exists()


def test_a_command_sees_its_variables_and_its_output_is_kept(tmp_path):
    assert run_check(tmp_path, command='echo "on $ECHELON_NODE"', ECHELON_NODE="3") is None
    assert (tmp_path / "check.log").read_text() == "on 3\n"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("echo hello; echo no such disk >&2; exit 3", "exited with code 3: no such disk"),
        ("exit 1", "exited with code 1, without output"),
        ("kill -9 $$", "was killed by signal 9, without output"),
    ],
)
def test_a_command_that_fails_says_why(tmp_path, command, reason):
    assert run_check(tmp_path, command=command) == Fault(reason=f"node_check {reason}")


def test_a_command_that_hangs_is_given_up_with_all_that_it_started(tmp_path, monkeypatch):
    monkeypatch.setattr(nodecheck, "COMMAND_S", 5.0)
    found = run_check(tmp_path, command="sleep 600 & echo $!; wait")
    assert found == Fault(reason="node_check did not finish within 5 s")
    pid = int((tmp_path / "check.log").read_text())
    assert wait_until(lambda: not _lives(pid), timeout_s=30)


def _lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def test_gpus_that_do_not_answer_are_the_nodes_own_fault(tmp_path):
    said = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    make_nvidia_smi(tmp_path, f'echo "{said}"; [ "$*$LD_LIBRARY_PATH" = -L ] || exit 0; exit 9')
    found = run_check(tmp_path, gpus=4, command="exit 1", LD_LIBRARY_PATH="/cuda/stubs")
    assert found == Fault(reason=f"nvidia-smi -L exited with code 9: {said}", own=True)
    make_nvidia_smi(tmp_path, "exit 0")
    assert run_check(tmp_path, gpus=4) is None


def test_where_ranks_write(tmp_path, monkeypatch):
    assert check_places(tmp_path, tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    assert check_places(tmp_path / "gone", tmp_path) == Fault(
        reason=f"cannot write to {tmp_path / 'gone'}: No such file or directory"
    )
    monkeypatch.setattr(nodecheck, "ROOM_MIB", 1 << 40)
    found = check_places(tmp_path, tmp_path)
    assert found.own
    assert f"MiB are free in {tmp_path.parent}" in found.reason


# --- what it means ------------------------------------------------------------------------------


def hello(name, fault="node_check exited with code 1", *, own=False):
    return Hello(node=0, name=name, host="h", addresses=[], fault=fault, fault_own=own)


def judged(unfit, passed):
    return [(found.cause, found.node) for found in judge_checks(unfit, passed=passed)]


def test_a_node_is_to_blame_where_another_passed():
    assert judged([hello("node3"), hello("node4")], 1) == [("start", "node3"), ("start", "node4")]
    failure = judge_checks([hello("node3")], passed=1)[0]
    assert failure.message == "it failed its check: node_check exited with code 1"


def test_a_check_that_nobody_passed_may_be_wrong_itself():
    unfit = [hello("node3"), hello("node4", own=True)]
    assert judged(unfit, 0) == [("start", "")]
    assert judge_checks(unfit, passed=0)[0].message == (
        "no node passed its check (node[3-4]); node3: node_check exited with code 1"
    )
    assert judged([hello("node3")], 0) == [("start", "")]


def test_of_a_single_node_its_gpus_are_its_own():
    assert judged([hello("node3", own=True)], 0) == [("start", "node3")]


def test_where_all_passed_there_is_nothing_to_say():
    assert judged([], 2) == judged([], 0) == []
