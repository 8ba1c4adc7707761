"""Up, down, and nothing left behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from echelon.core.waiting import wait_until
from echelon.sandbox.config import Layout
from echelon.sandbox.processes import end_processes, find_processes
from rig import require


@pytest.fixture
def other(full, home):
    """Makes clusters beside the one that all tests share, and ends them."""
    made = []

    def make(name):
        made.append(type(full)(home, name))
        return made[-1]

    yield make
    for cluster in made:
        cluster("down", check=False)


def machine():
    """Everything that a sandbox could leave on this machine."""
    networks = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            networks.add((process / "ns" / "net").stat().st_ino)
        except OSError:
            continue
    return {
        "links": sorted(Path("/sys/class/net").iterdir()),
        "mounts": sorted(Path("/proc/self/mounts").read_text().splitlines()),
        "networks": networks,
        "named networks": sorted(Path("/run/netns").glob("*")),
    }


def assert_gone(cluster, before):
    assert not cluster.root.exists()
    assert find_processes(Layout(root=cluster.root)) == []
    named = [p for p in Path("/proc").glob("[0-9]*/cmdline") if _names(p, str(cluster.root))]
    assert named == []
    # The kernel takes a dead namespace apart in its own time.
    assert wait_until(lambda: machine() == before, timeout_s=10), (before, machine())


def _names(cmdline, text):
    try:
        return text.encode() + b"/" in cmdline.read_bytes()
    except OSError:
        return False


def test_down_leaves_nothing_behind(other):
    before = machine()
    cluster = other("gone")
    cluster("up", "--nodes=3")
    assert machine() != before
    cluster.exec("sbatch", "--output=/dev/null", "--nodes=3", "--wrap=srun sleep 600")
    shell = cluster.start("sleep", "600")
    cluster("down")
    assert shell.wait(timeout=5) != 0  # what ran on the login host ends as well
    assert_gone(cluster, before)


@pytest.mark.parametrize(
    "reached", ["sandbox.json", "run/node2.booted", "munge/socket", "run/slurmctld.pid"]
)
def test_an_up_that_was_killed_leaves_nothing_after_down(other, reached):
    before = machine()
    cluster = other("half")
    starting = subprocess.Popen(
        cluster.argv("up"),
        env=cluster.environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert wait_until((cluster.root / reached).exists, timeout_s=20, interval_s=0.001)
    starting.kill()
    starting.wait()
    cluster("down")
    assert_gone(cluster, before)


def test_an_up_that_was_killed_does_not_hinder_the_next(other):
    cluster = other("again")
    starting = subprocess.Popen(
        cluster.argv("up"),
        env=cluster.environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert wait_until((cluster.root / "munge/socket").exists, timeout_s=20, interval_s=0.001)
    starting.kill()
    starting.wait()
    assert "not up" in cluster("status", check=False).stderr
    assert "removing what an unfinished start left behind" in cluster("up", "--nodes=2").stderr
    assert cluster.exec("srun", "--nodes=2", "hostname").split() != []


def test_an_interrupted_up_cleans_up_after_itself(other):
    before = machine()
    cluster = other("interrupted")
    starting = subprocess.Popen(
        cluster.argv("up"),
        env=cluster.environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert wait_until((cluster.root / "run/node1.booted").exists, timeout_s=20, interval_s=0.001)
    starting.send_signal(signal.SIGINT)
    assert starting.wait(timeout=20) == 130
    assert_gone(cluster, before)


def test_up_twice_says_so(full):
    done = full("up", check=False)
    assert done.returncode == 73
    assert done.stderr == (
        "error: the sandbox 't' is up already\n"
        "hint: end it: echelon sandbox down --name t; or choose another --name\n"
    )
    assert full.exec("srun", "echo", "unharmed") == "unharmed\n"


def test_two_sandboxes_run_side_by_side(full, other):
    second = other("second")
    second("up", "--nodes=2", "--gpus=1", "--gpu-type=h100")
    waiting = full.start("srun", "--nodes=1", "sleep", "60")
    try:
        show = "echo $(hostname) $SLURM_CLUSTER_NAME"
        first_says = full.exec("srun", "--nodelist=node2", "bash", "-c", show).split()
        second_says = second.exec("srun", "--nodelist=node2", "bash", "-c", show).split()
        assert first_says[0] == second_says[0] == "node2"
        assert first_says[1] != second_says[1]
        second("kill", "node1")
        second("down")
        assert full.exec("srun", "--nodes=4", "echo", "unharmed") == "unharmed\n" * 4
        assert waiting.poll() is None
    finally:
        waiting.kill()
        waiting.wait()


def test_status_for_programs(full):
    shown = json.loads(full("status", "--json").stdout)
    assert shown["kind"] == "namespaces"
    assert [node["name"] for node in shown["nodes"]] == ["node1", "node2", "node3", "node4"]
    assert {node["state"] for node in shown["nodes"]} == {"idle"}


def test_status_for_people(cluster):
    lines = cluster("status").stdout.splitlines()
    assert lines[0].split() == ["node", "address", "state", "slurmd", "cable"]
    assert len(lines) == 5


def test_exec_is_transparent(full, tmp_path):
    hostile = ["a b", "$(touch /x)", "'\"`;", "new\nline", "ünï", "-n", "--name", ""]
    program = "import os, sys; print([sys.argv[1:], os.getcwd()]); sys.exit(7)"
    done = full("exec", "--", sys.executable, "-c", program, *hostile, cwd=tmp_path, check=False)
    assert done.returncode == 7
    assert done.stdout.strip() == repr([hostile, str(tmp_path)])


def test_exec_passes_input_and_hides_a_surrounding_job(full):
    full.environ["SLURM_JOB_ID"] = "42"
    try:
        done = full("exec", "--", "bash", "-c", "cat; env | grep ^SLURM", input="through\n")
    finally:
        del full.environ["SLURM_JOB_ID"]
    assert done.stdout == f"through\nSLURM_CONF={full.root}/etc/slurm.conf\n"


def test_a_shell_is_on_the_login_host(full):
    done = full("shell", input="hostname; echelon sandbox down --name t; exit 3\n", check=False)
    assert done.returncode == 3
    assert done.stdout == "login\n"
    assert "error: this shell is inside the sandbox 't'" in done.stderr


def test_accounting_makes_sacct_work(other):
    require("slurmdbd", "mariadbd", "mariadb", "mariadb-install-db")
    before = machine()
    cluster = other("books")
    cluster("up", "--nodes=2", "--accounting")
    cluster.exec("srun", "--nodes=2", "--job-name=counted", "true")
    argv = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=jobname,state"]
    done = lambda: cluster.exec(*argv) == "counted|COMPLETED\n"  # noqa: E731
    assert wait_until(done, timeout_s=20, interval_s=0.2)
    assert (cluster.root / "etc/slurmdbd.conf").stat().st_mode & 0o077 == 0
    cluster("down")
    assert_gone(cluster, before)


LOOPBACK = r"""
set -eu
box() { command=$1; shift; python -m echelon sandbox "$command" --name plain "$@"; }
sleepers() { ps -C sleep -o args= | grep -c 654321 || true; }
show='echo task $SLURMD_NODENAME $SLURM_PROCID $CUDA_VISIBLE_DEVICES'
box up --nodes 3 --gpus 2
box exec -- srun --nodes=3 --ntasks-per-node=2 --gpus-per-task=1 bash -c "$show" | sort
box exec -- sbatch --nodes=3 --output=/dev/null --wrap='srun sleep 654321'
until [ "$(sleepers)" = 3 ]; do sleep 0.05; done
echo listeners $(ss -Htlnp | awk '/slurm/ {sub(/:.*/, "", $4); print $4}' | sort -u)
box kill node2
echo after kill $(sleepers)
box cut node1 || echo code $?
box restore node2
box exec -- srun --nodelist=node2 echo node2 is back
box down
echo after down $(sleepers)
"""


def test_without_root_there_is_a_plainer_cluster(home):
    """In a user namespace root is nobody: the kernel refuses it what it refuses any user."""
    require("ps", "ss", "unshare")
    argv = ["bash", "-c", LOOPBACK]
    if os.geteuid() == 0:
        argv = ["unshare", "--user", "--map-user=65534", "--map-group=65534", *argv]
    folder = home / "plain-home"
    folder.mkdir()
    environ = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ECHELON_SANDBOX_DIR": str(folder),
    }
    try:
        done = subprocess.run(
            argv, env=environ, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.stdout.splitlines() == [
            *(f"task node{n + 1} {2 * n + t} {t}" for n in range(3) for t in range(2)),
            "Submitted batch job 2",
            "listeners 127.0.0.1",
            "after kill 2",
            "code 77",
            "node2 is back",
            "after down 0",
        ], done.stderr
        assert "without root this is the plain form" in done.stderr
        assert list(folder.iterdir()) == []
    finally:
        end_processes([p.pid for p in find_processes(Layout(root=folder / "plain"))])
        shutil.rmtree(folder)
