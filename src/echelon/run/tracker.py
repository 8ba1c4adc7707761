"""The name of a run for trackers such as W&B: one for all its restarts and jobs.

A run's id is unique in its folder only; a tracker's has to be unique in a project. So it gets some
random letters, once, and keeps them in the run directory.
"""

import contextlib
import os
import re
import secrets

from echelon.core.records import open_regular
from echelon.run.directory import RunDir

_MOST = 200
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def find_tracker(run: RunDir) -> str:
    """Return the run's name for trackers; make it up if there is none.

    Where the run directory cannot be used just now, it is the run's id.
    """
    try:
        if not run.tracker.exists():
            _make_up(run)
        with open_regular(run.tracker) as content:
            found = content.read(_MOST).decode(errors="replace").strip()
    except OSError:
        return run.run_id
    return found if _NAME.fullmatch(found) else run.run_id


def _make_up(run: RunDir) -> None:
    """Write a name, whole at once: agents of all nodes do this at the same time."""
    part = run.tracker.with_name(f"tracker-{secrets.token_hex(8)}")
    part.write_text(f"{run.run_id}-{secrets.token_hex(4)}\n")
    try:
        with contextlib.suppress(FileExistsError):
            os.link(part, run.tracker)
    finally:
        part.unlink()
