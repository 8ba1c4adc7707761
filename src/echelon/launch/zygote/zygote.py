"""One process per node that has imported torch, and forks ranks: the reason why starts are fast.

It stays single-threaded, opens no CUDA context, and does one thing at a time: an order of its agent
(a message on a socket) or a dead child. A rank whose program is not Python, or that cannot be
forked safely, is executed plainly instead.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from echelon.launch.protocol.leftovers import Groups, end_group, list_groups, remove_files
from echelon.launch.protocol.messages import (
    ZYGOTE_PACKET,
    ForkRank,
    RankForked,
    RankReaped,
    ServeStore,
    SignalRanks,
    ZygoteReady,
    decode,
    encode,
)
from echelon.launch.protocol.program import Program
from echelon.launch.zygote.library import PACKAGE, Library, import_library, own_modules
from echelon.launch.zygote.preload_guess import OPTIMIZING, foresee_modules, read_words
from echelon.launch.zygote.rank import PATIENCE_S, keep_sockets_in, restore_fresh_state, run_program
from echelon.run.background_writer import persist

_PR_SET_PDEATHSIG = 1
_DEAF_TO = (
    *(signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP),
    *(signal.SIGUSR1, signal.SIGUSR2),
)
_LATER_S = 5.0
"""What most programs of torch come to import is imported when their ranks have been at work for so
long: it would be a second of the first start of those that do not."""


@dataclass(slots=True)
class _Child:
    rank: int
    """-1 for the process that serves the ranks' store."""
    generation: int
    ended: bool = False
    """Whether its group has been killed."""


@dataclass(slots=True)
class Zygote:
    """Forks ranks on its agent's orders until the agent is gone."""

    agent: socket.socket
    program: Program
    children: dict[int, _Child] = field(default_factory=dict)
    warm: bool = False
    reason: str = ""
    """Why ranks are started cold, if they are."""
    later: tuple[str, ...] = ()
    """What to import when there is nothing else to do."""
    library: Library | None = None
    """The ranks' own, if they have one."""
    modules: tuple[str, ...] = ()
    """Names of the launcher's modules."""
    wakeup: tuple[int, ...] = ()
    """The ends of the pipe by which signals wake us; no fork is to have them."""

    def preload(self, modules: list[str]) -> None:
        """Import what ranks will want, unless that spoils forking."""
        if self.program.kind == "binary":
            self.reason = "it is not a Python program"
            return
        self.reason = _import_all(modules)
        if not self.reason and "torch" in sys.modules:
            self._foresee()
        self.modules = own_modules()
        if (threads := _count_threads()) > 1:
            self.reason = f"importing {', '.join(modules)} started {threads - 1} threads"
        self.warm = self.reason == ""
        if self.warm and "torch" in sys.modules:
            self.later = tuple(name for name in OPTIMIZING if name not in sys.modules)

    def _foresee(self) -> None:
        """Import what this program will, as far as its text says so."""
        words = read_words(self.program)
        _import_all(foresee_modules(words))
        if PACKAGE in words:
            with _importing():
                self.library = import_library(words, self.program.folder())

    def serve(self) -> "_Become":
        """Obey until one of our forks is to become something else: then return what, in it."""
        self.wakeup = read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in _DEAF_TO:
            # Slurm signals every process of a step. Ours goes when its agent does; a handler,
            # unlike SIG_IGN, is not handed on to what a rank executes.
            signal.signal(number, lambda _number, _frame: None)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        self._send(ZygoteReady(serves_store="torch" in sys.modules, cold_reason=self.reason))
        while True:
            patience_s = _LATER_S if self.later and self.children else None
            ready, _, _ = select.select([self.agent.fileno(), read_end], [], [], patience_s)
            if not ready:
                _import_all(self.later)
                self.later = ()
            if read_end in ready:
                os.read(read_end, 4096)
                self._reap()
            if self.agent.fileno() in ready and (become := self._obey()) is not None:
                return become

    def _obey(self) -> "_Become | None":
        data, handles, _, _ = socket.recv_fds(self.agent, ZYGOTE_PACKET, 1)
        if not data:
            self._end_all()
        match decode(json.loads(data)):
            case ForkRank() as order:
                return self._fork(order, rank=order.rank)
            case ServeStore() as order:
                return self._fork(order, rank=-1, handle=handles[0])
            case SignalRanks(generation=generation, signal=number):
                self._signal(generation, number)
        return None

    def _fork(
        self, order: ForkRank | ServeStore, *, rank: int, handle: int = -1
    ) -> "_Become | None":
        parent = os.getpid()
        # Threads started meanwhile, by some preloaded library, would be lost in the fork.
        warm = self.warm and _count_threads() == 1
        pid = os.fork()
        if pid == 0:
            self.agent.close()
            signal.set_wakeup_fd(-1)
            for end in self.wakeup:
                os.close(end)
            _die_with(parent)
            os.setsid()
            return _Become(
                order=order,
                program=self.program,
                modules=self.modules,
                library=self.library,
                warm=warm,
                handle=handle,
            )
        if handle >= 0:
            os.close(handle)
        self.children[pid] = _Child(rank=rank, generation=order.generation)
        if rank >= 0:
            self._send(RankForked(rank=rank, pid=pid, warm=warm))
        return None

    def _signal(self, generation: int, number: int) -> None:
        groups = list_groups() if number == signal.SIGKILL else {}
        for pid, child in self.children.items():
            if child.generation != generation:
                continue
            if number == signal.SIGKILL:
                _end_group(pid, groups)
                child.ended = True
            elif child.rank >= 0:  # asked politely, the store stays until its ranks are gone
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _reap(self) -> None:
        groups: Groups | None = None
        while True:
            try:
                gone = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if gone is None:
                return
            # Its group is ended before its number can be another's.
            child = self.children.pop(gone.si_pid, None)
            if child is None or not child.ended:
                groups = groups or list_groups()  # one look for all that end together
                _end_group(gone.si_pid, groups)
            _, status = os.waitpid(gone.si_pid, 0)
            if child is not None and child.rank >= 0:
                code = os.waitstatus_to_exitcode(status)
                self._send(RankReaped(rank=child.rank, status=code))

    def _end_all(self) -> NoReturn:
        """Without an agent nobody watches the ranks: they end, and so do we."""
        groups = list_groups()
        for pid in self.children:
            _end_group(pid, groups)
        remove_files(self.children)
        os._exit(0)

    def _send(self, message: ZygoteReady | RankForked | RankReaped) -> None:
        try:
            self.agent.send(json.dumps(encode(message)).encode())
        except (BrokenPipeError, ConnectionResetError):
            self._end_all()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Become:
    """What a fork of the zygote is to be."""

    order: ForkRank | ServeStore
    program: Program
    modules: tuple[str, ...]
    library: Library | None
    warm: bool
    handle: int

    def become(self) -> NoReturn:
        order = self.order
        if isinstance(order, ServeStore):
            _serve_store(self.handle)
        os.environ.update(order.env)
        _open_output(Path(order.log))
        if not self.warm:
            _execute(self.program)
        restore_fresh_state(Path(order.stacks), self.modules)
        keep_sockets_in(order.temp)
        if self.library is not None:
            self.library.offer()
        run_program(self.program, Path(order.error))


def _import_all(modules: Iterable[str]) -> str:
    """Import modules for all forks; return why one could not be, if so."""
    with _importing():
        return next(filter(None, map(_import, modules)), "")


@contextlib.contextmanager
def _importing() -> Iterator[None]:
    """Import for all forks."""
    # Nothing that a module makes is garbage: to look for some, time and again, is an eighth of what
    # importing torch takes.
    gc.disable()
    with _forkable_imports():
        yield
    sys.stdout.flush()  # else every fork would write what an import has printed
    gc.freeze()
    gc.enable()


@contextlib.contextmanager
def _forkable_imports() -> Iterator[None]:
    """Set what keeps imports from spoiling forks; the ranks do not see it."""
    ours = {
        # OpenBLAS would start threads, and a process with threads cannot be forked safely.
        "OPENBLAS_NUM_THREADS": os.environ.get("OPENBLAS_NUM_THREADS", "1"),
        # Else a library that asks for CUDA while it is imported spoils it for the ranks.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    yield
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


def _import(name: str) -> str:
    """Import a module if there is one; return what is wrong with it, if anything."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        # One that is not there is no loss; one that is there, and broken, is the ranks' to meet.
        return "" if error.name == name else f"'import {name}' failed: {error}"
    except Exception as error:  # noqa: BLE001  the ranks will say it better
        return f"'import {name}' failed: {type(error).__name__}: {error}"
    return ""


def _serve_store(handle: int) -> NoReturn:
    """Serve the ranks' store on a socket that is bound already, until killed."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # noqa: PLC0415

    with socket.socket(fileno=handle) as listener:
        address, port = listener.getsockname()[:2]
        _store = TCPStore(  # serves for as long as there is a reference to it
            address,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
            use_libuv=True,
        )
    while True:
        signal.pause()


def _open_output(log: Path) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    output = persist(lambda: os.open(log, flags, 0o600), within_s=PATIENCE_S)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(output)


def _execute(program: Program) -> NoReturn:
    command = program.command(sys.executable)
    for number in (*_DEAF_TO, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.execvp(command[0], command)  # noqa: S606  that there is no shell is the point
        # No command is called so; but a file beside us may be.
        os.execv(os.path.abspath(command[0]), command)  # noqa: PTH100, S606
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error.strerror}\n".encode())
        os._exit(126 if isinstance(error, PermissionError) else 127)


def _die_with(parent: int) -> None:
    """Have the kernel kill us when our parent goes; what we start ourselves, the guard ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _end_group(pid: int, groups: Groups) -> None:
    end_group(pid, groups)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # it may not have made its group yet


def _count_threads() -> int:
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208  called before every fork


def main(arguments: list[str]) -> NoReturn:
    """`zygote FD KIND MODULE,MODULE PROGRAM…`: obey the agent at the other end of the socket."""
    handle, kind, modules, *argv = arguments
    agent = socket.socket(fileno=int(handle))
    agent.set_inheritable(False)
    zygote = Zygote(agent=agent, program=Program(argv=tuple(argv), kind=kind))
    zygote.preload([name for name in modules.split(",") if name])
    become = zygote.serve()
    # Here only forks arrive, with nothing of the zygote's loop on their stack.
    del zygote
    become.become()
