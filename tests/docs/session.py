"""The commands of one page, in one bash, in a folder that goes with all that was started there."""

import os
import pwd
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from container_image import Image
from docs.page import Page
from echelon.clusters.ssh.installed import FOLDER
from requirements import SBIN, do_without, require, require_root
from slurm.cluster import Cluster

ROOT = Path(__file__).parents[2]
PEERS = ROOT / ".venv-peers" / "bin"
PROJECT = "project"
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NOT_OURS = (
    *("SLURM", "SBATCH", "PYTEST", "ECHELON", "TORCHELASTIC", "VIRTUAL_ENV", "XDG_", "PYTHON"),
    *("CI", "COLUMNS", "LINES", "LC_", "LANG", "MAKE", "MFLAGS"),
)
# A command must not read what comes after it, nor may what it leaves running hold our pipes.
_DRIVER = """
exec 8<&0 9>&1 </dev/null >/dev/null 2>&1
while IFS= read -r -u 8 step; do
    . "$step" >>"$step.out" 2>&1 8<&- 9>&-
    echo "$?" >&9
done
"""


class CommandError(Exception):
    """A command that did not end as it should; the text has what it printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    code: int
    output: str


class Session:
    """A bash, that keeps what commands change in it."""

    def __init__(self, home: Path, environ: dict[str, str]) -> None:
        self.project = home / PROJECT
        self._home, self._environ = home, environ
        self._steps = 0
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "-c", _DRIVER],
            cwd=self.project,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def run(self, command: str, limit_s: float) -> Ended:
        """Run a command as if it were typed.

        Raises:
            CommandError: it did not end in time, or the shell had ended before.
        """
        self._steps += 1
        step = self._home / ".steps" / str(self._steps)
        step.parent.mkdir(exist_ok=True)
        step.write_text(f"{command}\n")
        output = step.with_name(f"{step.name}.out")
        output.touch()
        try:
            self._bash.stdin.write(f"{step}\n".encode())
            self._bash.stdin.flush()
        except BrokenPipeError:
            raise CommandError("the shell has ended before") from None
        code = self._answer(limit_s)
        shown = self._plain(output.read_text(errors="replace"))
        if code is None:
            raise CommandError(f"not done after {limit_s:g} s; it had printed:\n{shown}")
        return Ended(code=code, output=shown)

    def _answer(self, limit_s: float) -> int | None:
        deadline, said = time.monotonic() + limit_s, b""
        while not said.endswith(b"\n"):
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._bash.stdout], [], [], left)[0]:
                return None
            piece = os.read(self._bash.stdout.fileno(), 100)
            if not piece:  # the command was `exit`
                return self._bash.wait()
            said += piece
        return int(said)

    def _plain(self, output: str) -> str:
        """Return what would be printed on anybody's machine."""
        host = socket.gethostname()
        output = output.replace(str(self._home), "/home/me")
        return output if host == "localhost" else output.replace(host, "laptop")

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGKILL)
        for pipe in (self._bash.stdin, self._bash.stdout):
            with suppress(BrokenPipeError):
                pipe.close()
        self._bash.wait()


@contextmanager
def start_session(page: Page) -> Iterator[Session]:
    """Give a page its folder, its shell and what it needs; take all of it away again."""
    require("bash")
    if page.needs & {"sandbox", "slurm"}:
        require("slurmctld", "slurmd", "munged", "sbatch", "ip", "nsenter", "unshare")
    if "ssh" in page.needs:
        require("ssh", "sshd", "ssh-keygen")
    if "podman" in page.needs:
        require("podman", "ldd")
        require_root("podman without its set-up for ordinary users")
    if "root" in page.needs:
        require_root("nodes with networks of their own")
    if "peers" in page.needs and not PEERS.is_dir():
        do_without("needs .venv-peers: run `make peers`")
    # A short path: sockets are made below it. Named before it is made, so that whatever comes in
    # between, it goes.
    home = Path("/var/tmp", f"edoc-{secrets.token_hex(4)}")  # noqa: S108  nobody can guess it
    image = None
    environ = _environment(home, PEERS if "peers" in page.needs else Path(sys.executable).parent)
    try:
        _furnish(home, Path(environ["VIRTUAL_ENV"]))
        if "sandbox" in page.needs:
            cluster = _cluster(environ, "sandbox")
            cluster("up")
            environ["SLURM_CONF"] = str(cluster.root / "etc" / "slurm.conf")
        if "podman" in page.needs:
            image = _put_image(home)
        session = Session(home, environ)
        try:
            yield session
        finally:
            session.close()
    finally:
        # Who ends us meanwhile has to wait: half of it would stay.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
        try:
            if image:
                image.remove()
            _clear(home, environ)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _environment(home: Path, programs: Path) -> dict[str, str]:
    kept = {name: v for name, v in os.environ.items() if not name.startswith(_NOT_OURS)}
    return {
        **kept,
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_STATE_HOME": str(home / ".local/state"),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "XDG_DATA_HOME": str(home / ".local/share"),
        "TMPDIR": str(home / ".tmp"),
        "ECHELON_SANDBOX_DIR": str(home / ".sandbox"),
        "VIRTUAL_ENV": str(programs.parent),
        "PATH": f"{home}/.bin:{programs}:{kept['PATH']}:{SBIN}",
        "COLUMNS": "100",
        "LC_ALL": "C.UTF-8",
        "NO_COLOR": "1",
        "TERM": "dumb",
        "TZ": "UTC",
        # What a terminal would show in this order, a file does too.
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _put_image(home: Path) -> Image:
    """Put an image into the home directory, where a page finds it."""
    (home / "images").mkdir()
    return Image(home / "images", "pytorch")


def _furnish(home: Path, venv: Path) -> None:
    home.mkdir()
    home.chmod(0o755)  # open, as a home on a cluster is, whatever the umask says
    for folder in (".bin", ".tmp", ".sandbox", PROJECT):
        (home / folder).mkdir()
    # Who runs the tests has the rights that they need; a password cannot be asked for.
    sudo = home / ".bin" / "sudo"
    sudo.write_text('#!/bin/sh\nexec "$@"\n')
    sudo.chmod(0o755)
    project = home / PROJECT
    (project / ".venv").symlink_to(venv)
    ignored = shutil.ignore_patterns("__pycache__", "runs")
    shutil.copytree(ROOT / "examples", project / "examples", ignore=ignored)


def _cluster(environ: dict[str, str], name: str) -> Cluster:
    cluster = Cluster(Path(environ["ECHELON_SANDBOX_DIR"]), name)
    cluster.environ = environ
    return cluster


def _clear(home: Path, environ: dict[str, str]) -> None:
    """End sandboxes and every process of the page, and remove its folder."""
    said = []
    for folder in sorted((home / ".sandbox").glob("[!.]*")):
        down = _cluster(environ, folder.name)("down", check=False)
        if down.returncode and folder.exists():
            said.append(down.stderr)
    _kill_all(f"HOME={home}")
    _remove_hosted(home)
    shutil.rmtree(home, ignore_errors=True)
    assert not said, f"a sandbox of the page could not be ended: {''.join(said)}"


def _remove_hosted(home: Path) -> None:
    """Remove copies of Echelon that commands of the page brought to a sandbox's login host.

    They are in the real home directory, because sshd does not know the page's.
    """
    account = Path(pwd.getpwuid(os.getuid()).pw_dir)
    for program in account.glob(f"{FOLDER}/*/echelon"):
        with suppress(OSError):  # other tests have copies there, too
            if str(home) in program.read_text():
                shutil.rmtree(program.parent)


def _kill_all(variable: str) -> None:
    """Kill every process that has this in its environment, until there is none."""
    deadline = time.monotonic() + 10
    while (found := list(_having(variable))) and time.monotonic() < deadline:
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _having(variable: str) -> Iterator[int]:
    wanted = variable.encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)
