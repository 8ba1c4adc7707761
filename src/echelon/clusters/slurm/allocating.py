"""Nodes of Slurm for a moment: an allocation that is ours for as long as we live.

`salloc` holds it while a command of its own runs, and that one waits for us at the end of a pipe:
however we go, the pipe closes, the command ends, and the nodes are free.
"""

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from echelon.clusters.slurm.sbatch import render_options
from echelon.core.shell import Shell
from echelon.core.slurm import scrub
from echelon.core.waiting import wait_until
from echelon.errors import UsageError
from echelon.spec.job_spec import JobSpec

_READY = "echelon: ready"
# As a file: to a plain sh, <&12 is a syntax error.
_HOLD = f"env | grep '^SLURM'; echo '{_READY}'; read -r _ </dev/fd/"
_GLANCE_S = 0.05
_END_S = 10.0
_WAITS = {
    "queued and waiting": "waiting for the nodes; Ctrl-C gives up",
    "Waiting for resource configuration": "waiting for the nodes to start",
}
"""What salloc says while it waits, and what we say then."""
_BATCH_ALONE = frozenset({"chdir", "output", "requeue", "no-requeue", "signal"})
"""Options that sbatch has, and which mean nothing here."""


def render_salloc(spec: JobSpec) -> list[str]:
    """Return the options that ask for a request's nodes. Pure."""
    asked = replace(
        spec,
        name=spec.name or "echelon-doctor",
        time=spec.time or "00:10:00",
        wait_all_nodes=True,  # nodes of a cloud start only now: one that starts is not broken
    )
    options = {
        name: value for name, value in render_options(asked).items() if name not in _BATCH_ALONE
    }
    # Else Slurm ends all of it when one node dies, and that is what we look for.
    return [
        "--no-kill",
        *(f"--{name}={value}" if value else f"--{name}" for name, value in options.items()),
    ]


@dataclass(slots=True)
class _Holder:
    """A salloc that was started."""

    pid: int
    log: Path
    code: int | None = None

    def is_over(self) -> bool:
        if self.code is None:
            gone, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if gone else None
        return self.code is not None

    def said(self) -> str:
        return self.log.read_text(errors="replace")


@contextlib.contextmanager
def hold_nodes(
    spec: JobSpec, shell: Shell, environ: Mapping[str, str], *, tell: Callable[[str], None]
) -> Iterator[dict[str, str]]:
    """Have the nodes of a request; the variables are those of a process in its allocation.

    Raises:
        UsageError: Slurm refuses the request.
    """
    scratch = Path(tempfile.mkdtemp(prefix="echelon-salloc-"))
    read_end, write_end = os.pipe()
    clean = scrub(environ)
    try:
        argv = ["salloc", *render_salloc(spec), "sh", "-c", f"{_HOLD}{read_end}"]
        pid = shell.start(argv, log=scratch / "log", env=clean, keep=[read_end])
        holder = _Holder(pid=pid, log=scratch / "log")
        os.close(read_end)
        read_end = -1
        try:
            _await_nodes(holder, tell)
            yield {**clean, **parse_held(holder.said())}
        finally:
            os.close(write_end)
            write_end = -1
            _end(holder)
    finally:
        for end in (read_end, write_end):
            if end >= 0:
                os.close(end)
        shutil.rmtree(scratch, ignore_errors=True)


def _await_nodes(holder: _Holder, tell: Callable[[str], None]) -> None:
    untold = dict(_WAITS)
    while _READY not in (said := holder.said()):
        if holder.is_over():
            raise UsageError(
                f"Slurm gives no nodes: {_last_complaint(said)}",
                hint="sinfo shows what there is; ask for less, or for other nodes",
            )
        for mark in [mark for mark in untold if mark in said]:
            tell(untold.pop(mark))
        time.sleep(_GLANCE_S)


def parse_held(text: str) -> dict[str, str]:
    """Return the variables of an allocation, of what its command printed. Pure."""
    lines = (line.partition("=") for line in text.splitlines() if line.startswith("SLURM"))
    return {name: value for name, equals, value in lines if equals}


def _last_complaint(text: str) -> str:
    said = [line.strip() for line in text.splitlines() if line.startswith("salloc: error:")]
    lines: Sequence[str] = said or text.strip().splitlines() or ["it said nothing"]
    return lines[-1].removeprefix("salloc: error: ")


def _end(holder: _Holder) -> None:
    """Wait until it has given the nodes back: asked, where it still waits for them."""
    if _READY not in holder.said():
        with contextlib.suppress(ProcessLookupError):
            os.kill(holder.pid, signal.SIGTERM)
    for number in (signal.SIGTERM, signal.SIGKILL):
        if holder.is_over() or wait_until(holder.is_over, timeout_s=_END_S):
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(holder.pid, number)
