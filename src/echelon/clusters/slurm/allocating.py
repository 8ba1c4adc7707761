"""A short allocation of Slurm nodes that ends with this process.

`salloc` keeps it while its command runs, and the command waits at the end of a pipe. However this
process ends, the pipe closes, the command exits, and the nodes are released.
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
# As a file, because <&12 is a syntax error in a plain sh.
_HOLD = f"env | grep '^SLURM'; echo '{_READY}'; read -r _ </dev/fd/"
_GLANCE_S = 0.05
_END_S = 10.0
_WAITS = {
    "queued and waiting": "waiting for nodes; press Ctrl-C to cancel",
    "Waiting for resource configuration": "waiting for the nodes to start",
}
"""Messages of salloc while it waits, and what the user is told."""
_BATCH_ALONE = frozenset({"chdir", "output", "requeue", "no-requeue", "signal"})
"""Options that only sbatch has."""


def render_salloc(spec: JobSpec) -> list[str]:
    """Return the options of salloc for the nodes of a request. Pure."""
    asked = replace(
        spec,
        name=spec.name or "echelon-doctor",
        time=spec.time or "00:10:00",
        wait_all_nodes=True,  # a cloud node that is still booting is not broken
    )
    options = {
        name: value for name, value in render_options(asked).items() if name not in _BATCH_ALONE
    }
    # Without --no-kill, Slurm ends the allocation when a node dies, which we want to detect.
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
    """Allocate the nodes of a request, and yield the environment of a process in the allocation.

    Raises:
        UsageError: Slurm rejects the request.
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
                f"Slurm does not allocate the nodes: {_last_complaint(said)}",
                hint="see what is available with sinfo; request fewer or other nodes",
            )
        for mark in [mark for mark in untold if mark in said]:
            tell(untold.pop(mark))
        time.sleep(_GLANCE_S)


def parse_held(text: str) -> dict[str, str]:
    """Return the variables of an allocation from the output of its command. Pure."""
    lines = (line.partition("=") for line in text.splitlines() if line.startswith("SLURM"))
    return {name: value for name, equals, value in lines if equals}


def _last_complaint(text: str) -> str:
    said = [line.strip() for line in text.splitlines() if line.startswith("salloc: error:")]
    lines: Sequence[str] = said or text.strip().splitlines() or ["no message"]
    return lines[-1].removeprefix("salloc: error: ")


def _end(holder: _Holder) -> None:
    """Wait until salloc has released the nodes; terminate it if it still waits for them."""
    if _READY not in holder.said():
        with contextlib.suppress(ProcessLookupError):
            os.kill(holder.pid, signal.SIGTERM)
    for number in (signal.SIGTERM, signal.SIGKILL):
        if holder.is_over() or wait_until(holder.is_over, timeout_s=_END_S):
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(holder.pid, number)
