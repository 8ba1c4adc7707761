"""A packed sweep of real processes on this machine, to do harm to."""

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

from echelon.core.waiting import wait_until
from echelon.run.directory import RunDir
from echelon.run.event_log import EventReader
from echelon.run.events import AgentJoined, AttemptStarted, ControllerEvent

SCRIPT = """\
import os, sys, time
from pathlib import Path

what, folder = sys.argv[1], Path(os.environ["ECHELON_RUN_DIR"])
with open(folder / "begun", "a") as file:
    cpus = sorted(os.sched_getaffinity(0))
    print(os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES", "-"), *cpus, file=file, flush=True)
while what.startswith("wait") and not Path("go").exists():
    time.sleep(0.02)
if what.startswith("crash"):
    raise ValueError("as it was told to")
"""
WAIT_S = 60


class PackedSweep:
    """`echelon sweep --pack` in a folder, with a task for each word."""

    def __init__(self, folder, *tasks, options=()):
        self.folder = folder
        self._mark = f"TEST_MARK={uuid.uuid4()}"
        name, _, value = self._mark.partition("=")
        self._environ = {**os.environ, name: value}
        (folder / "train.py").write_text(SCRIPT)
        (folder / "tasks.csv").write_text("\n".join(["what", *tasks, ""]))
        flags = ["--pack=1", "--per-slot=4", "--restarts=1", "--file=tasks.csv", "--preload="]
        self._command = self._start(["sweep", "--on=local", *flags, *options, "train.py", "{what}"])
        assert wait_until(self._ids, timeout_s=WAIT_S), self.output()
        self.sweep = self._ids()[0]

    def _start(self, words):
        with (self.folder / "output").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "echelon", *words],
                cwd=self.folder,
                env=self._environ,
                stdout=output,
                stderr=output,
            )

    def _ids(self):
        return [path.parent.name for path in self.folder.glob("runs/*/sweep.json")]

    def output(self):
        return (self.folder / "output").read_text()

    def run(self, index):
        return RunDir(path=self.folder / "runs" / f"{self.sweep}-{index}")

    def begun(self, index):
        """Return what each rank of a task has said about itself: pid, GPUs, CPUs."""
        path = self.run(index).path / "begun"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split() for line in lines]

    def await_begun(self, *indices, times=1):
        there = lambda: all(len(self.begun(index)) >= times for index in indices)  # noqa: E731
        assert wait_until(there, timeout_s=WAIT_S), self.output()

    def pids(self, run, kind, attempt=1):
        """Return the pids that the events of a run tell of one kind."""
        records = EventReader(run.events_of(f"controller-{attempt}"), ControllerEvent).read()
        return [one.event.pid for one in records if isinstance(one.event, kind)]

    def controller(self, index, attempt=1):
        return self.pids(self.run(index), AttemptStarted, attempt)[-1]

    def agent(self, index, attempt=1):
        return self.pids(self.run(index), AgentJoined, attempt)[-1]

    @property
    def files(self):
        return RunDir(path=self.folder / "runs" / self.sweep)

    def broker(self):
        return self.pids(self.files, AttemptStarted)[-1]

    def keeper(self):
        return self.pids(self.files, AgentJoined)[-1]

    def go(self):
        """Let the tasks end that wait."""
        (self.folder / "go").touch()

    def command(self, *words, code=0):
        done = subprocess.run(
            [sys.executable, "-m", "echelon", *words],
            cwd=self.folder,
            env=self._environ,
            capture_output=True,
            text=True,
            timeout=2 * WAIT_S,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def states(self):
        rows = json.loads(self.command("sweep", "table", self.sweep, "--json"))
        return [row["state"] for row in rows]

    def wait(self):
        """Wait for the command, and return its exit code."""
        return self._command.wait(2 * WAIT_S)

    def left(self):
        """Return the processes of the sweep."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                marked = self._mark.encode() in path.read_bytes()
            except OSError:
                continue
            if marked:
                found.append(int(path.parent.name))
        return found

    def close(self):
        for pid in self.left():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._command.wait()
