"""A Slurm allocation that lasts as long as this process.

`salloc` holds the nodes while its command runs, and that command reads from a pipe to us. When this
process ends, for whatever reason, the pipe closes and the nodes are released.
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
    "queued and waiting": "waiting for nodes; press Ctrl-C to cancel",
    "Waiting for resource configuration": "waiting for the nodes to start",
}
"""Messages of salloc while it waits, and what we print then."""
_BATCH_ALONE = frozenset({"chdir", "output", "requeue", "no-requeue", "signal"})
"""Options of sbatch that salloc does not have."""


def render_salloc(spec: JobSpec) -> list[str]:
    """Return the salloc options of a request. Pure."""
    asked = replace(
        spec,
        name=spec.name or "echelon-doctor",
        time=spec.time or "00:10:00",
        wait_all_nodes=True,  # cloud nodes may still have to boot
    )
    options = {
        name: value for name, value in render_options(asked).items() if name not in _BATCH_ALONE
    }
    # Otherwise Slurm ends the whole allocation when a node dies, which is what we look for.
    return [
        "--no-kill",
        *(f"--{name}={value}" if value else f"--{name}" for name, value in options.items()),
    ]


@dataclass(slots=True)
class _Holder:
    """A running salloc."""

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
    """Hold the nodes of a request; yield the environment of a process in their allocation.

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
                f"Slurm refused the allocation: {_last_complaint(said)}",
                hint="list partitions and nodes with sinfo; request fewer or other nodes",
            )
        for mark in [mark for mark in untold if mark in said]:
            tell(untold.pop(mark))
        time.sleep(_GLANCE_S)


def parse_held(text: str) -> dict[str, str]:
    """Parse the variables of an allocation from what its command printed. Pure."""
    lines = (line.partition("=") for line in text.splitlines() if line.startswith("SLURM"))
    return {name: value for name, equals, value in lines if equals}


def _last_complaint(text: str) -> str:
    said = [line.strip() for line in text.splitlines() if line.startswith("salloc: error:")]
    lines: Sequence[str] = said or text.strip().splitlines() or ["no error message"]
    return lines[-1].removeprefix("salloc: error: ")


def _end(holder: _Holder) -> None:
    """Wait until salloc has released the nodes; interrupt it if it is still waiting for them."""
    if _READY not in holder.said():
        with contextlib.suppress(ProcessLookupError):
            os.kill(holder.pid, signal.SIGTERM)
    for number in (signal.SIGTERM, signal.SIGKILL):
        if holder.is_over() or wait_until(holder.is_over, timeout_s=_END_S):
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(holder.pid, number)
