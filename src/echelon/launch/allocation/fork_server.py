"""`fork-server FD ROLES PRELOAD`: a process that has imported programs, and forks them on order.

Starting Python and importing torch takes seconds, forking a process that has done so milliseconds.
Like a zygote, it stays single-threaded and handles one thing at a time: an order of its owner (a
message on a socket) or a dead child. It ends with its owner, and its children end with it.
"""

import contextlib
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn

from echelon.core.proc import die_with
from echelon.core.shell import signal_group
from echelon.errors import EchelonError
from echelon.launch.protocol.messages import (
    ZYGOTE_PACKET,
    Exited,
    Fork,
    Kill,
    ServerReady,
    decode,
    encode,
)
from echelon.launch.protocol.rank_environment import STEP, ZYGOTE, render_key
from echelon.launch.roles import ROLES
from echelon.launch.zygote.zygote import become_zygote, import_for_forks

_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


class ForkServer:
    """See the module."""

    def __init__(self, owner: socket.socket) -> None:
        self._owner = owner
        self._children: dict[int, int] = {}
        """Pid of each child → the number of its order."""
        self._wakeup: tuple[int, ...] = ()
        """Both ends of the pipe through which signals wake us; forks close them."""

    def serve(self) -> tuple[Fork, int]:
        """Follow orders until the owner exits; return in each fork, with its order and socket."""
        self._wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in _SIGNALS:
            # Slurm signals every process of a step, but this one ends with its owner.
            signal.signal(number, lambda _number, _frame: None)
        signal.set_wakeup_fd(self._wakeup[1], warn_on_full_buffer=False)
        self._tell(ServerReady())
        while True:
            ready, _, _ = select.select([self._owner.fileno(), self._wakeup[0]], [], [])
            if self._wakeup[0] in ready:
                os.read(self._wakeup[0], 4096)
                self._reap()
            if self._owner.fileno() in ready and (forked := self._obey()):
                return forked

    def _obey(self) -> tuple[Fork, int] | None:
        data, handles, _, _ = socket.recv_fds(self._owner, ZYGOTE_PACKET, 1)
        if not data:
            self._end()
        match decode(json.loads(data)):
            case Fork() as order:
                handle = handles[0] if handles else -1
                if self._fork(order.number):
                    return order, handle
                if handle >= 0:
                    os.close(handle)
            case Kill(number=wanted):
                for pid in [pid for pid, known in self._children.items() if known == wanted]:
                    signal_group(pid)
        return None

    def _fork(self, number: int) -> bool:
        """Fork; tell whether this is the new process."""
        parent = os.getpid()
        if pid := os.fork():
            self._children[pid] = number
            return False
        signal.set_wakeup_fd(-1)
        for end in self._wakeup:
            os.close(end)
        self._owner.close()
        os.setsid()
        die_with(parent, signal.SIGKILL)
        return True

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (one := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = one
                if (number := self._children.pop(pid, None)) is not None:
                    self._tell(Exited(number=number, status=os.waitstatus_to_exitcode(status)))

    def _tell(self, message: Exited | ServerReady) -> None:
        try:
            self._owner.send(json.dumps(encode(message)).encode())
        except (BrokenPipeError, ConnectionResetError):
            self._end()

    def _end(self) -> NoReturn:
        for pid in self._children:
            signal_group(pid)
        os._exit(0)


def _become(order: Fork, handle: int) -> NoReturn:
    """Become the program of an order, in a new process."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    random.seed()
    os.environ.update(order.environ)
    os.environ[STEP] = str(handle)
    os.chdir(order.cwd)
    if order.cpus:
        os.sched_setaffinity(0, order.cpus)
    _open_files(Path(order.log), bytes.fromhex(order.key))
    if order.role == "zygote":
        become_zygote(socket.socket(fileno=handle))
    if order.role == "agent" and handle >= 0:
        os.environ[ZYGOTE] = str(handle)
    if order.role == "controller":
        # As a script's own process would: a stop may arrive before it can be handled.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        code: int = importlib.import_module(ROLES[order.role]).main(order.arguments)
    except EchelonError as error:
        sys.stderr.write(f"{error.message}\nhint: {error.hint}\n" if error.hint else error.message)
        code = error.exit_code
    except BaseException:  # noqa: BLE001  as at the end of a program
        sys.excepthook(*sys.exc_info())
        code = 70
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def _open_files(log: Path, key: bytes) -> None:
    """Replace standard input by the key, and standard output and error by a file."""
    source, sink = os.pipe()
    if key:
        os.write(sink, render_key(key))
    os.close(sink)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for handle, target in ((source, 0), (output, 1), (output, 2)):
        os.dup2(handle, target)
    os.close(source)
    os.close(output)


def main(arguments: list[str]) -> NoReturn:
    """Run `fork-server FD ROLES PRELOAD`: follow orders from the socket FD.

    ROLES are the programs that it is to fork, PRELOAD modules that ranks need.
    """
    handle, roles, preload = arguments
    die_with(os.getppid(), signal.SIGKILL)
    owner = socket.socket(fileno=int(handle))
    owner.set_inheritable(False)
    import_for_forks([ROLES[role] for role in roles.split(",")])
    import_for_forks([name for name in preload.split(",") if name])
    gc.freeze()
    # Only forks return from `serve`.
    _become(*ForkServer(owner).serve())
