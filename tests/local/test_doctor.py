"""The doctor with real processes on this machine: alone, and with nodes that are played."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from echelon.client.submit.launcher import ship_launcher
from echelon.core.shell import LocalShell
from echelon.core.waiting import wait_until
from echelon.launch.backends.local import LocalStarter
from echelon.launch.doctor import all_reduce
from echelon.launch.doctor.examination import Examination
from echelon.launch.doctor.first_look import Setup
from echelon.launch.doctor.torch_client import TorchClient
from echelon.launch.roles import launcher_command
from procfs import all_pids, cmdline, environ_of
from started_programs import clean_environment


@pytest.fixture
def setup(tmp_path):
    """The doctor's setup on this machine, for one node."""
    (tmp_path / "shared" / "doctor").mkdir(parents=True)
    (tmp_path / "scratch").mkdir()
    launcher = tmp_path / "launcher"
    digest = ship_launcher(launcher)
    return Setup(
        shell=LocalShell(),
        starter=LocalStarter(LocalShell(), 1),
        environ={},
        probe=launcher_command(sys.executable, digest, launcher, "doctor-probe"),
        folder=tmp_path / "shared" / "doctor",
        python=sys.executable,
        scratch=tmp_path / "scratch",
        tell=lambda _text: None,
        short=True,
    )


def examine_played(setup, nodes, then=lambda _text: None, **environ):
    """Examine nodes that this machine plays; return the results and the reported progress."""
    reported = []

    def tell(text):
        reported.append(text)
        then(text)

    played = replace(
        setup,
        starter=LocalStarter(LocalShell(), nodes),
        # Those that are killed cannot clean up.
        environ=clean_environment(TMPDIR=str(setup.scratch), **environ),
        tell=tell,
    )
    return asyncio.run(Examination(played).run()), reported


def test_several_nodes_on_this_machine_have_no_errors(setup):
    examined, told = examine_played(setup, 3)
    assert [node.torch.error for node in examined.nodes] == [""] * 3
    assert {pair.nodes for pair in examined.pairs if not pair.error} >= {
        *(("node0", "node2"), ("node0", "node1"), ("node1", "node2"))
    }
    assert (examined.overall.ranks, examined.overall.error) == (3, "")
    assert examined.overall.bandwidth > 0
    assert told[-1] == "measuring all-reduce over 3 nodes"
    assert [one for one in examined.findings if one.severity == "error"] == []


@pytest.mark.full
@pytest.mark.parametrize("node", [0, 2])
def test_a_node_that_is_lost_on_the_way_does_not_spoil_the_others(
    setup, tmp_path, monkeypatch, node
):
    monkeypatch.setattr(all_reduce, "LIMIT_S", 5.0)
    launcher, mark = str(tmp_path / "launcher").encode(), f"ECHELON_NODE={node}".encode()

    def kill(text):
        if text == "measuring all-reduce in pairs, round 2 of 3":
            probes = [pid for pid in all_pids() if {launcher, b"doctor-probe"} <= words(pid)]
            (probe,) = [pid for pid in probes if mark in environ_of(pid).split(b"\0")]
            os.kill(probe, signal.SIGKILL)

    examined, _ = examine_played(setup, 4, kill)
    assert {one.node for one in examined.findings if one.severity == "error" and one.node} == {
        f"node{node}"
    }
    assert (len(examined.overall.nodes), examined.overall.error) == (3, "")
    left = lambda: [pid for pid in all_pids() if launcher in b" ".join(words(pid))]  # noqa: E731
    assert wait_until(lambda: left() == [], timeout_s=20), [cmdline(pid) for pid in left()]


def test_a_probe_that_does_not_start_is_lost_alone(setup, tmp_path):
    python = tmp_path / "python"
    python.write_text(
        f"""#!/bin/sh
case "$ECHELON_NODE $*" in
    "1 "*doctor-probe) echo 'no such library'; exit 1;;
esac
exec {sys.executable} "$@"
"""
    )
    python.chmod(0o755)
    probe = [str(python), *setup.probe[1:]]
    examined, _ = examine_played(replace(setup, python=str(python), probe=probe), 3)
    assert [node.lost for node in examined.nodes] == ["", "no such library", ""]
    assert [bool(node.torch and node.torch.version) for node in examined.nodes] == [
        *(True, False, True)
    ]


def test_problems_of_gpus_that_may_be_others_are_warnings(setup, tmp_path):
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        """#!/bin/sh
echo '0, A100, GPU-0a, 40960, 550.1, 7, 0x40'
echo '1, A100, GPU-1b, 40960, 550.1, 2, 0x0'
"""
    )
    smi.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    environ = {"PATH": path, "CUDA_VISIBLE_DEVICES": "MIG-x,MIG-y"}
    examined, _ = examine_played(setup, 1, **environ)
    facts = examined.nodes[0].facts
    assert (len(facts.gpus), facts.parts, facts.granted) == (2, True, 2)
    found = [one for one in examined.findings if one.check in ("ecc", "throttle", "gpus", "cuda")]
    assert {one.severity for one in found} == {"warning"}
    assert found[0].message == ("GPU 0 has 7 uncorrected ECC errors; it may belong to another job")


def words(pid):
    return set(cmdline(pid).split(b"\0"))


def command(tmp_path, *options, **more):
    argv = [sys.executable, "-m", "echelon", "doctor", f"--python={sys.executable}", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        argv, cwd=tmp_path, env=clean_environment(**more), start_new_session=True, **pipes
    )


def test_the_doctor_examines_this_machine(tmp_path):
    with command(tmp_path, "--json") as doctor:
        shown, told = doctor.communicate(timeout=120)
    record = json.loads(shown)
    (node,) = record["nodes"]
    assert node["name"] == os.uname().nodename
    assert node["torch"]["version"]
    assert doctor.returncode in (0, 1), told  # its limits are its own
    assert "doctor: importing torch" in told
    assert list(tmp_path.iterdir()) == []


def test_doctor_reports_a_missing_python(tmp_path):
    with command(tmp_path, "--python=/no/such/python") as doctor:
        shown, _ = doctor.communicate(timeout=60)
    assert doctor.returncode == 3
    assert "/no/such/python does not run" in shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_when_the_doctor_is_killed(tmp_path, number):
    with command(tmp_path, f"--runs-dir={tmp_path}/runs", TMPDIR=str(tmp_path)) as doctor:
        for line in doctor.stderr:
            if "importing torch" in line:
                break
        os.kill(doctor.pid, number)
        assert doctor.wait(timeout=20) in (128 + number, -number)
    mark = str(tmp_path).encode()
    left = lambda: [pid for pid in all_pids() if mark in cmdline(pid)]  # noqa: E731
    assert wait_until(lambda: left() == [], timeout_s=20), [cmdline(pid) for pid in left()]


@pytest.mark.full
def test_a_torch_process_that_hangs_is_replaced(tmp_path):
    async def scenario():
        worker = TorchClient(LocalShell(), clean_environment(), tmp_path / "log")
        try:
            said = await worker.start(60.0)
            assert said["version"]
            # Nobody else comes to this meeting.
            lonely = {"what": "reduce", "backend": "gloo", "address": "127.0.0.1", "port": 1}
            more = {"first_rank": 1, "count": 1, "world": 2, "limit_s": 3600.0, "largest": 1}
            hung = await worker.order({**lonely, **more}, limit_s=1.0)
            assert hung == {"error": "did not finish within 1 s"}
            again = await worker.order({"what": "devices", "count": 1}, limit_s=60.0)
            assert again["ranks"][0]["devices"] >= 0
        finally:
            worker.close()

    asyncio.run(scenario())


def test_a_torch_process_without_torch_reports_an_error(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13 is missing')\n")

    async def scenario():
        env = clean_environment(PYTHONPATH=str(tmp_path))
        worker = TorchClient(LocalShell(), env, tmp_path / "log")
        try:
            return await worker.start(60.0)
        finally:
            worker.close()

    assert asyncio.run(scenario()) == {"error": "ImportError: libcudart.so.13 is missing"}
