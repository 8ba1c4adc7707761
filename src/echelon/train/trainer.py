"""The training loop: one that reads from top to bottom, and whose parts can be used alone.

You give a model, a loss or a `train_step`, an optimiser and data; you get DDP over whatever ranks
there are, the gradient of the mean over the global batch, checkpoints, and a resume in mid-epoch
that sees each sample exactly once. examples/plain_loop is the same without it.
"""

import os
import resource
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from echelon.core.progressbar import render_time
from echelon.errors import UsageError
from echelon.train.batches import to_device
from echelon.train.checkpoint import Checkpointer
from echelon.train.checkpoint_files import Checkpoint
from echelon.train.learner import Learner
from echelon.train.loading import Source
from echelon.train.metrics import Metrics, Step, Sums, Tally
from echelon.train.pace import Pace
from echelon.train.process_group import Group
from echelon.train.progress import Progress
from echelon.train.randomness import be_deterministic
from echelon.train.sources import open_source
from echelon.train.step import (
    Objective,
    Transform,
    objective_of_loss,
    objective_of_step,
)
from echelon.train.stopping import StopLine, StoppedRun
from echelon.train.validation import measure_of_loss, rank_parts


class Callback(Protocol):
    """Something of yours that is called as the training goes on; every method may be left out."""

    def step_ended(self, trainer: "Trainer") -> None: ...

    def logged(self, trainer: "Trainer", means: Mapping[str, float]) -> None: ...

    def epoch_ended(self, trainer: "Trainer", metrics: Mapping[str, float]) -> None: ...


@dataclass(slots=True)
class Result:
    """How a training ended."""

    step: int
    epoch: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Of the last validation, or else what was last told of the training."""
    samples: int = 0
    """Trained on since this start; not known of a loader of one's own."""
    train_s: float = 0.0
    peak_memory_mib: int = 0
    """Of the GPU; without one, of the process."""


class Trainer:
    """See the module. Pass functions, or override `train_step` and `measure`."""

    def __init__(
        self,
        world: Group,
        model: nn.Module,
        *,
        optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
        scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
        schedule_steps: bool = False,
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
        metrics: Metrics | None = None,
        train_step: Step | None = None,
        measure: Step | None = None,
        transform: Transform | None = None,
        global_batch: int = 64,
        eval_batch: int = 1000,
        epochs: int = 1,
        max_steps: int | None = None,
        clip_norm: float | None = None,
        accumulate: int = 1,
        precision: str = "auto",
        step: str = "auto",
        compiled: bool | None = None,
        ddp: bool | None = None,
        seed: int = 0,
        deterministic: bool = False,
        exact_layers: bool = False,
        checkpoints: Checkpointer | Path | None = None,
        save_every: int = 0,
        workers: int = 0,
        drop_last: bool = False,
        log_every: int = 10,
        log_dir: Path | None = None,
        quiet: bool = False,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        """Prepare a training.

        Args:
            world: from `echelon.init()`.
            model: it is moved to the rank's device, and wrapped in DDP if there are several ranks.
            optimizer: makes one from the model's parameters.
            scheduler: makes one from the optimiser; it is stepped after every epoch,
            schedule_steps: or after every step.
            loss: mean loss of outputs and targets; for data of (inputs, targets).
            metrics: with a loss, what is counted beside it in training; validation counts the
                accuracy besides.
            train_step: instead of a loss, for anything else: model and batch → sums over its
                samples, of which `loss` is made small and `count` says how many there were.
            measure: the same, for validation.
            transform: makes a batch ready, on the device.
            global_batch: samples of one step, over all ranks.
            eval_batch: samples of one batch of a validation, on each rank.
            epochs: how often all data are seen.
            max_steps: end after so many steps, if that comes first.
            clip_norm: largest norm of the gradient.
            accumulate: into how many parts a rank's batch is divided, to need less memory.
            precision: `fp32`, `bf16`, `fp16`, or `auto` for bf16 where the GPU has it.
            step: `captured` as a CUDA graph, `eager`, or `auto`: captured on one GPU.
            compiled: whether torch.compile makes what is captured; when None, if the training
                lasts long enough for that to pay.
            ddp: whether the model is wrapped in DDP; when None, if there are several ranks.
            seed: decides the order of samples, and random numbers where nothing else does.
            deterministic: choose algorithms that give the same bits every time, on a GPU too.
            exact_layers: compute BatchNorm over the global batch, and dropout by sample, so that
                the number of ranks makes no difference (docs/exactness.md).
            checkpoints: where they go; the run's own folder when None, if there is a run.
            save_every: steps between checkpoints, beside the one after each epoch; 0 for none.
            workers: processes of each rank that load data.
            drop_last: leave out the last batch of an epoch if it is smaller.
            log_every: steps between two lines about the training.
            log_dir: where metrics.jsonl and TensorBoard's files go; the run's folder when None.
            quiet: show no bar and no lines about the steps, because a callback of yours does.
            callbacks: things of yours to call.
        """
        if log_every < 1:
            raise UsageError(f"log_every={log_every}", hint="use 1 or more")
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
            way=step,
            compiled=False if deterministic and compiled is None else compiled,
            ddp=ddp,
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
        self._log_every, self._quiet = log_every, quiet
        self._calls = {
            name: [getattr(callback, name) for callback in callbacks if hasattr(callback, name)]
            for name in ("step_ended", "logged", "epoch_ended")
        }
        run = os.environ.get("ECHELON_RUN_DIR")
        self._log_dir = log_dir or (Path(run) if run else None)
        if checkpoints is None and run:
            checkpoints = Path(run) / "checkpoints"
        self.checkpointer = (
            Checkpointer(checkpoints) if isinstance(checkpoints, Path) else checkpoints
        )
        self._stop_line = StopLine()
        self._pace = Pace(self._stop_line, self._learner.peer_wait_s)
        self._source: Source | None = None
        """Only while `fit` is at work."""
        self.epoch = 0
        """The one that is under way, from 0."""
        self._told: dict[str, float] = {}
        self._samples = 0

    @property
    def step(self) -> int:
        """Steps that were taken, over all epochs and interruptions."""
        return self._learner.steps

    @property
    def done(self) -> int:
        """Samples of the epoch under way that were consumed; batches, if a loader gives them."""
        return self._source.order.cursor if self._source else 0

    @property
    def data_wait(self) -> float:
        """Share of the time up to the last line that the loop waited for data."""
        return self._pace.data_wait

    @property
    def step_s(self) -> float:
        """Seconds of a step up to then, its wait for data included."""
        return self._pace.step_s

    # --- what to override -----------------------------------------------------------------------

    def train_step(self, model: nn.Module, batch: Any) -> Sums:  # noqa: ARG002
        """Return the sums over a batch, `loss` and `count` among them; its gradient is followed."""
        raise UsageError(
            "the Trainer has nothing to train on",
            hint="give it a loss or a train_step, or override train_step",
        )

    def measure(self, model: nn.Module, batch: Any) -> Sums:
        """Return the sums over a batch of a validation."""
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
        """Train to the end, from the newest checkpoint if there is one.

        Args:
            data: a data set, which is divided over the ranks; or this rank's own loader, of which
                each rank gives as many batches, and each rank's mean counts alike.
            validation: what is measured after every epoch; a loader holds this rank's part alone.
            start: where to begin when there is no checkpoint of this training's own yet: one of
                another training with the same data.

        Raises:
            StoppedRun: the run was asked to stop; everything is saved.
        """
        with self._stop_line:
            return self._fit(self._make_source(data), validation, start)

    def _fit(self, source: Source, validation: Any, start: Checkpoint | None) -> Result:
        began_s = time.monotonic()
        self._source = source
        resumed = self._resume(source, start)
        progress = Progress(
            self._log_dir,
            speaks=self.world.is_main,
            epochs=self.epochs,
            length=source.order.usable,
            unit=source.order.unit,
            quiet=self._quiet,
        )
        self._learner.begin(progress.tell)
        if resumed:
            progress.tell(f"resumed at step {self.step}, in epoch {self.epoch + 1}")
        metrics: dict[str, float] = {}
        if not self.module.training:
            self.module.train()
        if self._is_over(source):
            progress.tell("there is nothing left to train")
        self._stop_line.begin(self.step)
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
            peak_memory_mib=_peak_memory_mib(self.world.device),
        )
        progress.tell(
            f"trained to step {result.step} in {render_time(result.train_s)}; "
            f"at most {result.peak_memory_mib} MiB of memory"
        )
        progress.close()
        return result

    def _train_epoch(self, source: Source, progress: Progress) -> None:
        """Take the steps that are left of an epoch."""
        progress.begin(source.order.cursor)
        portions = source.portions()
        self._pace.begin(self.step)
        while not self._have_enough():
            asked_s = time.perf_counter()
            portion = next(portions, None)
            if portion is None:
                break
            portion = self._learner.make_ready(portion)
            self._pace.have_data(asked_s)
            self._learner.take_step(portion)
            self._samples += portion.total or 0
            source.order.advance()
            self._after_step()
            over = source.order.cursor >= source.order.usable
            if over or self.step % self._log_every == 0:
                self._pace.end(self.step)
                self._log(source, progress)
            if not over and self._save_every and self.step % self._save_every == 0:
                self.save()
            self._pass_by()

    def _is_over(self, source: Source) -> bool:
        """Tell whether nothing is left: at the end of an epoch there is still its validation."""
        ended = source.order.cursor >= source.order.usable > 0
        return self.epoch >= self.epochs or (self._have_enough() and not ended)

    def _have_enough(self) -> bool:
        return self.max_steps is not None and self.step >= self.max_steps

    def _after_step(self) -> None:
        self._stop_line.tell(self.step)
        for ended in self._calls["step_ended"]:
            ended(self)

    def _log(self, source: Source, progress: Progress) -> None:
        self._told = self._learner.tally.means()
        if source.order.cursor:
            share = source.order.cursor / source.order.usable
            steps = (self.epochs - self.epoch - share) * self.step / (self.epoch + share)
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

    def _pass_by(self) -> None:
        """Stop here if all ranks do."""
        if self._source is not None and self._stop_line.pass_by():
            self.save()
            if self.checkpointer:
                self.checkpointer.wait()
            raise StoppedRun(self.step)

    def _make_source(self, data: Dataset[Any] | DataLoader[Any]) -> Source:
        if isinstance(data, DataLoader) and self._learner.wants_samples:
            raise UsageError(
                "exact_layers have to know which samples a batch is of, and a DataLoader does not "
                "say",
                hint="give fit() the data set itself, or leave exact_layers out",
            )
        return open_source(
            data,
            self.world,
            global_batch=self._global_batch,
            seed=self._seed,
            drop_last=self._drop_last,
            workers=self._workers,
            keyed=self._learner.draws_by_sample,
        )

    # --- validation -----------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self, data: Dataset[Any] | DataLoader[Any]) -> dict[str, float]:
        """Measure on all data, each sample once: every rank a part, the means over all ranks."""
        self._learner.share_buffers()
        modes = [(module, module.training) for module in self.module.modules()]
        self.module.eval()
        tally, transform = Tally(self.world.device), self._learner.transform
        parts = rank_parts(
            data,
            rank=self.world.rank,
            world_size=self.world.world_size,
            batch=self._eval_batch,
            workers=self._workers,
        )
        for part, counts in parts:
            batch = to_device(part, self.world.device)
            with self._learner.autocast():
                sums = self._measure(self.module, transform(batch, None) if transform else batch)
            tally.add(sums if counts else dict.fromkeys(sums, 0.0))
            if not isinstance(data, DataLoader):  # of which ranks may have more and fewer batches
                self._pass_by()
        for module, training in modes:  # each as it was: some may be frozen
            module.training = training
        return tally.means()

    # --- checkpoints ----------------------------------------------------------------------------

    def save(self, metrics: Mapping[str, float] | None = None) -> None:
        """Save everything that a resume needs; for callbacks too, if all ranks call it."""
        if self.checkpointer is None or self._source is None:
            return
        self.checkpointer.save(
            {
                **self._learner.state_dict(),
                "source": self._source.order.state_dict(),
                "epoch": self.epoch,
            },
            own=self._learner.own_state(),
            step=self.step,
            metrics=metrics,
        )

    def _resume(self, source: Source, start: Checkpoint | None) -> bool:
        found = (self.checkpointer.load() if self.checkpointer else None) or start
        if found is None:
            return False
        self._learner.restore(found)
        source.order.load_state_dict(found.state["source"])
        self.epoch = int(found.state["epoch"])
        self._told = dict(found.metrics)
        return True


def _peak_memory_mib(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) // 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 2**10
