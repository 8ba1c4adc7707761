"""The doctor on a real cluster, with real faults: each is found, by name, and nothing else is."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys

import pytest

from echelon.core.nodes import expand
from echelon.core.waiting import wait_until
from procfs import all_pids, cmdline
from requirements import require, require_root
from slurm.cluster import Cluster

NODES = 7
FINE, BROKEN = 0, 3


@pytest.fixture(scope="module")
def ward(home):
    """A sandbox with room for several faults at once."""
    require("tc")
    require_root("networks of their own for the nodes")
    cluster = Cluster(home, "ward")
    cluster("up", "--nodes", str(NODES))
    yield cluster
    cluster("down", check=False)


@pytest.fixture
def patients(ward, tmp_path):
    """The cluster with its nodes well, before and after; folders that its nodes share."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "python").chmod(0o755)
    yield ward
    ward.calm()


@pytest.fixture
def faults(patients):
    """What was done to nodes, and is undone whatever happens."""
    with contextlib.ExitStack() as stack:
        yield Faults(patients, stack)


class Faults:
    """Things that can be wrong with one node, and with no other."""

    def __init__(self, cluster, stack):
        self._cluster, self._stack = cluster, stack

    def _do(self, node, *argv):
        return self._cluster.box.run(argv, host=node)

    def cut(self, node):
        self._cluster("cut", node)

    def slow(self, node):
        """One that sends 40 Mbit/s: a cable that has fallen back to an old speed."""
        shape = ("root", "tbf", "rate", "40mbit", "burst", "64kb", "latency", "200ms")
        self._stack.callback(self._do, node, "tc", "qdisc", "del", "dev", "eth0", "root")
        self._do(node, "tc", "qdisc", "add", "dev", "eth0", *shape).check()

    def bind(self, node, source, target):
        """Have a node see another file, or folder, in the place of one."""
        self._stack.callback(self._do, node, "umount", "-l", str(target))
        self._do(node, "mount", "--bind", str(source), str(target)).check()

    def unmount(self, node, folder):
        """A node where a file system is not mounted: an empty folder is what one sees."""
        self._stack.callback(self._do, node, "umount", "-l", str(folder))
        self._do(node, "mount", "-t", "tmpfs", "none", str(folder)).check()


def argv_of(folder, *options):
    common = ("--runs-dir", str(folder / "shared" / "runs"), "--python", str(folder / "python"))
    return [sys.executable, "-m", "echelon", "doctor", *common, *options]


def environ_of(cluster, **more):
    return {**cluster.environ, "SLURM_CONF": str(cluster.box.layout.slurm_conf), **more}


def examine(cluster, folder, *options, **more):
    """Run the doctor; return its exit code, what it found as JSON, and what it said."""
    done = subprocess.run(
        argv_of(folder, "--json", *options),
        cwd=folder,
        env=environ_of(cluster, **more),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


@contextlib.contextmanager
def allocation(cluster, nodes):
    """Have an allocation; the variables are those of a shell inside it."""
    hosts = f"node[1-{nodes}]"
    argv = ["salloc", "--no-shell", "--no-kill", f"--nodes={nodes}", f"--nodelist={hosts}"]
    granted = cluster.box.run(argv).check().stderr
    job = re.search(r"Granted job allocation (\d+)", granted)[1]
    try:
        yield {"SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": hosts, "SLURM_JOB_NUM_NODES": str(nodes)}
    finally:
        cluster.box.run(["scancel", job])


def found_of(record):
    return {(one["node"], one["check"]) for one in record["findings"]}


@pytest.mark.full
def test_a_healthy_cluster_has_no_findings(patients, tmp_path):
    code, record, said = examine(patients, tmp_path, "--nodes=4")
    assert (code, record["findings"], record["exclude"]) == (FINE, [], ""), said
    assert [node["name"] for node in record["nodes"]] == ["node1", "node2", "node3", "node4"]
    for node in record["nodes"]:
        assert node["torch"]["import_s"] > 0
        assert (node["facts"]["interface"], node["facts"]["unresolved"]) == ("eth0", [])
        assert abs(node["facts"]["skew_s"]) < 0.5
        assert len(node["tried"]) == 3
    assert len({frozenset(pair["nodes"]) for pair in record["pairs"]}) == 6
    assert record["overall"]["bandwidth"] > 0
    assert "all-reduce over 4 nodes" in said
    assert list((tmp_path / "shared").iterdir()) == []  # nothing stays
    assert patients.exec("squeue", "--noheader") == ""


def test_each_fault_is_found_by_name(patients, faults, tmp_path):
    (tmp_path / "other-python").write_text('#!/bin/sh\nexec /usr/bin/python3 "$@"\n')
    (tmp_path / "other-python").chmod(0o755)
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "sitecustomize.py").write_text(
        "import time\nreal = time.time\ntime.time = lambda: real() + 300\n"
    )
    (tmp_path / "late-python").write_text(
        f'#!/bin/sh\nPYTHONPATH={tmp_path}/late exec {sys.executable} "$@"\n'
    )
    (tmp_path / "late-python").chmod(0o755)
    faults.slow("node3")
    faults.bind("node4", tmp_path / "other-python", tmp_path / "python")
    faults.bind("node5", tmp_path / "late-python", tmp_path / "python")
    faults.unmount("node6", tmp_path / "shared")
    with allocation(patients, NODES) as inside:
        faults.cut("node7")
        code, record, said = examine(patients, tmp_path, **inside)
    found = found_of(record)
    wanted = {"node3", "node4", "node5", "node6", "node7"}
    assert {node for node, _ in found} == wanted, (said, record["findings"])
    assert {node: check for node, check in found if node != "node4"} == {
        "node3": "all-reduce",
        "node5": "clock",
        "node6": "folder",
        "node7": "reach",
    }
    assert ("node4", "python") in found
    assert code == BROKEN
    assert expand(record["exclude"].removeprefix("--exclude=")) == [
        *("node3", "node4", "node6", "node7")
    ]
    (clock,) = [one for one in record["findings"] if one["check"] == "clock"]
    assert clock["message"] == "its clock is 300.0 s ahead of ours"


def test_an_interrupted_doctor_releases_its_nodes(patients, tmp_path):
    with subprocess.Popen(
        argv_of(tmp_path, "--nodes=4"),
        cwd=tmp_path,
        env=environ_of(patients),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as command:
        try:
            for line in command.stderr:
                if "importing torch" in line:
                    break
            assert len(patients.exec("squeue", "--noheader").splitlines()) == 1
            os.killpg(command.pid, signal.SIGINT)
            assert command.wait(timeout=20) == 130
        finally:
            command.kill()
    assert wait_until(lambda: patients.exec("squeue", "--noheader") == "", timeout_s=20)
    marks = (b"doctor-probe", b"train/probe.py", str(tmp_path).encode())
    left = lambda: [p for p in all_pids() if any(m in cmdline(p) for m in marks)]  # noqa: E731
    assert wait_until(lambda: left() == [], timeout_s=20), [cmdline(pid) for pid in left()]
    assert list((tmp_path / "shared").iterdir()) == []


def test_more_nodes_than_the_cluster_has_are_refused(patients, tmp_path):
    done = subprocess.run(
        argv_of(tmp_path, "--nodes=100"),
        cwd=tmp_path,
        env=environ_of(patients),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert f"has at most {NODES} nodes, not 100" in done.stderr
    assert list((tmp_path / "shared").iterdir()) == []


def test_a_preflight_excludes_a_node_that_fails(patients, faults, tmp_path):
    faults.unmount("node2", tmp_path / "shared")
    (tmp_path / "shared" / "train.py").write_text("import os\nprint('rank', os.environ['RANK'])\n")
    runs = tmp_path / "shared" / "runs"
    argv = [sys.executable, "-m", "echelon", "submit", "--runs-dir", str(runs), "--preflight"]
    argv += ["--nodes=2:3", "--nodelist=node[1-3]", "--procs=1", "--follow"]
    state = str(tmp_path / "state")
    done = subprocess.run(
        [*argv, f"--python={sys.executable}", str(tmp_path / "shared" / "train.py")],
        cwd=tmp_path / "shared",
        env=environ_of(patients, XDG_STATE_HOME=state),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "node2 excluded: it failed its check: preflight, folder" in done.stderr
    assert sorted(re.findall(r"rank \d", done.stdout)) == ["rank 0", "rank 1"]
    (record,) = runs.glob("*/attempts/1/preflight.json")
    assert {one["node"] for one in json.loads(record.read_text())["findings"]} == {"node2"}
    shown = subprocess.run(
        [sys.executable, "-m", "echelon", "nodes", "--json"],
        env=environ_of(patients, XDG_STATE_HOME=state),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert [one["node"] for one in json.loads(shown.stdout)] == ["node2"]


@pytest.mark.full
def test_the_next_job_excludes_a_node_that_the_preflight_found_slow(patients, faults, tmp_path):
    """Four nodes are wanted, so the run goes on as another job, where none of them is slow."""
    faults.slow("node2")
    (tmp_path / "shared" / "train.py").write_text("import os\nprint('rank', os.environ['RANK'])\n")
    argv = [sys.executable, "-m", "echelon", "submit", "--preflight", "--nodes=4", "--procs=1"]
    argv += ["--follow", f"--python={sys.executable}", "train.py"]
    done = subprocess.run(
        argv,
        cwd=tmp_path / "shared",
        env=environ_of(patients, XDG_STATE_HOME=str(tmp_path / "state")),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "node2: it failed its check: preflight, all-reduce" in done.stderr
    outcomes = sorted((tmp_path / "shared" / "runs").glob("*/attempts/*/outcome.json"))
    nexts = [json.loads(path.read_text())["next"] for path in outcomes]
    assert nexts == ["standby", ""]
