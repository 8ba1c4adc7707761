"""The sandbox's login host, over OpenSSH's own ssh."""

import json
import os
import select
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from echelon.sandbox.layout import Layout
from echelon.sandbox.processes import end_processes, find_processes
from requirements import require, require_root
from slurm.cluster import Cluster

ADA = 23456
# `up` and all that it starts see these files; the machine's own accounts stay as they are.
WITH_ACCOUNTS = """
mount --bind "$0" /etc/passwd
mount --bind "$1" /etc/shadow
shift
exec "$@"
"""


def run_ssh(config, *words, **options):
    return subprocess.run(
        ["ssh", "-F", str(config), *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


@contextmanager
def started(cluster, tmp_path, nodes=2):
    """A sandbox with sshd, on a machine where ada has an account without a password."""
    require_root("a login host with its own address")
    require("ssh", "sshd", "ssh-keygen", "unshare")
    accounts, shadow = tmp_path / "passwd", tmp_path / "shadow"
    accounts.write_text(
        Path("/etc/passwd").read_text() + f"ada:x:{ADA}:{ADA}:the second user:/:/bin/bash\n"
    )
    shadow.write_text("root:*:::::::\nada:!:::::::\n")  # as useradd writes it
    up = cluster.argv("up", "--ssh", f"--nodes={nodes}")
    try:
        yield subprocess.run(
            ["unshare", "--mount", "bash", "-euc", WITH_ACCOUNTS, accounts, shadow, *up],
            env=cluster.environ,
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        if cluster.root.exists():
            cluster("down", check=False)


@pytest.fixture(scope="module")
def up(home, tmp_path_factory):
    """The `up` of a sandbox for all tests here that leave it as it is."""
    with started(Cluster(home, "remote"), tmp_path_factory.mktemp("accounts")) as done:
        yield done


@pytest.fixture
def config(up, home):
    return home / "remote" / "ssh_config"


@pytest.mark.quick
def test_a_session_has_the_cluster(config, home):
    done = run_ssh(config, "sandbox-remote", "hostname; srun -N2 hostname | sort; sinfo -ho %P")
    assert done.stdout.split() == ["login", "node1", "node2", "low*", "high"], done.stderr
    assert done.stderr == ""


def test_up_and_status_name_the_file_for_ssh(up, config, home):
    lines = up.stderr.splitlines()
    assert "sandbox: starting sshd" in lines
    assert f"  over ssh:       ssh -F {config} sandbox-remote" in lines
    assert f"  ~/.ssh/config:  Include {config}" in lines
    shown = json.loads(Cluster(home, "remote")("status", "--json").stdout)
    assert shown["ssh_config"] == str(config)


def test_the_file_can_be_included_in_ones_own(config, tmp_path):
    own = tmp_path / "config"
    own.write_text(f"Include {config}\nHost *\n    User nobody\n")
    assert run_ssh(own, "sandbox-remote", "id -un").stdout == "root\n"


def test_another_user_logs_in_and_submits_even_with_a_locked_password(config):
    done = run_ssh(config, "-l", "ada", "sandbox-remote", "id -u; srun -N2 id -u")
    assert done.stdout.split() == [str(ADA)] * 3, done.stderr


def test_only_the_owner_can_read_the_keys(config):
    keys = [config.parent / "ssh" / name for name in ("id_ed25519", "host_ed25519")]
    assert [key.stat().st_mode & 0o777 for key in keys] == [0o600, 0o600]


def test_another_key_is_refused_and_no_password_is_asked_for(config, tmp_path):
    key, without = tmp_path / "key", tmp_path / "ssh_config"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    (identity,) = (line for line in config.read_text().splitlines() if "IdentityFile" in line)
    without.write_text(config.read_text().replace(identity, f"    IdentityFile {key}"))
    done = run_ssh(without, "sandbox-remote", "echo logged in")
    assert (done.returncode, done.stdout) == (255, "")
    assert "Permission denied (publickey)." in done.stderr


def test_a_server_with_another_key_is_refused(config, tmp_path):
    known = tmp_path / "known_hosts"
    address = config.parent.joinpath("ssh", "known_hosts").read_text().split()[0]
    other = config.parent.joinpath("ssh", "id_ed25519.pub").read_text()
    known.write_text(f"{address} {other}")
    done = run_ssh(config, "-o", f"UserKnownHostsFile={known}", "sandbox-remote", "true")
    assert done.returncode == 255
    assert "Host key verification failed." in done.stderr


def test_ports_of_the_login_host_can_be_forwarded(config):
    """slurmctld's own; to an address of this name, the machine itself has no slurmctld."""
    done = run_ssh(config, "-W", "127.0.0.1:6817", "sandbox-remote")
    assert (done.returncode, done.stderr) == (0, "")
    closed = run_ssh(config, "-W", "127.0.0.1:9", "sandbox-remote")
    assert "Connection refused" in closed.stderr


def test_files_can_be_copied(config, tmp_path):
    (tmp_path / "here").write_text("content")
    argv = ["scp", "-q", "-F", config, tmp_path / "here", f"sandbox-remote:{tmp_path}/there"]
    subprocess.run(argv, check=True, timeout=60)
    assert (tmp_path / "there").read_text() == "content"


HIDE = """
setsid bash -c 'echo $$; exec sleep 600' < /dev/null 2> /dev/null &
env -i setsid bash -c 'echo $$; exec sleep 600' < /dev/null 2> /dev/null &
echo $$
sleep 600
"""


def test_down_ends_whatever_a_session_started(home, tmp_path):
    """Another session, an empty environment, another user, and the session itself."""
    cluster = Cluster(home, "left")
    handles = []
    with started(cluster, tmp_path, nodes=1):
        config = cluster.root / "ssh_config"
        argv = ["ssh", "-F", config, "-l", "ada", "sandbox-left", HIDE]
        session = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        with session:
            try:
                # The login host has the machine's process table.
                pids = [int(session.stdout.readline()) for _ in range(3)]
                handles = [os.pidfd_open(pid) for pid in pids]
                daemons = [p for p in find_processes(Layout(root=cluster.root)) if is_sshd(p)]
                cluster("down")
                assert [handle for handle in handles if not has_ended(handle)] == []
                assert session.wait(timeout=20) == 255
            finally:
                session.kill()
                for handle in handles:
                    os.close(handle)
    assert len(daemons) >= 2  # the listener, and at least one for the session
    assert not cluster.root.exists()
    assert find_processes(Layout(root=cluster.root)) == []


def is_sshd(process):
    return process.argv[0].startswith("sshd")


def has_ended(handle):
    return bool(select.select([handle], [], [], 0)[0])


LOOPBACK = r"""
set -eu
box() { command=$1; shift; python -m echelon sandbox "$command" --name plain "$@"; }
remote() { ssh -F "$ECHELON_SANDBOX_DIR/plain/ssh_config" -o ConnectTimeout=20 "$@" < /dev/null; }
sleepers() { ps -C sleep -o args= | grep -cx "sleep $1" || true; }
servers() { ps -C sshd -o args= | grep -c "$ECHELON_SANDBOX_DIR" || true; }
listeners() { ss -Htlnp "sport = :$1" | awk '{sub(/:.*/, "", $4); print $4}'; }
box up --nodes 2 --ssh
port=$(awk '$1 == "Port" {print $2}' "$ECHELON_SANDBOX_DIR/plain/ssh_config")
remote sandbox-plain 'id -un; srun --nodes=2 printenv SLURMD_NODENAME | sort'
remote -l root sandbox-plain 'echo root' || echo code $?
remote sandbox-plain "setsid sleep $1 > /dev/null 2>&1 & echo left"
remote sandbox-plain "echo open; exec sleep $1" > open &
until grep -q open open; do sleep 0.05; done
echo before down $(sleepers "$1") $(servers) $(listeners "$port")
box down
wait $! || echo code $?
echo after down $(sleepers "$1") $(servers)
"""


def test_without_root_the_user_alone_can_log_in(home, tmp_path):
    """In a user namespace root is daemon, who has a shell here."""
    require("ps", "ss", "ssh", "sshd", "ssh-keygen", "unshare")
    require_root("an account with a shell")
    accounts, shadow = tmp_path / "passwd", tmp_path / "shadow"
    lines = [line for line in Path("/etc/passwd").read_text().splitlines() if ":x:1:" not in line]
    accounts.write_text("\n".join([*lines, "daemon:x:1:1::/:/bin/sh", ""]))
    shadow.write_text("")
    folder = home / "plain-ssh"
    folder.mkdir()
    script = ["bash", "-c", LOOPBACK, "bash", str(10**6 + os.getpid())]  # seconds of its own
    as_daemon = ["unshare", "--user", "--map-user=1", "--map-group=1", *script]
    argv = ["unshare", "--mount", "bash", "-euc", WITH_ACCOUNTS, accounts, shadow, *as_daemon]
    environ = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        **{name: os.environ[name] for name in ["PYTHONPATH"] if name in os.environ},
        "ECHELON_SANDBOX_DIR": str(folder),
    }
    try:
        done = subprocess.run(
            argv,
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.stdout.splitlines() == [
            *("daemon", "node1", "node2"),
            "code 255",
            "left",
            "before down 2 1 127.0.0.1",
            "code 255",
            "after down 0 0",
        ], done.stderr
        assert "root@127.0.0.1: Permission denied (publickey)." in done.stderr
        assert list(folder.iterdir()) == []
    finally:
        end_processes([p.pid for p in find_processes(Layout(root=folder / "plain"))])
        shutil.rmtree(folder)
