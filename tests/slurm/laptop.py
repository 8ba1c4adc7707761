"""A laptop far from the cluster: Echelon, ssh and git, and nothing else.

It has a home directory and a Python without torch, no Slurm on its PATH, and reaches the sandbox's
login host over a slow link that tests can cut.
"""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from echelon.clusters.ssh.install import build_archive
from echelon.clusters.ssh.installed import FOLDER

SLOW_LINK = Path(__file__).parents[1] / "slowlink.py"
PROGRAMS = ("ssh", "git", "sh", "env", "python3")
MARK = f"laptop-{os.getpid()}.txt"
"""A file among those that are brought to the host: no other process has the same version there."""


def remove_brought():
    """Remove what our laptops have brought to the host, whose home directory is this user's."""
    for one in (Path.home() / FOLDER).glob(f"*/lib/echelon/{MARK}"):
        shutil.rmtree(one.parents[2])


class Laptop:
    """Runs `echelon` as a user of a laptop would, in a project of theirs."""

    def __init__(self, folder, ssh_config, host, delay_ms=0):
        self.project, self.control = folder / "project", folder / "link"
        programs, library, home = folder / "bin", folder / "lib", folder / "home"
        for path in (self.project, self.control, programs, home):
            path.mkdir(parents=True)
        for name in PROGRAMS:
            (programs / name).symlink_to(shutil.which(name))
        with tarfile.open(fileobj=io.BytesIO(build_archive())) as archive:
            archive.extractall(library, filter="data")
        mark = library / "echelon" / MARK
        mark.touch()
        os.utime(mark, (0, 0))  # as the others: all laptops of a process bring the same version
        link = f"{sys.executable} {SLOW_LINK} %h %p --delay-ms {delay_ms} --control {self.control}"
        self.ssh = f"ssh -F {ssh_config} -o 'ProxyCommand={link}'"
        self.host = host
        self.state = Path(tempfile.mkdtemp(prefix="laptop-", dir="/tmp"))  # short: it has sockets
        self.environ = {
            "HOME": str(home),
            "PATH": str(programs),
            "PYTHONPATH": str(library),
            "ECHELON_SSH": self.ssh,
            "XDG_STATE_HOME": str(self.state),
            "LANG": "C.UTF-8",
        }

    def argv(self, *words):
        # Without site-packages: what this machine has installed is not on a laptop.
        return [sys.executable, "-S", "-m", "echelon", *words]

    def __call__(self, *words, check=True, timeout_s=120, **environ):
        """Run a command, and return it."""
        done = subprocess.run(
            self.argv(*words),
            cwd=self.project,
            env={**self.environ, **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert not check or done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done

    def start(self, *words):
        """Start a command, and return its process."""
        return subprocess.Popen(
            self.argv(*words),
            cwd=self.project,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def write(self, name, text):
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def commit(self, message="a change"):
        """Commit all files; return the commit."""
        who = ["-c", "user.name=me", "-c", "user.email=me@here"]
        for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", message]):
            subprocess.run(["git", *words], cwd=self.project, check=True)
        shown = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=self.project, capture_output=True, check=True
        )
        return shown.stdout.decode().strip()

    # --- the link -------------------------------------------------------------------------------

    def cut_after(self, count):
        """Cut the connection after this many bytes have arrived here; once."""
        draft = self.control / ".cut-after"
        draft.write_text(str(count))
        draft.rename(self.control / "cut-after")

    @property
    def will_be_cut(self):
        return (self.control / "cut-after").exists()

    def hang_up(self):
        """End the shared connection, so that the next command makes a new one."""
        close = "import os, sys; from echelon.clusters.ssh.connection import Connection as C; "
        close += "from echelon.core.shell import LocalShell as S; C(*sys.argv[1:], S(), os.environ)"
        subprocess.run(
            [sys.executable, "-S", "-c", f"{close}._control('exit')", self.host],
            env=self.environ,
            check=True,
            capture_output=True,
        )

    def close(self):
        """End what it left running."""
        self.hang_up()
        shutil.rmtree(self.state)
