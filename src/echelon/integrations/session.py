"""What all integrations share: steps are reported, and all ranks stop after the same one."""

import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import SupportsFloat

import torch.distributed as dist

from echelon.run.saved import saved
from echelon.run.tracker import keep_mlflow
from echelon.train.progress import Progress
from echelon.train.stopping import StopBarrier


class Session:
    """One training, from its first step in this process to its last."""

    def __init__(self, *, step: int, steps: float) -> None:
        """Begin a training.

        Args:
            step: how many steps were complete before.
            steps: how many there will be; infinity if nobody knows.
        """
        self._barrier = StopBarrier()
        self._length = int(steps) if math.isfinite(steps) and steps > 0 else 0
        folder = os.environ.get("ECHELON_RUN_DIR")
        self._progress = Progress(
            Path(folder) if folder else None,
            speaks=is_first(),
            epochs=1,
            length=self._length,
            unit="steps",
            quiet=True,
        )
        self._tracked = False
        self._progress.begin(step)
        self._barrier.open()
        self._barrier.begin(step)

    def reached(self, step: int) -> bool:
        """Report a step on every rank, and return whether all ranks stop after this one."""
        return self._barrier.reached(step)

    def log(self, step: int, metrics: Mapping[str, object]) -> None:
        """Record what was measured at a step; what is not a number is left out."""
        if not is_first():
            return  # reading a tensor would wait for the GPU
        if not self._tracked and (active := find_active_run()):
            self.track(active)
        numbers = {
            name: float(value)
            for name, value in metrics.items()
            if isinstance(value, SupportsFloat) and not isinstance(value, bool)
        }
        self._progress.update(step=step, epoch=0, done=step, means=numbers)

    def track(self, run_id: str) -> None:
        """Keep the id of the run in MLflow, for later ranks to continue it."""
        self._tracked = True
        try:
            keep_mlflow(run_id)
        except OSError as error:
            self._progress.tell(f"cannot keep the id of MLflow's run: {error}")

    def saved(self, path: Path, step: int) -> None:
        """Report a checkpoint, once all ranks have written their part. A collective."""
        if dist.is_available() and dist.is_initialized():
            dist.barrier()
        if is_first():
            try:
                saved(path, step=step)
            except OSError as error:  # a full disk must not end a training
                self._progress.tell(f"cannot report {path}: {error}")

    def close(self) -> None:
        """End the training in this process: signals have their own effects again."""
        self._barrier.close()
        self._progress.close()


def find_active_run() -> str:
    """Return the id of MLflow's run in this process; empty if there is none."""
    mlflow = sys.modules.get("mlflow")
    run = mlflow.active_run() if mlflow and hasattr(mlflow, "active_run") else None
    return str(run.info.run_id) if run else ""


def is_first() -> bool:
    """Tell whether this is the rank that reports."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank() == 0
    return os.environ.get("RANK", "0") == "0"
