"""Hugging Face's Trainer: `Trainer(…, callbacks=[EchelonCallback()])`.

    trainer.train(resume_from_checkpoint=echelon.last_saved())

The Trainer saves and loads; Echelon decides when all ranks stop, and knows what was saved.
"""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from echelon.integrations.session import Session
from echelon.train.stopping import StoppedRun


class EchelonCallback(TrainerCallback):
    """Stops all ranks after the same step, with a checkpoint, and reports steps and metrics.

    After such a stop, `train` raises `StoppedRun`, which exits the script like `sys.exit`: what
    follows must not run on a model that is only half trained.
    """

    def __init__(self) -> None:
        self._session: Session | None = None
        self._stopping = False

    def on_train_begin(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        **_: Any,
    ) -> None:
        self._session = Session(step=state.global_step, steps=state.max_steps)

    def on_step_end(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        control: TrainerControl,
        **_: Any,
    ) -> None:
        assert self._session is not None, "training has begun"
        if self._session.reached(state.global_step):
            self._stopping = control.should_save = control.should_training_stop = True
            control.should_evaluate = False  # there is little time

    def on_log(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        # It also logs evaluations without a training, and a summary after one.
        if self._session is not None and logs and "train_runtime" not in logs:
            self._session.log(state.global_step, logs)

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        **_: Any,
    ) -> None:
        if self._session is not None:
            path = Path(str(args.output_dir), f"checkpoint-{state.global_step}")
            self._session.saved(path, state.global_step)
        if self._stopping:  # at once, before the end of the epoch saves and evaluates again
            self._leave(state.global_step)

    def on_train_end(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        **_: Any,
    ) -> None:
        if self._stopping:
            self._leave(state.global_step)
        self._close()

    def _leave(self, step: int) -> None:
        self._close()
        raise StoppedRun(step)

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
