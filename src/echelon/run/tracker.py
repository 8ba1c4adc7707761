"""The name of a run for trackers such as W&B: one for all its restarts and jobs.

A run's id is unique in its folder only; a tracker's has to be unique in a project. So it gets some
random letters, once, and keeps them in the run directory. MLflow chooses an id itself; rank 0 keeps
it beside the name. Standard library only: it runs in the ranks' Python.
"""

import contextlib
import os
import re
import secrets
from pathlib import Path

from echelon.core.atomic_file import write_atomic
from echelon.core.records import open_regular
from echelon.run.directory import RunDir

_MOST = 200
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def keep_mlflow(run_id: str) -> None:
    """Keep the id of the run that MLflow made; later ranks continue it. Outside a run: nothing."""
    if folder := os.environ.get("ECHELON_RUN_DIR"):
        write_atomic(RunDir(path=Path(folder)).mlflow, f"{run_id}\n")


def find_mlflow(run: RunDir) -> str:
    """Return the id of the run in MLflow; empty if there is none."""
    return _read(run.mlflow)


def find_tracker(run: RunDir) -> str:
    """Return the run's name for trackers; make it up if there is none.

    Where the run directory cannot be used just now, it is the run's id.
    """
    try:
        if not run.tracker.exists():
            _make_up(run)
    except OSError:
        return run.run_id
    return _read(run.tracker) or run.run_id


def _read(path: Path) -> str:
    try:
        with open_regular(path) as content:
            found = content.read(_MOST).decode(errors="replace").strip()
    except OSError:
        return ""
    return found if _NAME.fullmatch(found) else ""


def _make_up(run: RunDir) -> None:
    """Write a name, whole at once: agents of all nodes do this at the same time."""
    part = run.tracker.with_name(f"tracker-{secrets.token_hex(8)}")
    part.write_text(f"{run.run_id}-{secrets.token_hex(4)}\n")
    try:
        with contextlib.suppress(FileExistsError):
            os.link(part, run.tracker)
    finally:
        part.unlink()
