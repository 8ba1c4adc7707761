"""The agent's side of its zygote: starts it, sends orders, and receives reports about ranks."""

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from echelon.core.proc import tail
from echelon.core.shell import Shell, signal_group
from echelon.core.waiting import wait_until
from echelon.errors import UnavailableError
from echelon.launch.agent.files import AgentFiles
from echelon.launch.agent.guard import Guard
from echelon.launch.agent.node_check import describe_exit
from echelon.launch.container.commands import (
    Container,
    explain_failure,
    inner_handle,
    is_refusal,
    render_command,
)
from echelon.launch.program import Program
from echelon.launch.program_text import may_import_torch
from echelon.launch.protocol.messages import (
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
from echelon.launch.roles import role_command
from echelon.launch.zygote.leftovers import remove_files

_MOST_FAILED_STARTS = 2
"""How many zygotes in a row may die before they are ready; the next one preloads nothing, and is
the last."""
_REMOVE_S = 3.0
"""How long a runtime may take to remove its container after the zygote was killed."""
_SIGNALLED = 128
"""Added by runtimes to the number of a signal, to give an exit code."""


class Listener(Protocol):
    """Receives what the zygote reports."""

    def zygote_ready(self, ready: ZygoteReady) -> None: ...

    def zygote_lost(self, status: int) -> None:
        """Handle the end of the zygote and its ranks; the status is negative for a signal."""

    def rank_started(self, started: RankForked) -> None: ...

    def rank_exited(self, exited: RankReaped) -> None: ...

    def store_used(self, used: StoreUsed) -> None: ...


class ZygoteClient:
    """See the module."""

    def __init__(
        self,
        *,
        program: Program,
        preload: tuple[str, ...],
        env: Mapping[str, str],
        log: Path,
        shell: Shell,
        guard: Guard,
        files: AgentFiles,
        open_image: Callable[[], Sequence[Container]] | None = None,
        python: str = "",
        mount: Callable[[], tuple[str, str] | None] = lambda: None,
        forked: socket.socket | None = None,
    ) -> None:
        """Prepare it.

        Args:
            program: what the ranks run.
            preload: modules to import.
            env: its variables.
            log: file for its output.
            shell: starts it.
            guard: ends it if the agent dies.
            files: the agent's files.
            open_image: returns the ways to start it inside an image; it may take long.
            python: the Python inside.
            mount: returns a folder to mount over another one, if there is any.
            forked: our end of the socket to the first zygote, if that was forked.
        """
        self._open_image, self._python, self._mount = open_image, python, mount
        self._forked = forked
        self._variants: Sequence[Container] = ()
        """The ways to start the image; only the one that worked, once it did."""
        self._container: Container | None = None
        """The one that was started, or is being started."""
        self._inner = 0
        """Pid of a zygote that is not our child: it is inside an image, or was forked elsewhere."""
        self._began: asyncio.Future[ZygoteStarted | int] | None = None
        """What a zygote inside an image says first, or its exit status."""
        self._program, self._preload, self._log = program, preload, log
        self._shell, self._guard, self._files = shell, guard, files
        self._env = env
        self._socket: socket.socket | None = None
        self._pid = 0
        self._status: int | None = None
        self._failed_starts = 0

    @property
    def pid(self) -> int:
        """The zygote's pid; 0 before it was started."""
        return self._inner or self._pid

    @property
    def container(self) -> Container | None:
        """The container that it was started in; None without an image."""
        return self._container

    async def start(self, listener: Listener) -> None:
        """Start the zygote, and pass its reports to the listener for as long as it lives.

        Raises:
            OSError: its log cannot be written.
            EchelonError: it cannot be started inside the image, or dies every time.
        """
        if self._failed_starts > _MOST_FAILED_STARTS:
            code = os.waitstatus_to_exitcode(self._status or 0)
            how = await self._files.ask(lambda: describe_exit(code, self._log))
            raise UnavailableError(
                f"the zygote, which starts ranks, died {self._failed_starts} times in a row before "
                f"it was ready; the last one {how}",
                hint=f"see {self._log}",
            )
        if self._open_image is None:
            await self._start(listener)
            return
        self._variants = self._variants or await asyncio.to_thread(self._open_image)
        for container in self._variants:
            self._container = container
            self._began = asyncio.get_running_loop().create_future()
            await self._start(listener)
            began = await self._began
            if isinstance(began, ZygoteStarted):
                self._variants = (container,)
                self._check_torch(began)
                return
            if not is_refusal(container, began):
                break  # the runtime is not to blame
            self._failed_starts = 0  # nor are the modules to preload
        output = await self._files.ask(lambda: tail(self._log))
        reason, hint = explain_failure(container.runtime, container.image, output)
        raise UnavailableError(reason, hint=hint)

    def _check_torch(self, began: ZygoteStarted) -> None:
        if not began.torch and "torch" in self._preload and may_import_torch(self._program):
            raise UnavailableError(
                f"the Python in the image has no torch: {began.python}",
                hint="install torch in the image, or name the Python that has it: --image-python",
            )

    async def _start(self, listener: Listener) -> None:
        self._status, self._inner = None, 0
        if self._forked is not None:
            ours, self._forked, self._pid = self._forked, None, 0
            self._order_forked(ours)
        else:
            ours = await self._begin_new()
            self._guard.watch(self._pid)
        ours.setblocking(False)
        self._socket = ours
        self._failed_starts += 1  # reset when it is ready
        asyncio.get_running_loop().add_reader(ours, self._hear, listener)

    def _order_forked(self, ours: socket.socket) -> None:
        order = BecomeZygote(
            program=asdict(self._program),
            preload=list(self._preload),
            environ=dict(self._env),
            log=str(self._log),
        )
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its end is noticed soon
            ours.send(json.dumps(encode(order)).encode())

    async def _begin_new(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        preload = self._preload if self._failed_starts < _MOST_FAILED_STARTS else ()
        mount = self._mount()
        program = (
            *(self._program.kind, self._program.modules, ",".join(preload)),
            json.dumps(mount) if mount else "",
            *self._program.argv,
        )
        handle, env = theirs.fileno(), dict(self._env)
        if self._container is None:
            argv = role_command("zygote", handle, *program)
        else:
            inner = inner_handle(self._container, handle)
            argv = role_command("zygote", inner, *program, python=self._python)
            argv, env = render_command(self._container, argv, env, handle=handle)
        self._pid = 0
        self._pid = await self._files.insist(
            lambda: self._shell.start(argv, log=self._log, env=env, keep=[handle])
        )
        theirs.close()
        return ours

    def send(
        self, order: ForkRank | ServeStore | SignalRanks, listener: socket.socket | None = None
    ) -> None:
        """Send an order, with a socket for `ServeStore`; does nothing if there is no zygote."""
        if self._socket is None:
            return
        handles = [listener.fileno()] if listener else []
        # Orders are small and the zygote is quick: waiting is simpler than a queue.
        self._socket.setblocking(True)
        try:
            socket.send_fds(self._socket, [json.dumps(encode(order)).encode()], handles)
        except (BrokenPipeError, ConnectionResetError):
            return  # its exit is about to be reported
        finally:
            self._socket.setblocking(False)

    def close(self) -> None:
        """Kill the zygote, and with it its ranks."""
        self._forget()
        if self._inner:
            signal_group(self._inner)
            remove_files([self._inner])
        if self._inner and self._pid:
            self._await_runtime()
        if self._pid:
            signal_group(self._pid)
            remove_files([self._pid])

    def _await_runtime(self) -> None:
        """Wait until the runtime has removed its container: killed, it would leave it behind."""

        def exited() -> bool:
            with contextlib.suppress(ChildProcessError):
                if self._status is None:
                    pid, status = os.waitpid(self._pid, os.WNOHANG)
                    self._status = status if pid else None
            return self._status is not None

        wait_until(exited, timeout_s=_REMOVE_S)

    def collected(self, pid: int, status: int) -> None:
        """Record the exit of a child process, if it is ours; its socket may close later."""
        if pid == self._pid:
            self._status = status

    def _collect(self) -> int:
        """Return the zygote's exit status. Its socket is closed, so it exits or has exited."""
        if not self._pid:
            # It was forked elsewhere, so only its parent knows. While we live, it does not exit.
            return -signal.SIGKILL
        if self._container is not None:
            self._await_runtime()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            if self._status is None:
                os.kill(self._pid, signal.SIGKILL)
                _, self._status = os.waitpid(self._pid, 0)
        code = os.waitstatus_to_exitcode(self._status or 0)
        return _SIGNALLED - code if self._container and code > _SIGNALLED else code

    def _forget(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
            self._guard.forget(self._pid)
            if self._inner:
                self._guard.forget(self._inner)

    def _begin(self, began: ZygoteStarted) -> None:
        if self._pid and self._began is None:
            return  # it is our child
        self._inner = began.pid
        self._guard.watch(began.pid)
        self._guard.forget(self._pid)  # a runtime cleans up when its zygote has exited
        if self._began is not None:
            self._began.set_result(began)

    def _lose(self, listener: Listener, status: int) -> None:
        if self._began is not None and not self._began.done():
            self._began.set_result(status)  # the container did not start
        else:
            listener.zygote_lost(status)

    def _hear(self, listener: Listener) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(ZYGOTE_PACKET)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self._forget()
            self._lose(listener, self._collect())
            return
        match decode(json.loads(data)):
            case ZygoteStarted() as began:
                self._begin(began)
            case ZygoteReady() as ready:
                self._failed_starts = 0
                listener.zygote_ready(ready)
            case RankForked() as started:
                listener.rank_started(started)
            case RankReaped() as exited:
                listener.rank_exited(exited)
            case StoreUsed() as used:
                listener.store_used(used)
