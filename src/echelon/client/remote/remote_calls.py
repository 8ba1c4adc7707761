"""Runs on other hosts: where they are, and how to ask there, by ssh."""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from echelon.core.notes import is_terminal, note
from echelon.core.units import format_bytes
from echelon.core.waiting import CLOCK, Clock
from echelon.errors import EchelonError, UnavailableError

if TYPE_CHECKING:
    from echelon.clusters.ssh.host import Host, Talk
    from echelon.clusters.ssh.site import Site
    from echelon.spec.merging import Merged

R = TypeVar("R")
_MOST_CUTS = 2
"""How often ssh may exit without a message before the first connection is made."""
_RETRY_S = (1, 2, 4, 8, 15)
"""Seconds before the next attempt to connect; the last one again and again."""
_TELL_S = 5.0
"""Seconds between two lines about the progress of a transfer."""
_STEADY_S = 60
"""A connection that lasted so long is not counted among failed ones."""


# --- which host -------------------------------------------------------------------------------


def make_site(request: "Merged", folder: Path, script: Path | None) -> "Site | None":
    """Return where a request goes; None if that is this machine."""
    from echelon.client.code.code_listing import find_root  # noqa: PLC0415
    from echelon.clusters.ssh.site import Site, check_host, default_workdir  # noqa: PLC0415
    from echelon.core.shell import LocalShell  # noqa: PLC0415

    if not request.host:
        return None
    spec = request.spec
    python = spec.python or (f"{spec.venv}/bin/python" if spec.venv else "")
    workdir = request.workdir
    if not workdir:
        root, _ = find_root(folder, script, LocalShell())
        workdir = default_workdir(root.name)
    return Site(
        host=check_host(request.host),
        workdir=workdir,
        python=python if python.startswith(("/", "~/")) else "",
        cluster=request.cluster,
    )


# --- asking there -----------------------------------------------------------------------------


def open_host(site: "Site") -> "Host":
    """Return the login host of a site."""
    from echelon.clusters.ssh.host import Host  # noqa: PLC0415
    from echelon.core.shell import LocalShell  # noqa: PLC0415

    return Host(site, LocalShell(), os.environ)


def start(site: "Site", argv: Sequence[str], *, attached: bool = False) -> "Talk":
    """Start a command on a site's host; what it prints comes in frames."""
    from echelon.clusters.ssh.call import Call  # noqa: PLC0415

    size = shutil.get_terminal_size()
    return open_host(site).start(
        Call(
            argv=tuple(argv),
            folder=site.workdir,
            terminal=is_terminal(),
            columns=size.columns,
            lines=size.lines,
            attached=attached,
        )
    )


@contextlib.contextmanager
def talking(talk: "Talk") -> Iterator["Talk"]:
    """End a conversation when the block does."""
    try:
        yield talk
    except BaseException:
        talk.close()
        raise
    talk.finish()


def ask(site: "Site", argv: Sequence[str], keys: Collection[str] = ()) -> dict[str, Any]:
    """Execute a command that prints a JSON object on a site's host, and return that.

    Args:
        site: where it is executed.
        argv: the command's words.
        keys: what the object has to have; without any, it may also be null.

    Raises:
        EchelonError: it failed there.
    """
    found = ask_any(site, argv)
    if found is None and not keys:
        return {}
    if not isinstance(found, dict) or not found.keys() >= set(keys):
        raise unexpected(site, argv[0], found)
    return found


def ask_any(site: "Site", argv: Sequence[str]) -> Any:
    """Execute a command that prints JSON on a site's host, and return that.

    Raises:
        EchelonError: it failed there.
    """
    said = run_there(site, argv)
    try:
        return json.loads(said)
    except (ValueError, RecursionError) as error:
        raise unexpected(site, argv[0], said) from error


def unexpected(site: "Site", command: str, said: object) -> UnavailableError:
    """Return the error about an answer that has another form than expected."""
    return UnavailableError(
        f"unexpected answer from {site.host} to {command}: {str(said)[:80]!r}",
        hint="use the same version of Echelon on both ends; try again",
    )


def run_there(site: "Site", argv: Sequence[str]) -> str:
    """Execute a command on a site's host, and return what it prints.

    Raises:
        EchelonError: it failed there.
    """
    said: dict[str, list[str]] = {"out": [], "err": []}
    with talking(start(site, argv)) as talk:
        for kind, value in talk.frames():
            if kind == "end" and value:
                what = "".join(said["err"]).strip() or f"exit code {value}"
                raise EchelonError(what, hint=f"on the host: echelon {' '.join(argv)}")
            said.get(kind, []).append(str(value))
    return "".join(said["out"])


# --- connections that break -------------------------------------------------------------------


class Retries:
    """Decides whether to connect again; the first connection must come about."""

    def __init__(self, clock: Clock = CLOCK) -> None:
        self._clock = clock
        self._connected, self._tries, self._cut = False, 0, 0
        self._began_s = clock.now_s()
        """When the current connection was attempted."""

    def succeed(self) -> None:
        """Note that there was a connection."""
        self._connected, self._tries = True, 0

    def pause_s(self, error: EchelonError | OSError) -> float:
        """Return how long to wait before the next attempt.

        Raises:
            EchelonError: there was no connection at the start, or the host refuses a later one.
        """
        from echelon.clusters.ssh.failures import CutError, UnreachableError  # noqa: PLC0415
        from echelon.clusters.ssh.host import LostConnectionError  # noqa: PLC0415

        self._cut += isinstance(error, CutError)
        if isinstance(error, LostConnectionError):
            self._connected = True
        elif isinstance(error, CutError) and self._cut <= _MOST_CUTS:
            pass  # most likely that of an earlier command, which this one shared
        elif not isinstance(error, UnreachableError) or not self._connected:
            raise error
        now_s = self._clock.now_s()
        if now_s - self._began_s > _STEADY_S:
            self._tries = 0
        if self._tries == 0:
            note(f"{error}; connecting again")
        length_s = _RETRY_S[min(self._tries, len(_RETRY_S) - 1)]
        self._tries += 1
        self._began_s = now_s + length_s
        return length_s


def keep_trying(step: Callable[[], R], clock: Clock = CLOCK) -> R:
    """Repeat a step whose connection breaks, until it ends by itself; the first one must connect.

    Raises:
        EchelonError: there is no connection at the start, or the host refuses a later one.
    """
    retries = Retries(clock)
    while True:
        try:
            return step()
        except EchelonError as error:
            clock.sleep(retries.pause_s(error))


def follow_there(
    site: "Site", wanted: Mapping[str, Any], clock: Clock = CLOCK
) -> Generator[tuple[str, Any], None, None]:
    """Follow a run, and yield what it prints: `out` and `err` with text, `end` with its exit code.

    No line is lost or doubled if the connection breaks: the host says how far the output was
    printed, and lines are yielded once that is known.

    Args:
        site: where the run is.
        wanted: the parameters of `follow_run`.
        clock: the clock.
    """
    from echelon.clusters.ssh.call import FOLLOW  # noqa: PLC0415

    asked: dict[str, Any] = {"rank": [], "raw": False, "tail": None, "since": "", "begin": None}
    asked |= {"resubmit": False, "show": True, **wanted}
    retries = Retries(clock)
    while True:
        waiting: list[tuple[str, str]] = []
        try:
            with talking(start(site, [FOLLOW, json.dumps(asked)], attached=True)) as talk:
                for kind, value in talk.frames():
                    if kind in ("out", "err"):
                        waiting.append((kind, value))
                        continue
                    yield from waiting
                    waiting.clear()
                    if kind == "at":
                        asked["begin"] = value
                    elif kind == "end":
                        yield kind, int(value)
                        return
        except EchelonError as error:
            clock.sleep(retries.pause_s(error))
        else:
            return


class Progress:
    """Tells how far a transfer is, now and then."""

    def __init__(self) -> None:
        self._next_s = time.monotonic() + _TELL_S

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _TELL_S
            note(f"transferred {format_bytes(done)} of {format_bytes(total)}")
