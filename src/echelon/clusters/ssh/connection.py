"""One connection to a login host, which all commands share: OpenSSH's ControlMaster.

The user's own ssh, with its configuration, keys, agent and prompts, does everything. A connection
stays for ten minutes after its last use, so a second factor is asked for once.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from echelon.clusters.ssh.failures import explain_ssh, is_lost
from echelon.clusters.ssh.site import check_host
from echelon.core.atomic_file import make_private
from echelon.core.shell import Result, Shell
from echelon.core.userstate import state_folder
from echelon.errors import (
    MissingProgramError,
    NotPermittedError,
    TimedOutError,
    UnavailableError,
    UsageError,
)

if TYPE_CHECKING:
    import subprocess

COMMAND = "ECHELON_SSH"
"""Variable with the ssh command, such as `ssh -F FILE`."""
_PERSIST_S = 600
_ALIVE_S = 5
"""Seconds between two keepalive messages; the connection is lost after three without an answer."""
_CONNECT_S = 20
_ANSWER_S = 10.0
"""Seconds in which a shared connection has to answer; its ssh is on this machine."""
_LONGEST = 45
"""Most characters in the path of the folder with the sockets. A socket's path has at most 103 on
macOS; ssh adds a hash of 40 characters, and 17 more while it creates the socket."""
_LOOK_S = 0.02
_MOST_OUTPUT = 1 << 16
"""Bytes of ssh's messages that are read."""
_PROMPTS = threading.Lock()
"""Held while ssh may ask on the terminal, so that two hosts do not ask at the same time."""


class Connection:
    """The shared connection to a login host."""

    def __init__(self, host: str, shell: Shell, environ: Mapping[str, str]) -> None:
        self.host = check_host(host)
        self._shell = shell
        try:
            self._ssh = shlex.split(environ.get(COMMAND, "")) or ["ssh"]
        except ValueError as error:
            raise UsageError(
                f"{COMMAND} is not a command line: {environ[COMMAND]}",
                hint=f'close its quotes, as in: export {COMMAND}="ssh -F FILE"',
            ) from error
        self._folder = find_sockets(environ)
        self._options: list[str] | None = None

    def run(self, command: str, *, stdin: str = "", timeout_s: float | None = None) -> Result:
        """Run a command line in the login shell there, and return its output.

        Raises:
            EchelonError: there is no connection.
        """
        self.connect()
        done = self._shell.run([*self._argv(), command], stdin=stdin, timeout_s=timeout_s)
        if is_lost(done.code):
            raise explain_ssh(self.host, done.stderr)
        return done

    def open(self, command: str, *, terminal: bool = False) -> "subprocess.Popen[bytes]":
        """Start a command line in the login shell there, with pipes or in our terminal."""
        self.connect()
        kind = ["-t", "-e", "none"] if terminal else ["-T"]
        return self._shell.open([*self._argv(*kind), command], terminal=terminal)

    def forward(self, port: int) -> None:
        """Forward connections to a port of this machine to the same port there.

        Raises:
            EchelonError: the port is in use, or the host forbids it.
        """
        self._control("forward", "-L", f"127.0.0.1:{port}:127.0.0.1:{port}").check(
            hint=f"{self.host} may not allow forwarding; use there: echelon dash"
        )

    def cancel_forward(self, port: int) -> None:
        """Forward a port no more."""
        self._control("cancel", "-L", f"127.0.0.1:{port}:127.0.0.1:{port}")

    def _control(self, request: str, *words: str) -> Result:
        argv = [*self._ssh, *self._shared(), "-O", request, *words, self.host]
        try:
            return self._shell.run(argv, timeout_s=_ANSWER_S)
        except TimedOutError as error:  # its ssh may be suspended (SIGSTOP)
            socket = self._own_settings(*self._shared()).get("controlpath", "")
            raise UnavailableError(
                f"the shared connection to {self.host} did not answer within {_ANSWER_S:g} s",
                hint=f"end its ssh process, or have another one started: rm {shlex.quote(socket)}",
            ) from error

    def _argv(self, *words: str) -> list[str]:
        return [*self._ssh, *self._shared(), "-a", "-x", *words, "--", self.host]

    # --- the shared connection ------------------------------------------------------------------

    def _shared(self) -> list[str]:
        """Return the options for the shared connection: the user's own if there is one."""
        if self._options is None:
            own = self._own_settings()
            theirs = own.get("controlpath", "none") != "none"
            path = f"{self._folder}/%C"
            self._options = [] if theirs else ["-o", f"ControlPath={path}"]
            if own.get("serveraliveinterval", "0") == "0":
                self._options += ["-o", f"ServerAliveInterval={_ALIVE_S}"]
            if own.get("connecttimeout", "none") == "none":
                self._options += ["-o", f"ConnectTimeout={_CONNECT_S}"]
        return self._options

    def _own_settings(self, *more: str) -> dict[str, str]:
        """Return the options that the user's configuration and `more` set for the host."""
        try:
            done = self._shell.run([*self._ssh, *more, "-G", "--", self.host])
        except MissingProgramError as error:
            hint = f"install OpenSSH's client, or correct {COMMAND}"
            raise MissingProgramError(error.program, hint=hint) from error
        if done.code:
            raise explain_ssh(self.host, done.stderr)
        pairs = (line.partition(" ") for line in done.stdout.splitlines())
        return {name: value for name, _, value in pairs}

    def connect(self) -> None:
        """Make the shared connection, unless it exists.

        Raises:
            EchelonError: it cannot be made.
        """
        if not self._is_connected():
            with _locked(self._lock_path()):  # of two commands at the same time, one connects
                if not self._is_connected():
                    self._start_master()

    def _lock_path(self) -> Path:
        """Return the lock file of this host, beside the sockets."""
        about = json.dumps([self._ssh, self.host])
        return self._folder / f"{hashlib.sha256(about.encode()).hexdigest()[:16]}.lock"

    def _is_connected(self) -> bool:
        return self._control("check").code == 0

    def _start_master(self) -> None:
        words = ["-o", "ControlMaster=auto", "-o", f"ControlPersist={_PERSIST_S}", "-T"]
        argv = [*self._ssh, *self._shared(), "-a", "-x", *words, "--", self.host, "true"]
        asks = bool(sys.stdin) and sys.stdin.isatty()
        with _PROMPTS if asks else contextlib.nullcontext(), tempfile.TemporaryFile() as log:
            # A file, because ssh continues in the background and would keep a pipe open. It asks
            # the user on the terminal itself.
            starting = self._shell.open(argv, log=log)
            shown = 0
            while True:
                over = starting.poll() is not None
                output = os.pread(log.fileno(), _MOST_OUTPUT, shown)
                if output and sys.stderr and sys.stderr.isatty() and not over:
                    sys.stderr.write(output.decode(errors="replace"))  # such as a banner
                    sys.stderr.flush()
                    shown += len(output)
                if over:
                    break
                time.sleep(_LOOK_S)
            output = os.pread(log.fileno(), _MOST_OUTPUT, 0)
        if is_lost(starting.returncode):
            raise explain_ssh(self.host, output.decode(errors="replace"))


def find_sockets(environ: Mapping[str, str]) -> Path:
    """Return the folder for the sockets of shared connections, which only the user can enter.

    Raises:
        NotPermittedError: another user has created it.
    """
    state = state_folder(environ)
    folder = state / "ssh" if state else Path("/")
    if not state or len(str(folder)) > _LONGEST:
        folder = Path("/tmp", f"echelon-ssh-{os.getuid()}")  # noqa: S108  checked below
    make_private(folder)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise NotPermittedError(
            f"{folder} belongs to another user, or other users can enter it",
            hint=f"remove it: rm -r {folder}",
        )
    return folder


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
