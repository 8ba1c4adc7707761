"""A sandbox cluster, driven by the command as a user would."""

import os
import subprocess
import sys
from pathlib import Path

from echelon.core.shell import LocalShell
from echelon.core.waiting import wait_until
from echelon.sandbox.lifecycle import open_sandbox
from requirements import SBIN

BIN = Path(sys.executable).parent


class Cluster:
    """One sandbox, by its name, in a folder of its own."""

    def __init__(self, home, name="t"):
        self.home, self.name = home, name
        self.root = home / name
        outer = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH"))}
        self.environ = {
            **outer,
            "ECHELON_SANDBOX_DIR": str(home),
            "XDG_STATE_HOME": str(home / ".state"),
            "PATH": f"{BIN}:{outer['PATH']}:{SBIN}",
        }

    def argv(self, command, *arguments):
        return [
            sys.executable,
            "-m",
            "echelon",
            "sandbox",
            command,
            "--name",
            self.name,
            *arguments,
        ]

    def __call__(self, command, *arguments, check=True, **options):
        """Run `echelon sandbox COMMAND`."""
        done = subprocess.run(
            self.argv(command, *arguments),
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            **options,
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    @property
    def box(self):
        """The same thing from inside the library, for what is asked often."""
        return open_sandbox(self.name, shell=LocalShell(), environ=self.environ, uid=os.geteuid())

    def exec(self, *argv):
        """Run a command inside and return what it printed."""
        return self.box.run(argv).check().stdout

    def start(self, *argv, **options):
        """Start a command inside, and return its process."""
        return subprocess.Popen(self.argv("exec", "--", *argv), env=self.environ, **options)

    def sbatch(self, folder, script, *options):
        """Submit a script; its output goes to `folder`/out. Return the job's id."""
        path = folder / "job.sh"
        path.write_text(script)
        output = f"--output={folder}/out"
        return self.exec("sbatch", "--parsable", output, *options, str(path)).strip()

    def job(self, job_id):
        """Return what Slurm knows of a job."""
        shown = self.exec("scontrol", "--oneliner", "show", "job", job_id)
        return dict(field.split("=", 1) for field in shown.split() if "=" in field)

    def await_job(self, job_id, *states, timeout_s=100):
        """Return the job when it is in one of these states.

        A node that takes longer than slurmctld's MessageTimeout of 2 s to end a job answers in
        vain, as on a busy machine: the job is COMPLETING until slurmctld asks again after a minute.
        """
        seen = {}

        def arrived():
            seen.update(self.job(job_id))
            return seen["JobState"] in states

        assert wait_until(arrived, timeout_s=timeout_s, interval_s=0.1), seen
        return seen

    def nodes(self):
        return {node.name: node for node in self.box.nodes()}

    def await_node(self, name, condition, timeout_s=30):
        """Wait until a node's state is as wanted."""
        seen = []

        def arrived():
            seen.append(self.nodes()[name].state)
            return condition(seen[-1])

        assert wait_until(arrived, timeout_s=timeout_s, interval_s=0.1), f"{name} is {seen[-1]}"

    def calm(self):
        """Bring every node back and end every job."""
        for name, node in self.nodes().items():
            if node.cut or not node.running:
                self("restore", name)
        for user in ("root", "nobody"):
            self.box.run(["scancel", f"--user={user}"])
        idle = lambda: {node.state for node in self.nodes().values()} == {"idle"}  # noqa: E731
        assert wait_until(idle, timeout_s=40, interval_s=0.05), self.nodes()
