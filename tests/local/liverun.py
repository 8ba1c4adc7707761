"""A run of real processes on this machine, to do harm to: who belongs to it, and how it ended."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from echelon.core.waiting import wait_until

SOURCE = Path(__file__).parents[2] / "src"
START_S = 60
"""Two zygotes import torch, on a machine that may be busy."""
PREAMBLE = """\
import os, signal, socket, sys, threading, time
from datetime import timedelta
from pathlib import Path
import torch
import torch.distributed as dist

rank, pid = int(os.environ["RANK"]), os.getpid()


def begin(**options):
    dist.init_process_group("gloo", **options)


def step():
    dist.all_reduce(torch.ones(1))


def ready():
    "Tell the test who we are: the name appears with its content."
    Path(f"part-{rank}").write_text(str(pid))
    Path(f"part-{rank}").rename(f"ready-{rank}")


def train():
    while True:
        step()
        time.sleep(0.05)


"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of a run."""

    pid: int
    parent: int
    role: str
    """command, controller, agent, guard, zygote; anything else is a `rank` or what one started."""
    node: int | None
    """Of an agent: which one it plays."""
    line: str


class LiveRun:
    """`echelon run` in a folder, and every process that belongs to it."""

    def __init__(self, folder, script, options=(), *, wrapper=(), arguments=(), restarts=3):
        self.folder = folder
        allowed = [] if restarts is None else [f"--restarts={restarts}"]
        name = "train.sh" if script.startswith("#!") else "train.py"
        path = folder / name
        path.write_text(script)
        path.chmod(0o755)
        argv = [*wrapper, sys.executable, "-m", "echelon", "run", "--nodes=2", "--procs=2"]
        argv += [*allowed, "--runs-dir", str(folder / "runs"), *options, f"./{name}", *arguments]
        self._output = (folder / "output").open("wb")
        # A killed rank cannot remove what multiprocessing keeps there; short, for it holds sockets.
        self.scratch = Path(tempfile.mkdtemp(prefix="live-"))
        self.command = subprocess.Popen(
            argv,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(SOURCE), "TMPDIR": str(self.scratch)},
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    # --- how it is ------------------------------------------------------------------------------

    @property
    def path(self):
        return next((self.folder / "runs").iterdir())

    @property
    def output(self):
        return (self.folder / "output").read_text(errors="replace")

    def await_ranks(self, ranks=range(4)):
        """Wait until these ranks have said that they are ready; return their pids."""
        marks = [self.folder / f"ready-{rank}" for rank in ranks]
        assert wait_until(lambda: all(mark.exists() for mark in marks), timeout_s=START_S), (
            f"the ranks did not come: {self.output}"
        )
        return [int(mark.read_text()) for mark in marks]

    def processes(self):
        """Return what lives of it: whoever has its folder in the command line or a variable."""
        return find_processes(self.folder / "runs")

    def find(self, role, node=None):
        """Return the pid of its controller, of an agent, or of an agent's zygote or guard."""
        found = {process.pid: process for process in self.processes()}

        def is_it(process):
            owner = process if role == "agent" else found.get(process.parent)
            return process.role == role and (node is None or (owner and owner.node == node))

        return next(process.pid for process in found.values() if is_it(process))

    def events(self, kind):
        """Return what its controller has written of a kind."""
        paths = self.folder.glob("runs/*/events/controller-1.jsonl")
        lines = [line for path in paths for line in path.read_text().splitlines()]
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    def await_events(self, kind, count):
        """Wait until there are so many; return them."""
        assert wait_until(lambda: len(self.events(kind)) >= count, timeout_s=START_S), self.output
        return self.events(kind)

    def wait(self, timeout_s=START_S):
        """Wait for the command's end and return its code."""
        return self.command.wait(timeout_s)

    def verdict(self):
        """Return what `echelon why` makes of it; None when nothing went wrong."""
        argv = [sys.executable, "-m", "echelon", "why", "--json"]
        argv += ["--runs-dir", str(self.folder / "runs")]
        told = subprocess.run(
            [*argv, self.path.name],
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return json.loads(told.stdout) if told.stdout.strip() else None

    # --- its end --------------------------------------------------------------------------------

    def clear(self):
        """End everything, however it is."""
        with suppress(ProcessLookupError):
            self.command.kill()
        self.command.wait()
        self._output.close()
        # Guards clean up behind their agents, which some of them do not live to see.
        guards = {process.pid for process in self.processes() if process.role == "guard"}
        wait_until(lambda: not self._kill_all(spared=guards), timeout_s=5)
        assert wait_until(lambda: not self._kill_all(), timeout_s=10)

    def _kill_all(self, spared=frozenset()):
        found = self.processes()
        for process in found:
            if process.pid not in spared:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        return found


@contextmanager
def live_run(folder, script, options=(), **more):
    """Start a run that is gone afterwards, whatever happens."""
    run = LiveRun(folder, script, options, **more)
    try:
        yield run
    finally:
        run.clear()
        shutil.rmtree(run.scratch, ignore_errors=True)


def find_processes(runs):
    """Return the processes that belong to runs in a folder."""
    needle, found = os.fsencode(f"{runs}/"), []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        # Gone between two looks, or a zombie: either way it is none of the living.
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            variables = (entry / "environ").read_bytes()
            fields = (entry / "stat").read_text(errors="replace").rpartition(") ")[2].split()
            if fields[0] in "ZX":
                continue
            if any(needle in word for word in words) or needle in variables:
                found.append((int(entry.name), int(fields[1]), words, variables))
    roles = {pid: _role(words) for pid, _, words, _ in found}
    return [
        Process(
            pid=pid,
            parent=parent,
            role=_told_from_parent(roles[pid], roles.get(parent, "")),
            node=_node(variables) if roles[pid] == "agent" else None,
            line=b" ".join(words).decode(errors="replace").strip(),
        )
        for pid, parent, words, variables in found
    ]


def _role(words):
    for role in ("controller", "agent", "zygote"):
        if role.encode() in words and any(word.endswith(b"/launcher") for word in words):
            return role
    return "other"


def _told_from_parent(role, parent):
    """Tell forks from what they were forked from: they share one command line."""
    if role == parent:
        return {"agent": "guard", "zygote": "rank"}.get(role, role)
    return role


def _node(variables):
    for variable in variables.split(b"\0"):
        if variable.startswith(b"ECHELON_NODE="):
            return int(variable.partition(b"=")[2])
    return None


def await_gone(runs, *, timeout_s):
    """Return how long it takes until nothing of these runs is left; None when something stays."""
    began = time.monotonic()
    if wait_until(lambda: not find_processes(runs), timeout_s=timeout_s):
        return time.monotonic() - began
    return None
