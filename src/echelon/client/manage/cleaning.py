"""Measures the disk usage of runs, and chooses the runs to remove."""

from collections.abc import Sequence
from dataclasses import replace

from echelon.core.atomic_file import remove_tree
from echelon.core.files import walk
from echelon.core.frozen import frozen
from echelon.core.jobs import Job
from echelon.core.units import counted, render_time
from echelon.errors import UnavailableError
from echelon.run.directory import RunDir
from echelon.run.history import OWN_FILES, newest_checkpoint

_CODE = frozenset({"code", "code.json", "launcher"})
"""Entries of a run directory that count as code."""


@frozen
class Holding:
    """The disk usage of a run, and whether it may be removed."""

    run: RunDir
    state: str
    over: bool
    """Whether its last job has ended."""
    written_s: float
    """When the run last wrote something."""
    code: int
    """Bytes of the code and the launcher; a file that several runs share is split among them."""
    checkpoints: int
    """Bytes of checkpoints and other files that the script wrote."""
    logs: int
    """Bytes of logs, events and measurements."""
    resumable: bool
    """Whether the run has files from which it could continue."""
    kept: str = ""
    """Why the run is kept; empty if it is removed."""

    @property
    def size(self) -> int:
        return self.code + self.checkpoints + self.logs


def measure(run: RunDir, job: Job) -> Holding:
    """Return the disk usage of a run."""
    sizes = {"code": 0, "checkpoints": 0, "logs": 0}
    foreign, written_s = False, 0.0
    for entry in walk(run.path, on_error=lambda _error: None):
        top, _, inner = entry.path.partition("/")
        kind = "code" if top in _CODE else "logs" if top in OWN_FILES else "checkpoints"
        if entry.is_folder and inner:
            continue
        if not entry.is_folder:
            sizes[kind] += entry.status.st_size // max(1, entry.status.st_nlink)
        if kind == "checkpoints":
            foreign |= top != run.checkpoints.name or bool(sizes[kind])
        if kind != "code":
            written_s = max(written_s, entry.status.st_mtime)
    return Holding(
        run=run,
        state=job.state,
        over=job.over and job.state != "UNKNOWN",
        written_s=written_s,
        resumable=newest_checkpoint(run) >= 0 or foreign,
        code=sizes["code"],
        checkpoints=sizes["checkpoints"],
        logs=sizes["logs"],
    )


def choose(
    holdings: Sequence[Holding], *, keep: int, older_s: float, now_s: float, unfinished: bool
) -> list[Holding]:
    """Return runs, the oldest first, and set `kept` of those to keep. Pure.

    Args:
        holdings: the runs, the oldest first.
        keep: number of the newest runs to keep.
        older_s: keep runs that wrote something in this many seconds before `now_s`.
        now_s: the current time.
        unfinished: also remove runs that could be resumed from a checkpoint.
    """
    newest = holdings[len(holdings) - keep :] if keep else ()
    found = []
    for one in holdings:
        why = find_use(one, unfinished=unfinished)
        if not why and one in newest:
            why = f"one of the newest {keep}" if keep > 1 else "the newest"
        if not why and now_s - one.written_s < older_s:
            why = f"only {show_age(now_s - one.written_s)} old"
        found.append(replace(one, kept=why))
    return found


def show_age(seconds: float) -> str:
    """Format the time since a run wrote something."""
    days = int(seconds // 86400)
    return counted(days, "day") if days else render_time(seconds)


def find_use(one: Holding, *, unfinished: bool) -> str:
    """Return why a run must be kept at any age; empty if it may be removed. Pure."""
    if not one.over and one.state != "UNSUBMITTED":
        return "its state is unknown" if one.state == "UNKNOWN" else "active"
    if one.state != "COMPLETED" and one.resumable and not unfinished:
        return "unfinished, with a checkpoint"
    return ""


def remove(holdings: Sequence[Holding]) -> None:
    """Remove runs.

    Raises:
        UnavailableError: a run directory still exists.
    """
    for one in holdings:
        remove_tree(one.run.path)
    if left := [one.run.path for one in holdings if one.run.path.exists()]:
        raise UnavailableError(
            f"{counted(len(left), 'run')} could not be removed completely: {left[0]}",
            hint=f"check who owns its files: ls -la {left[0]}",
        )
