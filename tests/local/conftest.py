"""A real run on this machine, by the command, and what the kernel knows of its processes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from echelon.core.waiting import wait_until
from procfs import all_pids, cmdline, environ_of, listeners
from run_key import record_key

SCRIPT = """\
import json, os, pathlib, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
place = pathlib.Path("ready-" + os.environ["RANK"])
place.with_suffix(".new").write_text(json.dumps(dict(os.environ)))
place.with_suffix(".new").rename(place)
while not pathlib.Path("go").exists():
    time.sleep(0.02)
total = torch.tensor([2.0 ** dist.get_rank()])
dist.all_reduce(total)
print("the sum is", int(total.item()), flush=True)
dist.destroy_process_group()
"""
"""Ranks that meet, write down their variables, wait for a file to appear, sum up, and leave."""


class LocalRun:
    """`echelon run` in a folder of its own."""

    RANKS = 2

    def __init__(self, folder, environ):
        self.folder = folder
        (folder / "wait.py").write_text(SCRIPT)
        outer = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "ECHELON"))}
        argv = [sys.executable, "-m", "echelon", "run", "--procs", str(self.RANKS), "wait.py"]
        with (folder / "output").open("wb") as output:
            self.command = subprocess.Popen(
                argv, cwd=folder, env={**outer, **environ}, stdout=output, stderr=output
            )

    @property
    def path(self):
        """The run's own folder."""
        return next((self.folder / "runs").glob("*"))

    def await_listening(self):
        """Return where the controller listens, as soon as it does."""
        found = []

        def listens():
            found[:] = [address for pid in self.role("controller") for address in listeners(pid)]
            return bool(found)

        assert wait_until(listens, timeout_s=30), self.output
        return found[0]

    def await_ranks(self):
        """Return when all ranks have met."""
        ready = [self.folder / f"ready-{rank}" for rank in range(self.RANKS)]
        assert wait_until(lambda: all(path.exists() for path in ready), timeout_s=60), self.output

    def finish(self):
        """Let the ranks go on, and hold the run to a good end."""
        (self.folder / "go").touch()
        assert self.command.wait(timeout=60) == 0, self.output
        assert self.output.count("the sum is 3") == self.RANKS

    @property
    def output(self):
        return (self.folder / "output").read_text()

    def events(self, kind):
        lines = (self.path / "events" / "controller-1.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    # --- its processes ----------------------------------------------------------------------------

    def pids(self):
        """All that belong to the run: they name its folder, or were started with it."""
        mark = os.fsencode(self.folder / "runs") + b"/"
        marked = [pid for pid in all_pids() if mark in cmdline(pid) + b"\0" + environ_of(pid)]
        return sorted({self.command.pid, *marked} - {os.getpid()})

    def role(self, role):
        """Those that a launcher's argument names; forks of one are among them."""
        try:
            launcher = os.fsencode(self.path / "launcher")
        except StopIteration:  # there is no run yet
            return []
        wanted = b"%b\0%b\0" % (launcher, role.encode())
        return [pid for pid in all_pids() if wanted in cmdline(pid)]

    def ranks(self):
        return [event["pid"] for event in self.events("rank")]

    def end(self):
        """Leave nothing behind, whatever has happened."""
        if self.command.poll() is None:
            self.command.send_signal(signal.SIGINT)
        gone = lambda: self.command.poll() is not None and self.pids() == [self.command.pid]  # noqa: E731
        if wait_until(gone, timeout_s=10):
            return
        for pid in self.pids():
            if self.command.poll() is None or pid != self.command.pid:
                os.kill(pid, signal.SIGKILL)
        self.command.wait()


@contextmanager
def starter():
    """Give a function that starts a run; what is left of it at the end is ended."""
    # A folder that is open to all: what another user cannot read in it, a run has closed.
    folder = Path(tempfile.mkdtemp(prefix="echelon-", dir="/var/tmp"))
    folder.chmod(0o755)
    runs = []

    def start(*, record=False, **environ):
        runs.append(LocalRun(folder, {**environ, **(record_key(folder) if record else {})}))
        return runs[-1]

    try:
        yield start
    finally:
        for run in runs:
            run.end()
        shutil.rmtree(folder)


@pytest.fixture
def start_run():
    """A function that starts a run of this test's own."""
    with starter() as start:
        yield start


@pytest.fixture(scope="module")
def shared_run():
    """A run in the middle of its life, for tests that leave it as it is; then it ends well."""
    with starter() as start:
        run = start()
        run.await_ranks()
        yield run
        run.finish()
