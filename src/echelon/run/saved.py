"""What a script says it has saved: `$ECHELON_RUN_DIR/saved`, with a line `STEP PATH` for each save.

Scripts in other languages append the same line, with an absolute path. Standard library only: it
runs in the ranks' Python.
"""

import os
import re
from pathlib import Path

from echelon.core.records import open_regular
from echelon.errors import UsageError
from echelon.run.directory import RunDir

LAST = "ECHELON_LAST_SAVED"
"""The variable with the newest reported checkpoint, as ranks start: `STEP PATH`, or empty."""
_LINE = re.compile(r"([0-9]{1,18}) (/.+)")
_TAIL_BYTES = 65536
"""How much of the file is read, from its end: hundreds of lines."""
_MOST_TRIED = 20
"""How many of its lines are looked at for one whose checkpoint still exists."""


def saved(path: str | os.PathLike[str], *, step: int) -> None:
    """Tell Echelon that a checkpoint is complete: another job can continue from it.

    For scripts that save by their own means; `Checkpointer` and `Trainer` do it by themselves. Call
    it on one rank, once all of the checkpoint is written. Outside a run, it does nothing.

    Args:
        path: the checkpoint, a file or a folder.
        step: the number of steps that are complete in it.

    Raises:
        UsageError: there is no such file, or the step is negative.
    """
    whole = Path(path).absolute()
    if step < 0:
        raise UsageError(f"step={step} is negative", hint="pass the number of completed steps")
    if not whole.exists():
        raise UsageError(f"{whole} does not exist", hint="call echelon.saved() after the save")
    if "\n" in str(whole):
        raise UsageError(f"{str(whole)!r} has a line break", hint="save under another name")
    if folder := os.environ.get("ECHELON_RUN_DIR"):
        with RunDir(path=Path(folder)).saved.open("ab") as lines:
            lines.write(os.fsencode(f"{step} {whole}\n"))


def last_saved() -> Path | None:
    """Return the newest checkpoint that a script had reported when this one started, or None.

    Pass it to what your framework resumes from. Outside a run, it returns None.
    """
    found = find_last()
    return found[1] if found else None


def find_last() -> tuple[int, Path] | None:
    """Return the same with its step.

    A launcher that has looked passes its answer to all ranks: they must not find different ones.
    """
    if (line := os.environ.get(LAST)) is not None:
        match = _LINE.fullmatch(line)
        return (int(match[1]), Path(match[2])) if match else None
    folder = os.environ.get("ECHELON_RUN_DIR")
    return find_saved(RunDir(path=Path(folder))) if folder else None


def tell_last(run: RunDir) -> str:
    """Return the newest reported checkpoint as `LAST` holds it; empty if there is none."""
    found = find_saved(run)
    return f"{found[0]} {found[1]}" if found else ""


def newest_saved(run: RunDir) -> int:
    """Return the step of the newest reported checkpoint that still exists; -1 if there is none."""
    found = find_saved(run)
    return found[0] if found else -1


def find_saved(run: RunDir) -> tuple[int, Path] | None:
    """Return the newest reported checkpoint that still exists, with its step."""
    try:
        with open_regular(run.saved) as content:
            content.seek(max(0, os.fstat(content.fileno()).st_size - _TAIL_BYTES))
            text = os.fsdecode(content.read(_TAIL_BYTES))
    except OSError:
        return None
    for line in [*reversed(text.rstrip("\n").split("\n"))][:_MOST_TRIED]:
        match = _LINE.fullmatch(line)
        try:
            if match and os.path.lexists(match[2]):
                return int(match[1]), Path(match[2])
        except ValueError:  # a null byte
            continue
    return None
