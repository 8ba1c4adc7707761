"""How long commands take that are given on a laptop and executed on a cluster's login host.

    .venv/bin/python benchmarks/remote.py [--trials N] [--first-trials N]

A sandbox with sshd plays the cluster. Two laptops reach it over real ssh: one next to it, one over
a link of 25 ms each way. For comparison, measures plain ssh through the same kind of shared
connection, and the same commands on the login host itself. Needs root and Debian's Slurm. Writes
benchmarks/results/remote.json.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

from measuring import ratio, sandbox, summary, workshop, write_results

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from echelon.core.waiting import wait_until
from slurm.laptop import Laptop, remove_brought

NAME, HOST = "remote", "sandbox-remote"
DELAYS_MS = (0, 25)
SIZES = (10, 1000)
COMMANDS = ("ps", "status", "why")
GOAL_S = 0.3
"""For a command after the first one, without what the network takes."""
LOGIN = "'exec \"$SHELL\" -l -c true'"
"""Echelon needs the environment of a login. Profiles may take longer than the command."""
FAILING = "raise SystemExit(3)\n"


@contextmanager
def login_host():
    """Run a cluster with sshd during the block; what was brought there is removed."""
    with workshop() as folder, ExitStack() as stack:
        folder.chmod(0o755)
        os.environ["ECHELON_SANDBOX_DIR"] = str(folder)
        stack.callback(os.environ.pop, "ECHELON_SANDBOX_DIR")
        box = stack.enter_context(sandbox(NAME, 1, "--ssh"))
        stack.callback(remove_brought)
        yield box, folder


class Far:
    """A laptop with three projects: one with a failed run, and two that are submitted again."""

    def __init__(self, box, folder, delay_ms):
        self.laptop = Laptop(folder / f"laptop-{delay_ms}", box.layout.ssh_config, HOST, delay_ms)
        self.delay_ms, self._folder, self.failed = delay_ms, folder, ""
        self.asked = self._create(f"asked-{delay_ms}", 3)
        self.sent = {count: self._create(f"sent-{delay_ms}-{count}", count) for count in SIZES}
        self._socket = self.laptop.state / "plain"

    def _create(self, name, count):
        self.laptop.project = self._folder / "projects" / name
        for number in range(count - 2):
            self.laptop.write(f"package/module{number}.py", f"VALUE = {number}\n" * 100)
        self.laptop.write("train.py", FAILING)
        self.laptop.write(
            "echelon.toml",
            f'cluster = "far"\n[clusters.far]\nhost = "{HOST}"\npython = "{sys.executable}"\n'
            f'workdir = "{self.workdir(self.laptop.project)}"\npartition = "low"\nrestarts = 0\n',
        )
        self.laptop.commit()
        return self.laptop.project

    def workdir(self, project):
        """Return a project's folder on the host."""
        return self._folder / "there" / project.name

    def run(self, project, *words):
        """Run a command in a project; return how long it took, and its output."""
        self.laptop.project = project
        began = time.monotonic()
        done = self.laptop(*words)
        return time.monotonic() - began, done.stdout

    def submit(self, project):
        took, said = self.run(project, "submit", "--json", "train.py")
        return took, json.loads(said)["run"]

    def ssh(self, command):
        """Run a command by plain ssh, with a shared connection of its own."""
        options = ["-o", "ControlMaster=auto", "-o", "ControlPersist=60"]
        line = f"exec {self.laptop.ssh} {' '.join(options)} -S {self._socket} {HOST} {command}"
        began = time.monotonic()
        subprocess.run(
            ["/bin/sh", "-c", line],
            env=self.laptop.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            # The first one stays in the background and would hold a pipe.
            stderr=subprocess.DEVNULL,
            check=True,
        )
        return time.monotonic() - began

    def close(self):
        line = f"exec {self.laptop.ssh} -S {self._socket} -O exit {HOST}"
        subprocess.run(["/bin/sh", "-c", line], capture_output=True, check=False)
        self.laptop.close()


def time_there(box, far, *words):
    """Return how long a command takes on the login host itself, with the same files."""
    environ = [f"PYTHONPATH={far.laptop.environ['PYTHONPATH']}", f"HOME={Path.home()}"]
    argv = [
        "env",
        f"--chdir={far.workdir(far.asked)}",
        *environ,
        sys.executable,
        "-S",
        "-m",
        "echelon",
        *words,
    ]
    began = time.monotonic()
    box.run(argv).check()
    return time.monotonic() - began


def prepare(box, far):
    """Submit every project once; one run fails, later ones stay in the queue."""
    _, far.failed = far.submit(far.asked)

    def has_failed():
        return '"FAILED"' in far.run(far.asked, "status", "--json")[1]

    assert wait_until(has_failed, timeout_s=60, interval_s=0.5)
    far.ssh("true")
    far.ssh("squeue")
    far.ssh(LOGIN)
    for words in (("ps",), ("status", far.failed), ("why", far.failed)):
        far.run(far.asked, *words)
        time_there(box, far, *words)


def measure_rounds(box, laptops, trials, times):
    """Measure everything in turn."""
    for _ in range(trials):
        for far in laptops:

            def add(what, took, delay_ms=far.delay_ms):
                times.setdefault((what, delay_ms), []).append(took)

            add("ssh HOST true", far.ssh("true"))
            add("ssh HOST squeue", far.ssh("squeue"))
            add("ssh HOST, a login shell", far.ssh(LOGIN))
            for command in COMMANDS:
                words = [command] if command == "ps" else [command, far.failed]
                add(f"echelon {command}", far.run(far.asked, *words)[0])
                if not far.delay_ms:
                    add(f"echelon {command}, on the login host", time_there(box, far, *words))
            for count, project in far.sent.items():
                add(f"echelon submit, {count} files, unchanged", far.submit(project)[0])
                box.run(["scancel", "--user=root"])


def measure_first(laptops, trials, times):
    """Measure commands without a connection, and without Echelon on the host."""
    for _ in range(trials):
        for far in laptops:
            far.laptop.hang_up()
            took, _ = far.run(far.asked, "ps")
            times.setdefault(("echelon ps, no connection yet", far.delay_ms), []).append(took)
            far.laptop.hang_up()
            remove_brought()
            took, _ = far.run(far.asked, "ps")
            times.setdefault(("the first command on a host", far.delay_ms), []).append(took)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=15)
    parser.add_argument("--first-trials", type=int, default=3)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))  # cleans up
    busy = round(os.getloadavg()[0], 1)
    times = {}
    with login_host() as (box, folder), ExitStack() as stack:
        laptops = [Far(box, folder, delay_ms) for delay_ms in DELAYS_MS]
        for far in laptops:
            stack.callback(far.close)
            prepare(box, far)
        box.run(["scontrol", "update", "nodename=ALL", "state=drain", "reason=measuring"]).check()
        for far in laptops:
            for project in far.sent.values():
                far.submit(project)
        time.sleep(3)  # files that are newer than this are compared by content
        measure_rounds(box, laptops, arguments.trials, times)
        measure_first(laptops, arguments.first_trials, times)
    figures = {key: summary(values) for key, values in times.items()}
    rows = {
        f"{what}, {delay_ms} ms": {
            **figures[what, delay_ms],
            "of_ssh_true": ratio(figures[what, delay_ms], figures["ssh HOST true", delay_ms]),
        }
        for delay_ms in DELAYS_MS
        for what, at in figures
        if at == delay_ms
    }
    near, far_away = (figures["ssh HOST true", delay_ms]["median_s"] for delay_ms in DELAYS_MS)
    goals = {}
    for command in COMMANDS:
        took = figures[f"echelon {command}", DELAYS_MS[1]]["median_s"]
        goals[f"{command}, without the round trips of ssh, s"] = (
            round(took - (far_away - near), 3),
            GOAL_S,
        )
    write_results("remote", rows, goals, load=busy)


if __name__ == "__main__":
    main()
