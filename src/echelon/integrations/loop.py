"""Any training loop, with Accelerate or without: it counts its steps, and says when to save."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Self, SupportsFloat

from echelon.errors import UsageError
from echelon.integrations.session import Session, is_first
from echelon.run.saved import find_last
from echelon.train.stopping import StoppedRun


class Loop:
    """The steps of a training, from the newest checkpoint of the run on. See `loop`."""

    def __init__(self, steps: int, *, save_every: int = 0, keep: int = 2) -> None:
        run = os.environ.get("ECHELON_RUN_DIR", "")
        self._steps, self._save_every, self._keep = steps, save_every, keep
        self._folder = Path(run or ".", "loop").absolute()
        found = find_last()
        self.checkpoint: Path | None = found[1] if found else None
        """The checkpoint to load before the first step; None if the training begins."""
        self.step = found[0] if found else 0
        """How many steps are complete."""
        own = self.checkpoint and self.checkpoint.parent == self._folder
        self._kept = [self.checkpoint] if self.checkpoint and own else []
        """Checkpoints of this training, the oldest first."""
        self._session: Session | None = None
        self._counted = self._stop = self._saves = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._session is not None:
            self._report(self._session)  # the loop was left after a save
        self._close()

    def __iter__(self) -> Iterator[int]:
        """Yield the number of each step, counted from 0.

        Raises:
            StoppedRun: a stop was requested; what the body saved was reported before.
        """
        self._session = session = Session(step=self.step, steps=self._steps)
        while self.step < self._steps:
            self._counted = self._saves = False
            yield self.step
            if not self._counted:
                self._count(session)
                self._saves = False  # nobody asked
            self._report(session)
            if self._stop:
                self._close()
                raise StoppedRun(self.step)
        self._close()

    def _report(self, session: Session) -> None:
        """Report the checkpoint of this step, if there is one, and remove what it replaces."""
        if not self._saves:
            return
        self._saves = False
        session.saved(self.path, self.step)
        self._kept = [one for one in self._kept if one != self.path] + [self.path]
        while self._keep and len(self._kept) > self._keep:
            oldest = self._kept.pop(0)
            if is_first():
                _remove(oldest)

    @property
    def save_here(self) -> bool:
        """Whether to save at `path` now: at the end of the body, once, on every rank."""
        if self._session is None:
            raise UsageError(
                "no step has begun", hint="ask for save_here inside `for step in loop`"
            )
        if not self._counted:
            self._count(self._session)
        return self._saves

    def _count(self, session: Session) -> None:
        """Count the step as complete, and find out whether all ranks stop after it."""
        self._counted = True
        self.step += 1
        self._stop = session.reached(self.step)
        every = self._save_every and self.step % self._save_every == 0
        self._saves = bool(self._stop or every or self.step == self._steps)

    @property
    def path(self) -> Path:
        """Where to save: a name for each step, in the run's directory."""
        return self._folder / f"step-{self.step}"

    def log(self, **metrics: SupportsFloat) -> None:
        """Record metrics of this step, such as `loss` and `learning_rate`, on rank 0."""
        if self._session is not None:
            self._session.log(self.step + (not self._counted), metrics)

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def loop(steps: int, *, save_every: int = 0, keep: int = 2) -> Loop:
    """Return the steps of a training that stops with all its ranks, saves and resumes.

        with echelon.loop(10_000, save_every=500) as loop:
            if loop.checkpoint:
                accelerator.load_state(loop.checkpoint)
            for step in loop:
                loss = train_step(step)
                loop.log(loss=loss)
                if loop.save_here:
                    accelerator.save_state(loop.path)

    Args:
        steps: how many there are in all.
        save_every: save that often, besides at the end and when a stop is requested; 0: never.
        keep: how many checkpoints to keep; 0: all.
    """
    return Loop(steps, save_every=save_every, keep=keep)
