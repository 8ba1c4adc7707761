"""Executes Echelon's commands on other hosts by ssh, and connects again after a lost connection."""

import contextlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from echelon.client.remote.register import forget_run, record_run
from echelon.clusters.ssh.call import FOLLOW, Call
from echelon.clusters.ssh.failures import CutError, UnreachableError
from echelon.clusters.ssh.host import Host, LostConnectionError, Talk
from echelon.clusters.ssh.site import Site, check_host, default_workdir
from echelon.clusters.ssh.stream import Stream, error_class
from echelon.core.notes import is_terminal, note
from echelon.core.shell import LocalShell
from echelon.core.units import format_bytes
from echelon.core.waiting import CLOCK, Clock
from echelon.errors import (
    ConflictError,
    EchelonError,
    MissingProgramError,
    NotFoundError,
    NotPermittedError,
    UnavailableError,
    UsageError,
)

if TYPE_CHECKING:
    from echelon.spec.merging import Merged

R = TypeVar("R")
_MOST_CUTS = 2
"""How often ssh may exit without a message before the first connection is made."""
_RETRY_S = (1, 2, 4, 8, 15)
"""Seconds before each attempt to connect; the last value is repeated."""
_PROGRESS_S = 5.0
"""Seconds between two notes about the progress of a transfer."""
_REFUSALS = (
    *(UnreachableError, MissingProgramError, UsageError, NotFoundError, ConflictError),
    NotPermittedError,
)
"""Errors after which nothing was queued."""
_TRIES = 6
"""How often a submission is repeated."""
_STEADY_S = 60
"""A connection that lasted longer ends a series of failed attempts."""


# --- which host -------------------------------------------------------------------------------


def make_site(request: "Merged", root: Path | None = None) -> Site | None:
    """Return the site of a request; None for this machine.

    Args:
        request: the request.
        root: the project's directory; None for the one around the current directory.
    """
    if not request.host:
        return None
    spec = request.spec
    python = spec.python or (f"{spec.venv}/bin/python" if spec.venv else "")
    workdir = request.workdir
    if not workdir and root is None:
        from echelon.client.code.code_listing import find_root  # noqa: PLC0415

        root, _ = find_root(Path.cwd(), None, LocalShell())
    workdir = workdir or default_workdir(root.name if root else "")
    return Site(
        host=check_host(request.host),
        workdir=workdir,
        python=python if python.startswith(("/", "~/")) else "",
        cluster=request.cluster,
    )


# --- commands on the host ---------------------------------------------------------------------


def open_host(site: Site) -> Host:
    """Return the login host of a site."""
    return Host(site, LocalShell(), os.environ)


def start(
    site: Site, argv: Sequence[str], *, attached: bool = False, patience_s: float = 120.0
) -> Talk:
    """Start a command on a site's host; its output is received as messages.

    Args:
        site: where to execute the command.
        argv: the words of the command.
        attached: end it there when the connection ends,
        patience_s: or if no sign of life has come for so long.
    """
    size = shutil.get_terminal_size()
    talk = open_host(site).start(
        Call(
            argv=tuple(argv),
            folder=site.workdir,
            terminal=is_terminal(),
            columns=size.columns,
            lines=size.lines,
            attached=attached,
            patience_s=patience_s,
        )
    )
    if attached:
        talk.keep_alive()
    return talk


@contextlib.contextmanager
def exchange(site: Site, request: str) -> Iterator[Stream]:
    """Start a command that exchanges files, and yield the stream to it."""
    call = Call(argv=(request,), folder=site.workdir, prints_output=False)
    with open_host(site).start(call) as talk, talk.stream() as stream:
        yield stream


def ask(site: Site, argv: Sequence[str], keys: Collection[str] = ()) -> dict[str, Any]:
    """Execute a command that prints a JSON object on a site's host, and return the object.

    Args:
        site: where to execute the command.
        argv: the words of the command.
        keys: required keys of the object; without any, the output may also be null.

    Raises:
        EchelonError: the command failed, or its output is not such an object.
    """
    found = ask_any(site, argv)
    if found is None and not keys:
        return {}
    if not isinstance(found, dict) or not found.keys() >= set(keys):
        raise unexpected(site, argv[0], found)
    return found


def ask_any(site: Site, argv: Sequence[str]) -> Any:
    """Execute a command that prints JSON on a site's host, and return the parsed value.

    Raises:
        EchelonError: the command failed, or its output is not JSON.
    """
    output = run_there(site, argv)
    try:
        return json.loads(output)
    except (ValueError, RecursionError) as error:
        raise unexpected(site, argv[0], output) from error


def unexpected(site: Site, command: str, answer: object) -> UnavailableError:
    """Return the error about an answer of an unexpected form."""
    return UnavailableError(
        f"unexpected answer from {site.host} to {command}: {str(answer)[:80]!r}",
        hint="use the same version of Echelon on both ends; try again",
    )


def run_there(site: Site, argv: Sequence[str]) -> str:
    """Execute a command on a site's host, and return its output.

    Raises:
        EchelonError: the command failed.
    """
    output: dict[str, list[str]] = {"out": [], "err": []}
    with start(site, argv) as talk:
        for kind, value in talk.output_parts():
            if kind == "end" and value:
                what = "".join(output["err"]).strip() or f"exit code {value}"
                hint = f"on the host: echelon {' '.join(argv)}"
                raise error_class(value)(what, hint=hint)
            output.get(kind, []).append(str(value))
    return "".join(output["out"])


# --- lost connections -------------------------------------------------------------------------


class Retries:
    """Decides whether to connect again after an error; the first connection must succeed."""

    def __init__(self, clock: Clock = CLOCK, most: float = math.inf) -> None:
        self.clock, self._most = clock, most
        self.connected, self._tries, self._cut = False, 0, 0
        self._began_s = clock.now_s()
        """When the last attempt to connect began."""

    def succeed(self) -> None:
        """Record that there was a connection."""
        self.connected, self._tries = True, 0

    def pause_s(self, error: EchelonError | OSError) -> float:
        """Return how long to wait before the next attempt.

        Raises:
            EchelonError: the first connection failed, or the host refuses a later one.
        """
        self._cut += isinstance(error, CutError)
        if isinstance(error, LostConnectionError):
            self.connected = True
        elif isinstance(error, CutError) and self._cut <= _MOST_CUTS:
            pass  # the lost connection was probably shared with an earlier command
        elif not isinstance(error, UnreachableError) or not self.connected:
            raise error
        if self._tries >= self._most:
            raise error
        now_s = self.clock.now_s()
        if now_s - self._began_s > _STEADY_S:
            self._tries = 0
        if self._tries == 0:
            note(f"{error}; connecting again")
        length_s = _RETRY_S[min(self._tries, len(_RETRY_S) - 1)]
        self._tries += 1
        self._began_s = now_s + length_s
        return length_s


def keep_trying(step: Callable[[], R], retries: Retries | None = None) -> R:
    """Repeat a step after each lost connection; the first connection must succeed.

    Raises:
        EchelonError: the first connection failed, or the host refuses a later one.
    """
    retries = retries or Retries()
    while True:
        try:
            return step()
        except EchelonError as error:
            retries.clock.sleep(retries.pause_s(error))


def submit_once(
    run_id: str, root: Path, site: Site, step: Callable[[], R], *, sweep: bool = False
) -> R:
    """Record a run, and submit it to a host; submit it again after a lost connection.

    Args:
        run_id: the run's id. With it, the host finds what an earlier attempt has queued.
        root: the project's directory.
        site: the host.
        step: submits the run.
        sweep: whether it is a sweep.

    Raises:
        LostConnectionError: it is not known whether the run is queued.
        EchelonError: the host refuses the run.
    """
    record_run(run_id, root, site, os.environ, sweep=sweep)  # first: the answer may be lost
    query, retries = f"echelon {'sweep ' if sweep else ''}status {run_id}", Retries(most=_TRIES)
    try:
        return keep_trying(step, retries)
    except KeyboardInterrupt:
        note(f"{run_id} may be queued nevertheless; see: {query}")
        raise
    except EchelonError as error:
        if retries.connected:
            raise LostConnectionError(
                f"the connection to {site.host} was lost, and it is not known whether {run_id} was "
                f"queued: {error.message}",
                hint=f"ask when the host can be reached again: {query}",
            ) from error
        if isinstance(error, _REFUSALS):
            forget_run(run_id, os.environ)
        raise


def follow_there(site: Site, wanted: Mapping[str, Any]) -> Generator[tuple[str, Any], None, None]:
    """Follow a run, and yield its output: `out` and `err` with text, `end` with the exit code.

    No line is lost or repeated after a lost connection: the host reports the position in the
    output, and lines are yielded once their position is known.

    Args:
        site: where the run is.
        wanted: the parameters of `follow_run`.

    Raises:
        EchelonError: the run cannot be followed; its class and hint are those of the host.
    """
    asked: dict[str, Any] = {"rank": [], "raw": False, "tail": None, "since": "", "begin": None}
    asked |= {"resubmit": False, "show": True, **wanted}
    retries = Retries()
    while True:
        waiting: list[tuple[str, str]] = []
        try:
            with start(site, [FOLLOW, json.dumps(asked)], attached=True) as talk:
                for kind, value in talk.output_parts():
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
            CLOCK.sleep(retries.pause_s(error))
        else:
            return


class ProgressNotes:
    """Prints the progress of a transfer from time to time."""

    def __init__(self) -> None:
        self._next_s = time.monotonic() + _PROGRESS_S

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _PROGRESS_S
            note(f"transferred {format_bytes(done)} of {format_bytes(total)}")
