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
    made = f"{run.run_id}-{secrets.token_hex(4)}"
    try:
        with contextlib.suppress(FileExistsError):
            handle = os.open(run.tracker, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w") as file:
                file.write(f"{made}\n")
            return made
        with open_regular(run.tracker) as content:
            found = content.read(_MOST).decode(errors="replace").strip()
    except OSError:
        return run.run_id
    return found if _NAME.fullmatch(found) else run.run_id
