"""A Ray cluster of several nodes on this machine, by Ray's own command, for the tests alone."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from echelon.core.waiting import wait_until
from procfs import all_pids, cmdline, environ_of

BIN = Path(sys.executable).parent
TOKEN = "a" * 32
START_S = 120
"""A head on a busy machine takes its time."""
_MARK = "ECHELON_TEST_RAY"


class RayNodes:
    """A head that only keeps the cluster, and nodes that can be removed."""

    def __init__(self, cpus=2):
        # Short: Ray puts sockets below it. Closed to others, for Ray opens what is inside to all.
        self.home = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        self.cpus = cpus
        self._nodes = {}
        self.environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "RAY_"))},
            _MARK: self.home.name,
            "HOME": str(self.home),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": TOKEN,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": "120",  # a busy machine takes longer than thirty
            # A node that is killed is noticed in a second or two, not in fifteen.
            "RAY_health_check_period_ms": "500",
            "RAY_health_check_timeout_ms": "10000",  # one that is only slow lives
            "RAY_health_check_failure_threshold": "3",
        }
        try:
            self._start_head()
        except BaseException:
            self.down()
            raise

    def _start_head(self):
        port = _free_port()
        # Left alone, it would serve Ray Client on a port that somebody else may have.
        client = [f"--ray-client-server-port={_free_port()}"] if find_spec("grpc") else []
        head = [
            "--head",
            "--port=0",
            *client,
            "--include-dashboard=true",
            "--dashboard-host=127.0.0.1",
        ]
        options = [*head, f"--dashboard-port={port}", "--num-cpus=0"]
        assert any(self.start("head", options) for _ in range(3)), self.output("head")
        self.api = f"http://127.0.0.1:{port}"
        # It is written a moment after Ray has said that it runs.
        named = self.home / "t" / "ray_current_cluster"
        assert wait_until(lambda: named.exists() and named.read_text(), timeout_s=START_S)
        self.gcs = named.read_text().strip()
        assert wait_until(self._serves, timeout_s=START_S, interval_s=0.2), self.output("head")

    def _serves(self):
        with suppress(OSError):
            bearer = {"Authorization": f"Bearer {TOKEN}"}
            url = f"{self.api}/api/version"
            request = urllib.request.Request(url, headers=bearer)  # noqa: S310  our own
            with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310  likewise
                return answer.status == 200
        return False

    def output(self, name):
        return (self.home / f"{name}.log").read_text()

    @property
    def here(self):
        """The flags that name it."""
        return ["--on=ray", f"--address={self.api}"]

    def add(self, name, wrapper=()):
        """Start a node, and return when it has joined."""
        options = [f"--address={self.gcs}", f"--num-cpus={self.cpus}"]
        if not self.start(name, options, wrapper):
            raise AssertionError(self.output(name))

    def name_of(self, node_id):
        """Return which of our nodes Ray calls so."""
        (name,) = [
            name
            for name, process in self._nodes.items()
            if any(node_id.encode() in cmdline(pid) for pid in _below(process.pid))
        ]
        return name

    def restore(self, names):
        """Have these nodes, and no others."""
        gone = [name for name, process in self._nodes.items() if process.poll() is not None]
        for name in {*gone, *self._nodes} - {"head", *(set(names) - set(gone))}:
            self.kill(name)
        for name in [name for name in names if name not in self._nodes]:
            self.add(name)

    def calm(self):
        """Wait until no run is left."""
        left = lambda: [pid for pid in self.pids() if b"/launcher\0" in cmdline(pid)]  # noqa: E731
        assert wait_until(lambda: not left(), timeout_s=20), [cmdline(pid) for pid in left()]

    def start(self, name, options, wrapper=()):
        """Start a node; tell whether it has come."""
        argv = [
            *wrapper,
            str(BIN / "ray"),
            "start",
            "--block",
            "--node-ip-address=127.0.0.1",
            *options,
        ]
        argv += [f"--temp-dir={self.home}/t", "--object-store-memory=100000000"]
        argv += ["--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"]
        argv += ["--disable-usage-stats"]
        with (self.home / f"{name}.log").open("wb") as log:
            self._nodes[name] = subprocess.Popen(
                argv,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        process = self._nodes[name]
        up = lambda: "Ray runtime started" in self.output(name)  # noqa: E731
        if wait_until(lambda: up() or process.poll() is not None, timeout_s=START_S) and up():
            return True
        self.kill(name)
        return False

    def kill(self, name):
        """Take a node away without a word: all its own processes, and what they started."""
        process = self._nodes.pop(name)
        for pid in {process.pid, *_below(process.pid)}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def pids(self):
        """All processes that this cluster has started, and jobs in it."""
        mark = f"{_MARK}={self.home.name}\0".encode()
        return [pid for pid in all_pids() if mark in environ_of(pid) and pid != os.getpid()]

    def down(self):
        for process in self._nodes.values():
            process.terminate()
        for process in self._nodes.values():
            process.wait(timeout=60)

        # What its workers started, and whatever else has stayed.
        def gone():
            left = self.pids()
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left

        assert wait_until(gone, timeout_s=20), [cmdline(pid) for pid in self.pids()]
        shutil.rmtree(self.home, ignore_errors=True)


def _below(pid):
    """Return all descendants of a process."""
    parents = {}
    for one in all_pids():
        with suppress(OSError):
            text = Path(f"/proc/{one}/stat").read_text(errors="replace")
            parents[one] = int(text.rpartition(") ")[2].split()[1])
    found, new = set(), {pid}
    while new:
        new = {one for one, parent in parents.items() if parent in new} - found
        found |= new
    return found


def _free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def events(run, kind, attempt=1):
    """Return what a run's controller has written of a kind."""
    try:
        lines = (run / "events" / f"controller-{attempt}.jsonl").read_text().splitlines()
    except OSError:
        return []
    return [event for event in map(json.loads, lines) if event["kind"] == kind]
