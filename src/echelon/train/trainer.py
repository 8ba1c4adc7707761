"""The training loop. It reads from top to bottom, and its parts can be used on their own.

You provide a model, a loss or a `train_step`, an optimizer and data. The Trainer adds DDP over all
ranks, the gradient of the mean over the global batch, checkpoints, and mid-epoch resume that sees
each sample exactly once. examples/plain_loop does the same without the Trainer.
"""

import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from echelon.core.units import render_time
from echelon.errors import UsageError
from echelon.train.callbacks import Callback, collect_calls
from echelon.train.checkpoint import Checkpointer
from echelon.train.checkpoint_files import Checkpoint
from echelon.train.learner import Learner
from echelon.train.loading import Source
from echelon.train.metrics import Metrics, Step, Sums
from echelon.train.pace import Pace
from echelon.train.process_group import Group
from echelon.train.progress import Progress
from echelon.train.randomness import be_deterministic
from echelon.train.result import Result, peak_memory_mib
from echelon.train.sources import open_source
from echelon.train.step import Objective, Transform, objective_of_loss, objective_of_step
from echelon.train.stopping import StopBarrier, StoppedRun
from echelon.train.trackers import TENSORBOARD, check_loggers
from echelon.train.validation import evaluate, measure_of_loss

_OLD_STEPS = {"auto": "auto", "captured": "always", "eager": "never"}
"""Values of `step`, the former name of `capture`."""


class Trainer:
    """Trains a model on all ranks of a run; see `Trainer.__init__` for its options.

    Pass functions for the loss and metrics, or override `train_step` and `measure`.
    """

    def __init__(
        self,
        world: Group,
        model: nn.Module,
        *,
        # the training
        optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
        scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
        schedule_steps: bool = False,
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
        metrics: Metrics | None = None,
        train_step: Step | None = None,
        measure: Step | None = None,
        epochs: int = 1,
        max_steps: int | None = None,
        clip_norm: float | None = None,
        seed: int = 0,
        # data
        global_batch: int = 64,
        eval_batch: int = 1000,
        drop_last: bool = False,
        workers: int = 0,
        transform: Transform | None = None,
        # precision and capture
        precision: str = "auto",
        accumulate: int = 1,
        capture: str = "auto",
        compiled: bool | None = None,
        ddp: bool | None = None,
        shard: str = "none",
        shard_size: int | None = None,
        shard_layers: Sequence[str | type] | None = None,
        recompute: bool = False,
        deterministic: bool = False,
        exact_layers: bool = False,
        # checkpoints
        checkpoints: Checkpointer | Path | None = None,
        save_every: int = 0,
        # logging
        log_every: int = 10,
        log_dir: Path | None = None,
        loggers: Sequence[str] = (TENSORBOARD,),
        quiet: bool = False,
        callbacks: Sequence[Callback] = (),
        # old names
        step: str | None = None,
    ) -> None:
        """Set up the training; `fit` runs it.

        Training:
            world: the result of `echelon.init()`.
            model: moved to the rank's device, and with several ranks wrapped in DDP or sharded.
            optimizer: creates the optimizer from the model's parameters.
            scheduler: creates the scheduler from the optimizer; stepped after every epoch.
            schedule_steps: step the scheduler after every step instead.
            loss: mean loss of outputs and targets, for data of (inputs, targets).
            metrics: metrics to compute besides `loss`. Validation of a classifier adds accuracy.
            train_step: replaces `loss` for anything else: takes model and batch, returns sums over
                the batch's samples. `loss` is minimized, `count` is the number of samples.
            measure: the same for validation.
            epochs: passes over the data.
            max_steps: stop after this many steps if that comes first.
            clip_norm: maximum norm of the gradient.
            seed: determines the order of samples, and all random numbers not seeded elsewhere.

        Data:
            global_batch: samples per step over all ranks.
            eval_batch: samples per validation batch on each rank.
            drop_last: skip the last batch of an epoch if it is smaller.
            workers: loader processes per rank.
            transform: prepares a batch on the device.

        Precision and capture:
            precision: `fp32`, `bf16`, `fp16`, or `auto` for bf16 where the GPU supports it.
            accumulate: split a rank's batch into this many parts to save memory.
            capture: record the step as a CUDA graph: `always`, `never`, or `auto`, which does so
                on a GPU, with several ranks only if the data are tensors that fit there.
            compiled: use torch.compile for the captured step, or the layers of a sharded model;
                None does so for a captured step if the remaining time makes it worthwhile.
            ddp: wrap the model in DDP; None does so if there are several ranks.
            shard: `fsdp` shards the model over all ranks, `hsdp` over the ranks of each node; see
                docs/training.md.
            shard_size: with hsdp, ranks that share one copy of the model instead.
            shard_layers: layers to shard and recompute one by one, by class or name; None finds the
                model's repeated blocks.
            recompute: compute these layers again in the backward pass, to save memory.
            deterministic: use algorithms with bitwise reproducible results, also on a GPU.
            exact_layers: compute BatchNorm over the global batch and dropout per sample, so that
                results do not depend on the number of ranks (docs/exactness.md).

        Checkpoints:
            checkpoints: folder or Checkpointer; None uses the run's folder, if there is a run.
            save_every: steps between checkpoints, in addition to the one after each epoch; 0 saves
                only after epochs.

        Logging:
            log_every: steps between two progress lines.
            log_dir: folder for metrics.jsonl and TensorBoard files; None uses the run's folder.
            loggers: where else metrics go: `tensorboard`, `wandb`, `mlflow`. Restarts and later
                jobs continue the same curve.
            quiet: show no progress bar and no lines about steps.
            callbacks: your own objects to call during training.

        Deprecated:
            step: the former name of `capture`, with the values `captured` and `eager`.
        """
        if step is not None:
            warnings.warn(
                "Trainer(step=...) is now capture='always', 'never' or 'auto'",
                DeprecationWarning,
                stacklevel=2,
            )
            capture = _OLD_STEPS.get(step, step)
        if log_every < 1:
            raise UsageError(f"log_every={log_every}", hint="use 1 or more")
        check_loggers(loggers)
        if deterministic:
            be_deterministic(world.device)
        self.world, self.epochs, self.max_steps = world, epochs, max_steps
        self._learner = Learner(
            world,
            model,
            self._objective(loss, metrics, train_step),
            optimizer=optimizer,
            scheduler=scheduler,
            schedule_steps=schedule_steps,
            transform=transform,
            clip_norm=clip_norm,
            accumulate=accumulate,
            precision=precision,
            capture=capture,
            compiled=False if deterministic and compiled is None else compiled,
            ddp=ddp,
            shard=shard,
            shard_size=shard_size,
            shard_layers=shard_layers,
            recompute=recompute,
            exact_layers=exact_layers,
            seed=seed,
        )
        self.module, self.model = self._learner.module, self._learner.model
        self.optimizer, self.scheduler = self._learner.optimizer, self._learner.scheduler
        if measure is None:
            measure = measure_of_loss(loss, metrics) if loss else train_step or self.measure
        self._measure = measure
        self._global_batch, self._eval_batch, self._drop_last = global_batch, eval_batch, drop_last
        self._seed, self._workers, self._save_every = seed, workers, save_every
        self._log_every, self._loggers, self._quiet = log_every, loggers, quiet
        self._calls = collect_calls(callbacks)
        run = os.environ.get("ECHELON_RUN_DIR")
        self._log_dir = log_dir or (Path(run) if run else None)
        if checkpoints is None and run:
            checkpoints = Path(run) / "checkpoints"
        self.checkpointer = (
            Checkpointer(checkpoints) if isinstance(checkpoints, Path) else checkpoints
        )
        self._reserved = False
        self._stop_barrier = StopBarrier()
        self._pace = Pace(self._stop_barrier, self._learner.peer_wait_s)
        self._progress: Progress | None = None
        self._source: Source | None = None
        """Set only while `fit` runs."""
        self.epoch = 0
        """The current epoch, from 0."""
        self._told: dict[str, float] = {}
        self._samples = 0
        self.indices: Sequence[int] | None = None
        """Indices of this rank's samples in the last step; None with your own loader."""

    @property
    def step(self) -> int:
        """Number of steps taken, over all epochs and restarts."""
        return self._learner.steps

    @property
    def done(self) -> int:
        """Samples of the current epoch consumed so far; with your own loader, batches."""
        return self._source.order.cursor if self._source else 0

    @property
    def data_wait(self) -> float:
        """Fraction of time that the loop waited for data, as of the last progress line."""
        return self._pace.data_wait

    @property
    def step_s(self) -> float:
        """Mean seconds per step, including the wait for data, as of the last progress line."""
        return self._pace.step_s

    @property
    def graphs(self) -> int:
        """Number of CUDA graphs in use, one per shape of the batch; 0 without capture."""
        return self._learner.graphs

    @property
    def why_not_captured(self) -> str:
        """Why steps are not captured as CUDA graphs although they should be, or ''."""
        return self._learner.why_not_captured

    # --- what to override -----------------------------------------------------------------------

    def train_step(self, model: nn.Module, batch: Any) -> Sums:  # noqa: ARG002
        """Return sums over a batch, including `count` and `loss`, which is minimized."""
        raise UsageError(
            "the Trainer has nothing to train on",
            hint="give it a loss or a train_step, or override train_step",
        )

    def measure(self, model: nn.Module, batch: Any) -> Sums:
        """Return sums over a validation batch, including `count`."""
        return self.train_step(model, batch)

    def _objective(self, loss: Any, metrics: Metrics | None, train_step: Step | None) -> Objective:
        if loss is not None and train_step is not None:
            raise UsageError("a loss and a train_step", hint="give the Trainer one of them")
        if loss is not None:
            return objective_of_loss(loss, metrics)
        return objective_of_step(train_step or self.train_step)

    # --- the loop -------------------------------------------------------------------------------

    def fit(
        self,
        data: Dataset[Any] | DataLoader[Any],
        validation: Dataset[Any] | DataLoader[Any] | None = None,
        *,
        start: Checkpoint | None = None,
    ) -> Result:
        """Train to the end, starting from the newest checkpoint if there is one.

        Args:
            data: a data set, which is divided among the ranks; or this rank's own loader. Loaders
                must yield the same number of batches on every rank, and each rank's mean has the
                same weight.
            validation: data to evaluate after every epoch; a loader yields only this rank's part.
            start: checkpoint of another training with the same data, used if this training has no
                checkpoint yet.

        Raises:
            StoppedRun: a stop was requested; everything is saved.
        """
        with self._stop_barrier:
            source = self._make_source(data)
            with self._open_progress(source) as progress:
                self._progress = progress
                return self._fit(source, validation, start, progress)

    def _open_progress(self, source: Source) -> Progress:
        return Progress(
            self._log_dir,
            speaks=self.world.is_main,
            epochs=self.epochs,
            length=source.order.usable,
            unit=source.order.unit,
            loggers=self._loggers,
            quiet=self._quiet,
        )

    def _fit(
        self, source: Source, validation: Any, start: Checkpoint | None, progress: Progress
    ) -> Result:
        began_s = time.monotonic()
        self._source = source
        if self._resume(source, start):
            progress.tell(f"resumed at step {self.step}, in epoch {self.epoch + 1}")
        self._learner.begin(progress.tell)
        metrics: dict[str, float] = {}
        if not self.module.training:
            self.module.train()
        if self._is_over(source):
            progress.tell("there is nothing left to train")
        self._stop_barrier.begin(self.step)
        while not self._is_over(source):
            source.order.set_epoch(self.epoch)
            self._train_epoch(source, progress)
            if source.order.cursor < source.order.usable:
                if not self._have_enough():
                    raise UsageError(
                        f"the loader gave {source.order.cursor} of {source.order.usable} batches",
                        hint="let its __len__ say how many it gives, the same on every rank",
                    )
                self.save()
                break
            metrics = self._end_epoch(validation, progress)
        if self.checkpointer:
            self.checkpointer.wait()
        self._source = None
        result = Result(
            step=self.step,
            epoch=self.epoch,
            metrics=metrics or self._told,
            samples=self._samples,
            train_s=time.monotonic() - began_s,
            peak_memory_mib=peak_memory_mib(self.world.device),
        )
        progress.tell(
            f"trained to step {result.step} in {render_time(result.train_s)}; "
            f"at most {result.peak_memory_mib} MiB of memory"
        )
        return result

    def _train_epoch(self, source: Source, progress: Progress) -> None:
        """Take the remaining steps of an epoch."""
        order, learner, pace = source.order, self._learner, self._pace
        progress.begin(order.cursor)
        portions = source.portions()
        pace.begin(self.step)
        while not self._have_enough():
            asked_s = time.perf_counter()
            portion = next(portions, None)
            if portion is None:
                break
            portion = learner.make_ready(portion)
            pace.have_data(asked_s)
            learner.take_step(portion)
            self._samples += portion.total or 0
            self.indices = None if portion.indices is None else portion.indices[: portion.size]
            order.advance()
            self._after_step()
            if not self._reserved:
                self._reserve()
            over, step = order.cursor >= order.usable, learner.steps
            if over or step % self._log_every == 0:
                pace.end(step)
                self._log(source, progress)
            if not over and self._save_every and step % self._save_every == 0:
                self.save()
            self._stop_if_agreed()

    def _is_over(self, source: Source) -> bool:
        """Whether nothing is left to do; at the end of an epoch, its validation still is."""
        ended = source.order.cursor >= source.order.usable > 0
        return self.epoch >= self.epochs or (self._have_enough() and not ended)

    def _have_enough(self) -> bool:
        return self.max_steps is not None and self.step >= self.max_steps

    def _after_step(self) -> None:
        self._stop_barrier.tell(self.step)
        for ended in self._calls["step_ended"]:
            ended(self)

    def _log(self, source: Source, progress: Progress) -> None:
        self._told = self._learner.tally.means()
        if source.order.cursor:
            share = source.order.cursor / source.order.usable
            steps = (self.epochs - self.epoch - share) * self.step / (self.epoch + share)
            if self.max_steps is not None:
                steps = min(steps, self.max_steps - self.step)
            self._learner.consider_compiling(steps * self.step_s)
        progress.update(
            step=self.step,
            epoch=self.epoch,
            done=source.order.cursor,
            means=self._told,
            data_wait=self.data_wait,
        )
        for logged in self._calls["logged"]:
            logged(self, self._told)

    def _end_epoch(self, validation: Any, progress: Progress) -> dict[str, float]:
        metrics = self.evaluate(validation) if validation is not None else {}
        self._learner.end_epoch()
        self.epoch += 1
        assert self._source is not None
        self._source.order.set_epoch(self.epoch)
        progress.end_epoch(step=self.step, epoch=self.epoch, metrics=metrics)
        self.save(metrics)
        for ended in self._calls["epoch_ended"]:
            ended(self, metrics)
        return metrics

    def _stop_if_agreed(self) -> None:
        """Stop here if all ranks agree to."""
        if self._source is not None and self._stop_barrier.arrive():
            self.save()
            if self.checkpointer:
                self.checkpointer.wait()
            raise StoppedRun(self.step)

    def _make_source(self, data: Dataset[Any] | DataLoader[Any]) -> Source:
        return open_source(
            data,
            self.world,
            global_batch=self._global_batch,
            seed=self._seed,
            drop_last=self._drop_last,
            workers=self._workers,
            keyed=self._learner.draws_by_sample,
            by_name=self._learner.wants_samples,
        )

    # --- validation -----------------------------------------------------------------------------

    def evaluate(self, data: Dataset[Any] | DataLoader[Any]) -> dict[str, float]:
        """Return the metrics' means over all data; each rank evaluates a part, each sample once."""
        return evaluate(
            self._learner,
            data,
            self._measure,
            world=self.world,
            batch=self._eval_batch,
            workers=self._workers,
            passed=self._stop_if_agreed,
        )

    # --- checkpoints ----------------------------------------------------------------------------

    def save(self, metrics: Mapping[str, float] | None = None) -> None:
        """Save everything needed to resume. Callbacks may call it too, if all ranks do."""
        if self.checkpointer is None or self._source is None:
            return
        if self._progress:
            self._progress.flush()  # a resumed training does not repeat these lines
        self.checkpointer.save(
            self._state(), own=self._learner.own_state(), step=self.step, metrics=metrics
        )

    def _state(self) -> dict[str, Any]:
        assert self._source is not None
        order = self._source.order.state_dict()
        return {**self._learner.state_dict(), "source": order, "epoch": self.epoch}

    def _reserve(self) -> None:
        """Have memory for checkpoints ready before the first one, once the optimizer has state."""
        self._reserved = True
        if self.checkpointer:
            self.checkpointer.reserve(self._state(), own=self._learner.own_state())

    def _resume(self, source: Source, start: Checkpoint | None) -> bool:
        like = {"model": self.module, "optimizer": self._learner.optimizer}
        found = (self.checkpointer.load(like=like) if self.checkpointer else None) or start
        if found is None:
            return False
        self._learner.restore(found)
        source.order.load_state_dict(found.state["source"])
        self.epoch = int(found.state["epoch"])
        self._told = dict(found.metrics)
        return True
