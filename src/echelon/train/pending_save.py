"""A save that a thread writes while training continues, and that the process does not exit without.

A script may end right after its last `save`. Then the process waits for the thread, and fails if
the save failed: otherwise, the run would be COMPLETED although its last state is lost.
"""

import atexit
import os
import sys
import threading
from collections.abc import Callable

from echelon.train.checkpoints.manifest import CheckpointError


class PendingSave:
    """One save in a thread of its own.

    It refers to nothing else, so that memory of a Checkpointer that is no longer used can be freed.
    """

    def __init__(self, write: Callable[[], CheckpointError | None]) -> None:
        """Start the thread.

        Args:
            write: writes the checkpoint, and returns why it could not.
        """
        self._failed: CheckpointError | None = None
        # A daemon, because an exception has to end the process at once: rank 0 would wait for parts
        # of ranks that ended too.
        self._thread = threading.Thread(
            target=self._run, args=(write,), name="checkpoint", daemon=True
        )
        self._thread.start()
        atexit.register(self._finish)

    def _run(self, write: Callable[[], CheckpointError | None]) -> None:
        self._failed = write()

    def join(self) -> CheckpointError | None:
        """Wait for the thread, and return why the save failed."""
        self._thread.join()
        atexit.unregister(self._finish)
        return self._failed

    def _finish(self) -> None:
        """Have the process exit with 1 if the save failed, unless an exception ends it anyway."""
        if getattr(sys, "last_value", None) is not None:
            return
        try:
            if failed := self.join():
                raise failed
        except CheckpointError as error:
            sys.excepthook(type(error), error, error.__traceback__)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)  # Python ignores what is raised here
