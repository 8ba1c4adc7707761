"""One process per node that has imported torch and forks ranks, so that they start fast.

It stays single-threaded, creates no CUDA context, and handles one thing at a time: an order of its
agent (a message on a socket) or a dead child. A rank whose program is not Python, or that cannot be
forked safely, is started with exec instead.
"""

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn

from echelon.core.proc import die_with
from echelon.launch.program import Program
from echelon.launch.program_text import (
    OPTIMIZING,
    PACKAGE,
    foresee_modules,
    may_import_torch,
    may_optimize,
    read_words,
)
from echelon.launch.protocol.messages import (
    MEET_S,
    ZYGOTE_PACKET,
    BecomeZygote,
    ForkRank,
    RankForked,
    RankReaped,
    ServeStore,
    SignalRanks,
    StoreUsed,
    ZygoteReady,
    ZygoteStarted,
    decode,
    encode,
)
from echelon.launch.stage.mount import mount_copy
from echelon.launch.zygote.collective_trace import offer_trace
from echelon.launch.zygote.leftovers import Groups, end_group, list_groups, remove_files
from echelon.launch.zygote.library import Library, import_library, own_modules
from echelon.launch.zygote.rank import PATIENCE_S, keep_sockets_in, restore_fresh_state, run_program
from echelon.run.background_writer import persist

_IGNORED = (
    *(signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP),
    *(signal.SIGUSR1, signal.SIGUSR2),
)
_LOOK_S = 0.02
"""How often to look whether ranks use their store: seen before the quickest of them exit."""
_LATER_S = 5.0
"""Delay after which the zygote imports what other libraries may make torch import, for later ranks:
at the start it would cost two seconds, for nothing if the program does not need it."""


@dataclass(slots=True)
class _Child:
    rank: int
    """-1 for the process that serves the store."""
    generation: int
    ended: bool = False
    """Whether its group has been killed."""


@dataclass(slots=True)
class Zygote:
    """Forks ranks on its agent's orders until the agent exits."""

    agent: socket.socket
    program: Program
    children: dict[int, _Child] = field(default_factory=dict)
    warm: bool = False
    reason: str = ""
    """Why ranks start cold; empty if they start warm."""
    later: tuple[str, ...] = ()
    """Modules to import when there is nothing else to do."""
    library: Library | None = None
    """The ranks' own copy of the package, if they have one."""
    modules: tuple[str, ...] = ()
    """Names of the launcher's modules."""
    unstaged: str = ""
    """Why the staged copy is not used; empty if it is, or there is none."""
    import_s: float = 0.0
    waited_s: float = 0.0
    """How long imports took, and how much of that they waited for storage."""
    wakeup: tuple[int, ...] = ()
    """Both ends of the pipe through which signals wake us; forks close them."""

    def preload(self, modules: list[str]) -> None:
        """Import what ranks need, unless that makes forking unsafe; measure how long it takes."""
        began_s, used_s = time.monotonic(), _used_s()
        self._preload(modules)
        self.import_s = time.monotonic() - began_s
        self.waited_s = max(0.0, self.import_s - (_used_s() - used_s))

    def _preload(self, modules: list[str]) -> None:
        if self.program.kind == "binary":
            self.reason = "it is not a Python program"
            return
        if modules == ["torch"] and not may_import_torch(self.program):
            modules = []
        self.reason = import_for_forks(modules)
        if not self.reason and "torch" in sys.modules:
            self._preload_guessed()
        self.modules = own_modules()
        if (threads := _count_threads()) > 1:
            self.reason = f"importing {', '.join(modules)} started {threads - 1} threads"
        self.warm = self.reason == ""
        if self.warm and "torch" in sys.modules and may_optimize(self.program):
            self.later = tuple(name for name in OPTIMIZING if name not in sys.modules)

    def _preload_guessed(self) -> None:
        """Import what the program's text suggests that it needs."""
        words = read_words(self.program)
        import_for_forks(foresee_modules(words))
        if PACKAGE in words:
            with _importing():
                self.library = import_library(words, self.program.folder())

    def serve(self) -> Callable[[], NoReturn]:
        """Follow orders; in each fork, return the function that it continues with."""
        self.wakeup = read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in _IGNORED:
            # Slurm signals every process of a step, but the zygote ends with its agent. A handler,
            # unlike SIG_IGN, is not inherited by a program that a rank executes.
            signal.signal(number, lambda _number, _frame: None)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        self._send(
            ZygoteReady(
                serves_store="torch" in sys.modules,
                cold_reason=self.reason,
                unstaged=self.unstaged,
                import_s=self.import_s,
                waited_s=self.waited_s,
            )
        )
        while True:
            patience_s = _LATER_S if self.later and self.children else None
            ready, _, _ = select.select([self.agent.fileno(), read_end], [], [], patience_s)
            if not ready:
                import_for_forks(self.later)
                self.later = ()
            if read_end in ready:
                os.read(read_end, 4096)
                self._reap()
            if self.agent.fileno() in ready and (become := self._obey()) is not None:
                return become

    def _obey(self) -> Callable[[], NoReturn] | None:
        data, handles, _, _ = socket.recv_fds(self.agent, ZYGOTE_PACKET, 1)
        if not data:
            self._end_all()
        match decode(json.loads(data)):
            case ForkRank() as order:
                # Threads that a preloaded library has started would be missing in the fork.
                warm = self.warm and _count_threads() == 1
                if (pid := self._fork(order.generation, order.rank)) == 0:
                    return partial(self._become_rank, order, warm)
                self._send(RankForked(rank=order.rank, pid=pid, warm=warm))
            case ServeStore(generation=generation):
                agent = self.agent.dup()
                if self._fork(generation, -1) == 0:
                    return partial(_serve_store, handles[0], generation, agent)
                agent.close()
                os.close(handles[0])
            case SignalRanks(generation=generation, signal=number):
                self._signal(generation, number)
        return None

    def _fork(self, generation: int, rank: int) -> int:
        parent = os.getpid()
        if pid := os.fork():
            self.children[pid] = _Child(rank=rank, generation=generation)
            return pid
        self.agent.close()
        signal.set_wakeup_fd(-1)
        for end in self.wakeup:
            os.close(end)
        die_with(parent, signal.SIGKILL)  # the guard ends our own children
        os.setsid()
        return 0

    def _become_rank(self, order: ForkRank, warm: bool) -> NoReturn:
        os.environ.update(order.env)
        _open_output(Path(order.log))
        if not warm:
            _execute(self.program)
        restore_fresh_state(Path(order.stacks), self.modules)
        keep_sockets_in(order.temp)
        offer_trace(Path(order.trace))
        if self.library is not None:
            self.library.offer()
        run_program(self.program, Path(order.error))

    def _signal(self, generation: int, number: int) -> None:
        groups = list_groups() if number == signal.SIGKILL else {}
        for pid, child in self.children.items():
            if child.generation != generation:
                continue
            if number == signal.SIGKILL:
                _end_group(pid, groups)
                child.ended = True
            elif child.rank >= 0:  # the store stays until its ranks have exited
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
            # Kill its group before its pid can be reused.
            child = self.children.pop(gone.si_pid, None)
            if child is None or not child.ended:
                groups = groups or list_groups()  # listed once for all that exit together
                _end_group(gone.si_pid, groups)
            _, status = os.waitpid(gone.si_pid, 0)
            if child is not None and child.rank >= 0:
                code = os.waitstatus_to_exitcode(status)
                self._send(RankReaped(rank=child.rank, status=code))

    def _end_all(self) -> NoReturn:
        """Kill all ranks and exit: nothing watches them without an agent."""
        groups = list_groups()
        for pid in self.children:
            _end_group(pid, groups)
        remove_files(self.children)
        os._exit(0)

    def introduce(self) -> None:
        """Tell the agent that the program runs."""
        if os.getpgrp() != os.getpid():
            # Inside an image: the runtime is to clean up after us, not to be killed with us.
            os.setsid()
        version = ".".join(map(str, sys.version_info[:3]))
        self._send(
            ZygoteStarted(
                pid=os.getpid(),
                python=f"{sys.executable} ({version})",
                torch=importlib.util.find_spec("torch") is not None,
            )
        )

    def _send(self, message: ZygoteStarted | ZygoteReady | RankForked | RankReaped) -> None:
        try:
            self.agent.send(json.dumps(encode(message)).encode())
        except (BrokenPipeError, ConnectionResetError):
            self._end_all()


def import_for_forks(modules: Iterable[str]) -> str:
    """Import modules for all forks of this process; return why one failed, or ''."""
    with _importing():
        return next(filter(None, map(_import, modules)), "")


@contextlib.contextmanager
def _importing() -> Iterator[None]:
    """Prepare imports that all forks share."""
    # Imports create no garbage, and searching for it takes an eighth of an import of torch.
    gc.disable()
    with _forkable_imports():
        yield
    _keep_operators()
    sys.stdout.flush()  # otherwise every fork would write what an import has printed
    gc.freeze()
    gc.enable()


@contextlib.contextmanager
def _forkable_imports() -> Iterator[None]:
    """Set variables that keep imports safe to fork; the ranks do not see them."""
    ours = {
        # OpenBLAS would start threads, which makes forking unsafe.
        "OPENBLAS_NUM_THREADS": os.environ.get("OPENBLAS_NUM_THREADS", "1"),
        # Otherwise a library that queries CUDA during its import makes it unusable in forks.
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


def _keep_operators() -> None:
    """Have ranks not undo torch's registrations of operators when they exit.

    It is of no use in a process that ends, and copies 27 MB that ranks share with the zygote.
    """
    undo = getattr(sys.modules.get("torch.library"), "_del_library", None)
    if undo is not None:
        registered = getattr(weakref.finalize, "_registry", {})
        for one in [one for one, about in registered.items() if about.func is undo]:
            one.atexit = False


def _import(name: str) -> str:
    """Import a module if it exists; return why it failed, or ''."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        # A missing module is fine; a broken one makes ranks start cold, and fail there.
        return "" if error.name == name else f"'import {name}' failed: {error}"
    except Exception as error:  # noqa: BLE001  the ranks will report it
        return f"'import {name}' failed: {type(error).__name__}: {error}"
    return ""


def _serve_store(handle: int, generation: int, agent: socket.socket) -> NoReturn:
    """Serve the ranks' store on a bound socket until killed; tell the agent when it is used."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # noqa: PLC0415

    with socket.socket(fileno=handle) as listener:
        address, port = listener.getsockname()[:2]
        store = TCPStore(  # serves for as long as it is referenced
            address,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
            use_libuv=True,
        )
    with agent, contextlib.suppress(OSError, RuntimeError):  # without an agent nobody asks
        soon_s = time.monotonic() + MEET_S
        while not store.num_keys():
            time.sleep(_LOOK_S if time.monotonic() < soon_s else 50 * _LOOK_S)
        agent.send(json.dumps(encode(StoreUsed(generation=generation))).encode())
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
    for number in (*_IGNORED, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.execvp(command[0], command)  # noqa: S606  without a shell on purpose
        # There is no such command, but there may be such a file in the current folder.
        os.execv(os.path.abspath(command[0]), command)  # noqa: PTH100, S606
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error.strerror}\n".encode())
        os._exit(126 if isinstance(error, PermissionError) else 127)


def _end_group(pid: int, groups: Groups) -> None:
    end_group(pid, groups)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # it may not have created its group yet


def _mount(mount: str) -> str:
    """Mount the staged copy of an environment over it; return why that failed, or ''."""
    try:
        mount_copy(*json.loads(mount))
    except OSError as error:
        return str(error)
    importlib.invalidate_caches()
    return ""


def _used_s() -> float:
    """Return how long this process has computed, or was ready to but had no CPU."""
    try:
        computed_ns, queued_ns, _ = Path("/proc/self/schedstat").read_text().split()
    except (OSError, ValueError):
        return time.process_time()
    return (int(computed_ns) + int(queued_ns)) / 1e9


def _count_threads() -> int:
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208  called before every fork


def main(arguments: list[str]) -> NoReturn:
    """Run `zygote FD KIND FOLDER MODULE,MODULE MOUNT PROGRAM…`: follow orders from the socket FD.

    MOUNT is a JSON list of a folder, and of another that it is mounted over; or it is empty.
    """
    handle, kind, folder, modules, mount, *argv = arguments
    agent = socket.socket(fileno=int(handle))
    agent.set_inheritable(False)
    zygote = Zygote(agent=agent, program=Program(argv=tuple(argv), kind=kind, modules=folder))
    zygote.unstaged = _mount(mount) if mount else ""
    _work(zygote, [name for name in modules.split(",") if name])


def become_zygote(agent: socket.socket) -> NoReturn:
    """Become the zygote of an agent, in a process that has imported what ranks need."""
    data = agent.recv(ZYGOTE_PACKET)
    order = decode(json.loads(data)) if data else None
    if not isinstance(order, BecomeZygote):  # the agent needs none
        os._exit(0)
    os.environ.clear()
    os.environ.update(order.environ)
    _open_output(Path(order.log))
    argv = tuple(order.program.pop("argv"))
    _work(Zygote(agent=agent, program=Program(argv=argv, **order.program)), order.preload)


def _work(zygote: Zygote, modules: list[str]) -> NoReturn:
    zygote.introduce()
    zygote.preload(modules)
    # Only forks return from `serve`; so nothing of its loop is on their stack.
    zygote.serve()()
