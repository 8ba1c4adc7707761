"""Up, down, and nothing left behind."""

import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from echelon.core.waiting import wait_until
from echelon.sandbox.layout import Layout
from echelon.sandbox.processes import end_processes, find_processes
from requirements import require, require_root

# What is left behind is found by looking at the whole machine.
pytestmark = pytest.mark.alone


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
    # The kernel takes a dead namespace apart in its own time; an earlier test's may go meanwhile.
    assert wait_until(lambda: not added(before), timeout_s=10), added(before)


def added(before):
    now = machine()
    new = {kind: set(now[kind]) - set(before[kind]) for kind in now}
    return {kind: things for kind, things in new.items() if things}


def _names(cmdline, text):
    try:
        return text.encode() + b"/" in cmdline.read_bytes()
    except OSError:
        return False


def begin(cluster, reached):
    """Start an `up` and return its process as soon as it has made that file."""
    starting = subprocess.Popen(
        cluster.argv("up"),
        env=cluster.environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert wait_until((cluster.root / reached).exists, timeout_s=20, interval_s=0.001)
    return starting


def test_down_leaves_nothing_behind(other):
    before = machine()
    cluster = other("gone")
    cluster("up", "--nodes=3")
    assert machine() != before
    cluster.exec("sbatch", "--output=/dev/null", "--nodes=3", "--wrap=srun sleep 600")
    shell = cluster.start("sleep", "600")
    cluster("down")
    assert shell.wait(timeout=30) != 0  # what ran on the login host ends as well
    assert_gone(cluster, before)


@pytest.mark.parametrize(
    "reached", ["sandbox.json", "run/node2.booted", "munge/socket", "run/slurmctld.pid"]
)
def test_an_up_that_was_killed_leaves_nothing_after_down(other, reached):
    before = machine()
    cluster = other("half")
    starting = begin(cluster, reached)
    starting.kill()
    starting.wait()
    cluster("down")
    assert_gone(cluster, before)


def test_an_up_that_was_killed_does_not_hinder_the_next(other):
    cluster = other("again")
    starting = begin(cluster, "munge/socket")
    starting.kill()
    starting.wait()
    assert "not up" in cluster("status", check=False).stderr
    assert "removing leftovers of an earlier sandbox" in cluster("up", "--nodes=2").stderr
    assert cluster.exec("srun", "--nodes=2", "hostname").split() != []


def test_an_interrupted_up_cleans_up_after_itself(other):
    before = machine()
    cluster = other("interrupted")
    starting = begin(cluster, "run/node1.booted")
    starting.send_signal(signal.SIGINT)
    assert starting.wait(timeout=20) == 130
    assert_gone(cluster, before)


def test_a_terminated_up_cleans_up_after_itself(other):
    before = machine()
    cluster = other("terminated")
    starting = begin(cluster, "run/node1.booted")
    starting.terminate()
    assert starting.wait(timeout=20) == 143
    assert_gone(cluster, before)


CHAIN = """
import fcntl, os, sys, time
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
lock.write("held")
lock.flush()
end = time.monotonic() + 60  # whatever becomes of the test
while time.monotonic() < end:
    time.sleep(0.01)
    if os.fork():
        os._exit(0)
"""


def test_down_ends_what_forks_while_one_looks(other):
    """On the login host, with no mark: each child forks the next and goes."""
    before = machine()
    cluster = other("chain")
    cluster("up", "--nodes=1")
    chain, lock = cluster.home / "chain.py", cluster.home / "chain.lock"
    chain.write_text(CHAIN)
    start = f"env -i setsid {sys.executable} {chain} {lock} < /dev/null > /dev/null 2>&1 &"
    cluster("exec", "--", "bash", "-c", start)
    assert wait_until(lambda: lock.exists() and lock.read_text() == "held", timeout_s=20)
    cluster("down")
    # Whoever is left of the chain still has it; so has, for a moment, a process that was killed and
    # is no longer listed, until the kernel closes its files.
    assert wait_until(lambda: is_free(lock), timeout_s=10)
    assert_gone(cluster, before)


def is_free(lock):
    """Tell whether no process holds the lock on a file."""
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_down_works_when_the_folder_was_removed_by_hand(other):
    before = machine()
    cluster = other("handmade")
    cluster("up", "--nodes=1")
    shutil.rmtree(cluster.root)
    cluster("down")
    assert_gone(cluster, before)


def test_up_works_where_an_earlier_one_has_died(other):
    """As after a reboot, or when the folder was removed by hand while all of it ran."""
    cluster = other("dead")
    cluster("up", "--nodes=1")
    for process in find_processes(Layout(root=cluster.root)):
        if process.program == "slurmctld":
            end_processes([process.pid])
    done = cluster("status", check=False)
    assert done.returncode == 69
    assert "slurmctld of sandbox 'dead' does not respond" in done.stderr
    assert "removing leftovers" in cluster("up", "--nodes=1").stderr
    shutil.rmtree(cluster.root)
    assert "removing leftovers" in cluster("up", "--nodes=1").stderr
    assert cluster.exec("srun", "hostname") == "node1\n"


@pytest.mark.parametrize("mask", [0o077, 0o000])
def test_the_users_umask_does_not_matter(other, mask):
    cluster = other("masked")
    cluster("up", "--nodes=1", umask=mask)
    assert cluster.exec("srun", "hostname") == "node1\n"


def test_habits_of_the_user_do_not_matter(other):
    cluster = other("habits")
    cluster.environ |= {"SINFO_PARTITION": "gpu", "SQUEUE_FORMAT": "%i", "SLURM_JOB_ID": "7"}
    cluster("up", "--nodes=1")
    assert [node["state"] for node in json.loads(cluster("status", "--json").stdout)["nodes"]] == [
        "idle"
    ]


def test_a_stranger_s_process_is_never_entered(full):
    """It calls itself the login host, in namespaces where it could put anything in place of sh."""
    become = f"exec -a bash perl -e 'sleep 60' {full.root}/boot.sh login"
    drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    stranger = subprocess.Popen(
        [*drop, "unshare", "--user", "--map-root-user", "--mount", "bash", "-c", become],
        env={"PATH": os.environ["PATH"], "ECHELON_SANDBOX": str(full.root)},
    )
    try:
        shown = Path(f"/proc/{stranger.pid}/cmdline")
        assert wait_until(lambda: shown.read_bytes().startswith(b"bash\0-e"), timeout_s=30)
        assert full("exec", "--", "hostname").stdout == "login\n"
    finally:
        stranger.kill()
        stranger.wait()


def test_another_user_is_told_that_he_may_not(full):
    done = subprocess.run(
        [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            *full.argv("kill", "node1"),
        ],
        env=full.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    # Where this Python is not for everybody, the kernel itself refuses.
    if done.returncode != 126:
        assert done.returncode == 77, done.stderr
    assert full.nodes()["node1"].running


def test_a_second_up_is_refused_and_leaves_the_cluster_alone(full):
    done = full("up", check=False)
    assert done.returncode == 73
    assert done.stderr == (
        "error: the sandbox 't' is already running\n"
        "hint: stop it: echelon sandbox down --name t; or choose another --name\n"
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
    assert shown["ssh_config"] is None
    assert [node["name"] for node in shown["nodes"]] == ["node1", "node2", "node3", "node4"]
    assert {node["state"] for node in shown["nodes"]} == {"idle"}


def test_a_reader_of_the_status_may_leave(cluster):
    command = f"{shlex.join(cluster.argv('status'))} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], env=cluster.environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) in ((0, ""), (141, ""))


def test_status_has_a_line_for_each_node(cluster):
    lines = cluster("status").stdout.splitlines()
    assert lines[0].split() == ["node", "address", "state", "slurmd", "network"]
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
    assert "error: cannot stop the sandbox 't' from inside it" in done.stderr


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
steps() { ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c "$ECHELON_SANDBOX_DIR" || true; }
show='echo task $SLURMD_NODENAME $SLURM_PROCID $CUDA_VISIBLE_DEVICES'
box up --nodes 3 --gpus 2 "$@"
box exec -- srun --nodes=3 --ntasks-per-node=2 --gpus-per-task=1 bash -c "$show" | sort
box exec -- sbatch --nodes=3 --output=/dev/null --wrap='srun sleep 654321'
until [ "$(sleepers)" = 3 ]; do sleep 0.05; done
echo listeners $(ss -Htlnp | awk '/slurm/ {sub(/:.*/, "", $4); print $4}' | sort -u)
box kill node2
echo after kill $(sleepers)
box cut node1 || echo code $?
box restore node2
box exec -- srun --nodelist=node2 echo node2 is back
[ $# = 0 ] || box exec -- sacct --noheader --parsable2 --allocations --jobs=1 --format=jobid,state
box down
echo after down $(sleepers) $(steps)
"""


@pytest.mark.parametrize("hostname", ["", "not-in-dns"])
def test_without_root_there_is_a_plainer_cluster(home, hostname):
    """In a user namespace root is daemon: the kernel refuses it what it refuses any user.

    Not nobody, whom Slurm 26.05 does not accept as SlurmUser.
    """
    require("ps", "ss", "unshare")
    argv = ["bash", "-c", LOOPBACK, "bash", *(["--accounting"] if hostname else [])]
    if os.geteuid() == 0:
        argv = ["unshare", "--user", "--map-user=1", "--map-group=1", *argv]
    if hostname:
        require_root("another host name")
        require("slurmdbd", "mariadbd", "mariadb", "mariadb-install-db")
        argv = ["unshare", "--uts", "bash", "-c", 'hostname "$0"; exec "$@"', hostname, *argv]
    folder = home / "plain-home"
    folder.mkdir()
    environ = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ECHELON_SANDBOX_DIR": str(folder),
    }
    try:
        done = subprocess.run(
            argv, env=environ, capture_output=True, text=True, check=False, timeout=120
        )
        where = "0.0.0.0" if hostname else "127.0.0.1"  # noqa: S104
        assert done.stdout.splitlines() == [
            *(f"task node{n + 1} {2 * n + t} {t}" for n in range(3) for t in range(2)),
            "Submitted batch job 2",
            f"listeners {where}",
            "after kill 2",
            "code 77",
            "node2 is back",
            *(["1|COMPLETED"] if hostname else []),
            "after down 0 0",
        ], done.stderr
        assert "running without root" in done.stderr
        assert list(folder.iterdir()) == []
    finally:
        end_processes([p.pid for p in find_processes(Layout(root=folder / "plain"))])
        shutil.rmtree(folder)
