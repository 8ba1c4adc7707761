import os
import signal
import subprocess
from pathlib import Path

import pytest

from echelon.core.waiting import wait_until
from echelon.sandbox.layout import Layout
from echelon.sandbox.processes import end_processes, find_processes, mark


@pytest.fixture
def layout(tmp_path):
    return Layout(root=tmp_path / "box")


@pytest.fixture
def sleeper():
    """Starts processes that do nothing, and ends them whatever the test did."""
    started = []

    def start(**variables):
        process = subprocess.Popen(["sleep", "60"], env={"PATH": os.environ["PATH"], **variables})
        started.append(process)
        # Until exec, a child shows its parent's environment.
        shown = Path(f"/proc/{process.pid}/cmdline")
        assert wait_until(lambda: shown.read_bytes().startswith(b"sleep"), timeout_s=30)
        return process.pid

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_marked_processes_are_found_with_their_host(layout, sleeper):
    pid = sleeper(**mark(layout, "node1"))
    sleeper()
    sleeper(**mark(Layout(root=layout.root.with_name("box2")), "node1"))
    found = find_processes(layout)
    assert [(p.pid, p.host, p.argv) for p in found] == [(pid, "node1", ("sleep", "60"))]


def test_a_jobs_process_is_found_by_the_cluster_it_belongs_to(layout, sleeper):
    pid = sleeper(SLURM_CLUSTER_NAME=layout.cluster_name, SLURMD_NODENAME="node2")
    assert [(p.pid, p.host) for p in find_processes(layout)] == [(pid, "node2")]


def test_what_has_died_is_not_found(layout, sleeper):
    pid = sleeper(**mark(layout, "node1"))
    os.kill(pid, signal.SIGKILL)
    # Nobody has collected it: it is a zombie, and no process of ours.
    assert wait_until(lambda: find_processes(layout) == [], timeout_s=30)


def test_our_own_shell_is_spared(layout):
    program = (
        "import os; from pathlib import Path; from echelon.sandbox.config import Layout;"
        "from echelon.sandbox.processes import find_processes;"
        f"print(find_processes(Layout(root=Path('{layout.root}'))))"
    )
    import sys

    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **mark(layout, "login")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_a_mark_alone_earns_no_trust(layout):
    """Root of a namespace of his own is a stranger, whatever his process is called."""
    layout.root.mkdir()
    argv = ["unshare", "--user", "--map-root-user", "sleep", "60"]
    process = subprocess.Popen(argv, env={**os.environ, **mark(layout, "login")})
    try:
        shown = Path(f"/proc/{process.pid}/cmdline")
        assert wait_until(lambda: shown.read_bytes().startswith(b"sleep"), timeout_s=30)
        # It would be ended, being marked, but never entered or believed.
        assert [(p.pid, p.trusted) for p in find_processes(layout)] == [(process.pid, False)]
    finally:
        process.kill()
        process.wait()


def test_the_owners_process_is_trusted_and_another_users_is_not(layout, sleeper, monkeypatch):
    layout.root.mkdir()
    sleeper(**mark(layout, "node1"))
    assert [p.trusted for p in find_processes(layout)] == [True]
    if os.geteuid() == 0:
        os.chown(layout.root, 65534, 65534)
        assert [p.trusted for p in find_processes(layout)] == [False]


def test_ended_processes_are_gone_when_it_returns(layout, sleeper):
    pids = [sleeper(**mark(layout, "node1")) for _ in range(5)]
    end_processes([*pids, 2**22 + 1])  # one that never was
    assert find_processes(layout) == []
