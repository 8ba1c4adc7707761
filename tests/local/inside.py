"""A project whose ranks run inside a container image, and what they see there."""

import json
import os
import subprocess
import sys

from procfs import all_pids, cmdline, environ_of

INSIDE = """\
import json, os, sys, torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
seen = {
    "sum": int(total),
    "python": sys.executable,
    "torch": torch.__file__,
    "image": os.environ.get("FROM_IMAGE"),
    "given": os.environ.get("GIVEN"),
    "venv": os.environ.get("VIRTUAL_ENV"),
    "uid": os.getuid(),
    "cwd": os.getcwd(),
    "home": os.access(os.environ["HOME"], os.W_OK),
    "host": os.uname().nodename,
    "parent": os.getppid(),
    "init": open("/proc/1/cmdline").read(),
    "files": os.path.exists("/mnt/data"),
}
rank, turn = os.environ["RANK"], os.environ["ECHELON_GENERATION"]
with open(f"seen-{turn}-{rank}", "w") as file:
    json.dump(seen, file)
if (rank, turn) == ("1", "0"):
    os.kill(os.getpid(), 9)
dist.barrier()
import echelon
print("library", echelon.__file__, flush=True)
dist.destroy_process_group()
"""


class Folder:
    """A project, and commands in it."""

    def __init__(self, path, python=sys.executable, **who):
        """Create it.

        Args:
            path: an empty folder.
            python: runs the commands.
            who: arguments of `subprocess.Popen`: the user that runs them.
        """
        self.path, self.python, self.who = path, python, who
        (path / "home").mkdir()
        outer = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "ECHELON"))}
        self.environ = {**outer, "HOME": str(path / "home"), "XDG_CACHE_HOME": str(path / "cache")}
        self.environ["VIRTUAL_ENV"] = "/of/the/host"

    def argv(self, *words):
        return [self.python, "-m", "echelon", *map(str, words)]

    def __call__(self, *words, timeout_s=120):
        return subprocess.run(
            self.argv(*words),
            cwd=self.path,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            **self.who,
        )

    def start(self, *words):
        with (self.path / "output").open("wb") as output:
            return subprocess.Popen(
                self.argv(*words),
                cwd=self.path,
                env=self.environ,
                stdout=output,
                stderr=output,
                **self.who,
            )

    @property
    def run(self):
        (path,) = (self.path / "runs").iterdir()
        return path

    def events(self, kind):
        lines = (self.run / "events" / "controller-1.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    def processes(self):
        """Return the pids of all processes that were started for its runs."""
        mark = os.fsencode(self.path / "runs")
        return [pid for pid in all_pids() if mark in cmdline(pid) + b"\0" + environ_of(pid)]
