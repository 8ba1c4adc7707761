"""The node's copy of the ranks' environment or image, on its own disk.

Before the agent greets its controller, it looks whether the copy is there from an earlier job. If
it is not, the controller says where to get it from, and ranks are started when it is there. All
work on disks and sockets is done in threads, which nobody waits for if storage does not respond.
"""

import asyncio
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from echelon.core.shell import Shell
from echelon.errors import EchelonError, UnavailableError
from echelon.launch.agent.image import find_image
from echelon.launch.container.store import cache_folder
from echelon.launch.protocol.messages import Stage as StageOrder
from echelon.launch.protocol.messages import Staged
from echelon.launch.protocol.wire import WireError
from echelon.launch.stage.copying import Copy, StalledError, read_all
from echelon.launch.stage.manifest import (
    SYSTEM,
    StageManifest,
    describe_file,
    describe_folder,
)
from echelon.launch.stage.store import Stage, StageStore
from echelon.launch.stage.transfer import STALL_S, fetch, serve, stage_key
from echelon.run.request import Environment
from echelon.spec.job_spec import JobSpec

_ORDER_S = 20.0
"""How long to wait for another order after all nodes of the last one have failed."""
_ROUNDS = 3
_PAUSE_S = 0.3
_MOST_PEERS = 64
"""Connections that are served, or are to prove that they may be."""


class NodeStage:
    """What a node has of what is to be staged, and how it gets the rest."""

    def __init__(
        self,
        request: JobSpec,
        *,
        recorded: Environment | None,
        node: str,
        environ: Mapping[str, str],
        shell: Shell,
        key: bytes,
        prefix: str = sys.prefix,
    ) -> None:
        self._request, self._environ, self._shell = request, environ, shell
        self._recorded, self._key = recorded, stage_key(key)
        self._store = StageStore(
            choose_folder(request.stage_dir, node), request.stage_limit_mib << 20
        )
        self._source = Path(prefix)
        """What is staged."""
        self._digest = ""
        """Of what the node should have; empty if that is not known without looking."""
        self.unstaged = ""
        """Why there is no copy, and will be none."""
        self._stage: Stage | None = None
        self._copy: Copy | None = None
        self._changed = threading.Condition()
        self._order: StageOrder | None = None
        self._is_ordered = False
        self._beaten_s = time.monotonic()
        self._is_whole = False
        self._server: socket.socket | None = None
        self._peers = 0

    @property
    def state(self) -> str:
        """`whole` or `part`, as in `Hello`; empty if there will be no copy."""
        return "" if self.unstaged else "whole" if self._is_whole else "part"

    @property
    def copy(self) -> Path | None:
        """The copy, once it is whole."""
        return self._stage.path if self._is_whole and self._stage else None

    @property
    def mount(self) -> tuple[str, str] | None:
        """The copy of an environment, and where it belongs."""
        if self.copy is None or self._request.image:
            return None
        return str(self.copy), str(self._source)

    # --- before the agent connects --------------------------------------------------------------

    async def look(self) -> None:
        """Find out whether the copy is here already."""
        await _in_thread(self._look)

    def _look(self) -> None:
        try:
            self._store.prepare()
            self._digest = self._find_image() if self._request.image else self._find_environment()
            if stage := self._store.find(self._digest):
                self._stage, self._copy = stage, Copy(stage)
                self._is_whole = not stage.missing
        except Exception as error:  # noqa: BLE001  likewise
            self.unstaged = _tell(error)

    def _find_environment(self) -> str:
        if str(self._source) in SYSTEM:
            raise UnavailableError(
                f"the ranks' Python is the system's ({self._source})",
                hint="stage a virtual or conda environment: --venv, --conda or --python",
            )
        user = ["--user"] if os.geteuid() else []
        tried = self._shell.run(["unshare", "--mount", *user, "true"])
        if tried.code:
            raise UnavailableError(
                f"the kernel allows no mount namespace here: {tried.stderr.strip()}",
                hint="ask the administrators to allow user namespaces, or use --image",
            )
        known = self._recorded
        return known.digest if known and known.prefix == str(self._source) else ""

    def _find_image(self) -> str:
        self._source, _ = find_image(self._request, self._environ, self._shell)
        return self._describe().digest

    def _describe(self) -> StageManifest:
        if not self._request.image:
            return describe_folder(self._source, self._beat)
        cache = cache_folder(self._request.image_cache, self._environ)
        return describe_file(self._source, named_by_content=self._source.parent == cache)

    # --- copying --------------------------------------------------------------------------------

    def order(self, order: StageOrder) -> None:
        """Take an order, the first one or a better one."""
        with self._changed:
            self._order, self._is_ordered = order, True
            self._beaten_s = time.monotonic()
            self._changed.notify_all()

    async def fill(self) -> Staged:
        """Follow orders until there is a copy; return how that went."""
        damaged = len(self._copy.lacking) if self._copy else 0
        work = asyncio.ensure_future(_in_thread(self._work))
        while not work.done():
            await asyncio.wait([work], timeout=1.0)
            if self._is_ordered and time.monotonic() - self._beaten_s > STALL_S:
                self._fail(f"no data came for {STALL_S:g} s")
                break  # the thread may never return
        copied = self._copy.copied if self._copy else 0
        if self.unstaged:
            return Staged(error=self.unstaged, copied=copied)
        known = self._copy.stage.manifest.digest if self._copy else ""
        changed = bool(self._digest) and known != self._digest
        return Staged(copied=copied, repaired=damaged, changed=changed)

    def _work(self) -> None:
        try:
            copy = self._follow_orders()
            self._store.keep(copy.stage)
            with self._changed:
                self._is_whole = not self.unstaged
        except Exception as error:  # noqa: BLE001  whatever it is, the run goes on without a copy
            self._fail(_tell(error))
            if self._stage is not None:
                self._stage.discard()

    def _follow_orders(self) -> Copy:
        order, patience_s = self._take_order(None), _ORDER_S
        while order and order.sources:
            try:
                return self._fetch(order)
            except (OSError, WireError) as error:
                failure = error
            order = self._take_order(patience_s)
            if order is None:
                raise StalledError(_tell(failure))
        copy = self._open(self._describe())
        read_all(self._source, copy, self._beat)
        return copy

    def _take_order(self, patience_s: float | None) -> StageOrder | None:
        with self._changed:
            self._changed.wait_for(lambda: self._order is not None, patience_s)
            order, self._order = self._order, None
            return order

    def _fetch(self, order: StageOrder) -> Copy:
        failure: OSError | WireError = ConnectionError("no node can be reached")
        for _ in range(_ROUNDS):
            for address, port in order.sources:
                if self._order is not None:
                    raise failure  # there is a better one
                try:
                    return fetch((str(address), int(port)), self._key, self._open, self._beat)
                except (OSError, WireError) as error:
                    failure = error
            time.sleep(_PAUSE_S)
        raise failure

    def _open(self, manifest: StageManifest) -> Copy:
        """Return this node's copy, whole or not."""
        copy = self._copy
        if copy is not None and copy.stage.manifest.digest == manifest.digest:
            return copy
        if copy is not None and copy.copied:
            raise StalledError(f"{self._source} was changed while it was copied")
        if self._stage is not None:
            self._stage.close()
        stage = self._store.find(manifest.digest) or self._store.create(manifest)
        with self._changed:
            self._stage, self._copy = stage, Copy(stage)
            self._changed.notify_all()
            return self._copy

    def _beat(self) -> None:
        self._beaten_s = time.monotonic()

    def _fail(self, why: str) -> None:
        with self._changed:
            self.unstaged = self.unstaged or why
            self._changed.notify_all()
        if self._copy is not None:
            self._copy.fail(why)

    # --- passing it on --------------------------------------------------------------------------

    def listen(self, address: str) -> int:
        """Serve other nodes at one of our addresses; return the port, or 0 if that fails."""
        try:
            self._server = socket.create_server((address, 0), backlog=_MOST_PEERS)
        except OSError:
            return 0
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()
        return int(self._server.getsockname()[1])

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                if server.fileno() < 0:
                    return
                time.sleep(_PAUSE_S)  # too many open files, most likely
                continue
            if self._peers >= _MOST_PEERS:
                peer.close()
                continue
            self._peers += 1
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        try:
            with peer:
                serve(peer, self._key, self._await_copy)
        except (OSError, EchelonError):
            pass  # it has what it wants, asks another node, or was none of ours
        finally:
            self._peers -= 1

    def _await_copy(self, timeout_s: float) -> Copy | None:
        with self._changed:
            self._changed.wait_for(lambda: self._copy or self.unstaged, timeout_s)
            if self.unstaged:
                raise StalledError(self.unstaged)
            return self._copy

    def close(self) -> None:
        """Stop serving, and release the copy: nothing uses it any more."""
        if self._server is not None:
            self._server.close()
        self._fail("the node has left")
        if self._stage is not None:
            self._stage.close()


def choose_folder(named: str, node: str) -> Path:
    """Return the folder of the copies on a node. Pure, apart from the user's id."""
    if not named:
        return Path(f"/var/tmp/echelon-stage-{os.geteuid()}")  # noqa: S108  checked before use
    return Path(named.replace("%N", node))


def _tell(error: Exception) -> str:
    if isinstance(error, EchelonError):
        return f"{error.message} (hint: {error.hint})" if error.hint else error.message
    internal = "" if isinstance(error, OSError) else f"internal error: {type(error).__name__}: "
    return f"{internal}{error}"


async def _in_thread(work: Callable[[], None]) -> None:
    """Call a function in a thread that ends with the process, unlike those of asyncio."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        try:
            work()
        finally:
            if not loop.is_closed():
                loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, daemon=True).start()
    await done.wait()
