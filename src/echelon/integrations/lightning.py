"""Lightning: `Trainer(…, callbacks=[EchelonCallback()])`.

    trainer.fit(model, ckpt_path=echelon.last_saved())

Lightning saves and loads; Echelon decides when all ranks stop, and knows what was saved.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import MLFlowLogger

from echelon.integrations.session import Session, is_first
from echelon.run.saved import last_saved
from echelon.train.stopping import StoppedRun


class EchelonCallback(Callback):
    """Stops all ranks after the same step, with a checkpoint, and reports steps and metrics.

    After such a stop, `fit` raises `StoppedRun`, which exits the script like `sys.exit`: the epoch
    is not marked as done, and what follows does not run on a model that is only half trained.
    """

    def __init__(self, *, every_n_steps: int = 500, folder: str | os.PathLike[str] = "") -> None:
        """Create the callback.

        Args:
            every_n_steps: save a checkpoint that often, besides when a stop is requested; 0: never.
                A run continues from these; ModelCheckpoint's own are not looked at.
            folder: directory for its checkpoints; by default one in the run's directory.
        """
        run = os.environ.get("ECHELON_RUN_DIR", "")
        self._every = every_n_steps
        self._folder = Path(folder or Path(run, "lightning")).absolute()
        self._session: Session | None = None
        self._step = 0
        last = last_saved()
        self._kept = last if last and last.parent == self._folder else None
        """The checkpoint that the next one replaces."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        self._step = trainer.global_step
        self._session = Session(step=self._step, steps=trainer.estimated_stepping_batches)
        for logger in trainer.loggers if is_first() else ():
            if isinstance(logger, MLFlowLogger) and logger.run_id:
                self._session.track(logger.run_id)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,  # noqa: ARG002
        outputs: Any,
        batch: Any,  # noqa: ARG002
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        if self._session is None or trainer.global_step == self._step:
            return  # gradients are accumulated
        self._step = step = trainer.global_step
        stop = self._session.reached(step)
        if is_first() and step % max(1, trainer.log_every_n_steps) == 0:
            self._session.log(step, _measure(trainer, outputs))
        if stop or (self._every and step % self._every == 0):
            self._save(self._session, trainer)
        if stop:
            raise StoppedRun(step)

    def _save(self, session: Session, trainer: Trainer) -> None:
        path = self._folder / f"step-{self._step}.ckpt"
        trainer.save_checkpoint(path)  # all ranks take part
        session.saved(path, self._step)
        if self._kept not in (None, path) and is_first():
            trainer.strategy.remove_checkpoint(self._kept)
        self._kept = path

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        self._close()

    def on_exception(
        self,
        trainer: Trainer,  # noqa: ARG002
        pl_module: LightningModule,  # noqa: ARG002
        exception: BaseException,  # noqa: ARG002
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def _measure(trainer: Trainer, outputs: Any) -> dict[str, float]:
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    found = {name: float(value) for name, value in trainer.logged_metrics.items()}
    if isinstance(loss, torch.Tensor):
        found["loss"] = float(loss)
    if trainer.optimizers:
        found["learning_rate"] = float(trainer.optimizers[0].param_groups[0]["lr"])
    return found
