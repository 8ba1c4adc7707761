"""The training loop: one that reads from top to bottom, and whose parts can be used alone.

You give a model, a loss or a `train_step`, an optimiser and data; you get DDP over whatever ranks
there are, the gradient of the mean over the global batch, checkpoints, and a resume in mid-epoch
that sees each sample exactly once. examples/plain_loop is the same without it.
"""

import os
import resource
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import shorten
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from echelon.core.progressbar import render_time
from echelon.errors import UsageError
from echelon.train.agreement import is_alone
from echelon.train.checkpoint import Checkpointer
from echelon.train.checkpoint_files import Checkpoint
from echelon.train.exact_layers import make_exact
from echelon.train.loading import (
    DatasetSource,
    LoaderSource,
    Portion,
    ResumableLoader,
    Source,
    length_of,
    samples_in,
    to_device,
)
from echelon.train.metrics import Metrics, Step, Sums, Tally
from echelon.train.process_group import Group
from echelon.train.progress import Progress
from echelon.train.randomness import (
    be_deterministic,
    epoch_key,
    random_states,
    restore_random_states,
    sample_keys,
    seed_generators,
)
from echelon.train.sampler import ElasticSampler
from echelon.train.step import EagerStep, Objective, objective_of_loss, objective_of_step
from echelon.train.stopping import StopLine, StoppedRun
from echelon.train.validation import measure_of_loss, rank_parts

Transform = Callable[[Any, torch.Tensor | None], Any]
"""A batch on the device, and a key per sample (none in validation) → the batch made ready."""


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
        self._seed_rank(seed, world.rank)
        self.world, self.epochs, self.max_steps = world, epochs, max_steps
        self.module = model.to(world.device)
        self._current = make_exact(model, accumulate=accumulate) if exact_layers else None
        self.model = self.module if is_alone() else DistributedDataParallel(self.module)
        self.optimizer = optimizer(self.module.parameters())
        self.scheduler = scheduler(self.optimizer) if scheduler else None
        self._schedule_steps = schedule_steps
        self._step = EagerStep(
            self.model,
            self.optimizer,
            self._objective(loss, metrics, train_step),
            world_size=world.world_size,
            device=world.device,
            clip_norm=clip_norm,
            accumulate=accumulate,
            precision=precision,
            current=self._current,
        )
        if measure is None:
            measure = measure_of_loss(loss, metrics) if loss else train_step or self.measure
        self._measure = measure
        if isinstance(transform, nn.Module):
            transform.to(world.device)
        self._transform = transform
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
        self._source: Source | None = None
        """Only while `fit` is at work."""
        self.step = 0
        """Steps that were taken, over all epochs and interruptions."""
        self.epoch = 0
        """The one that is under way, from 0."""
        self.data_wait = 0.0
        """Share of the time since the last line that the loop waited for data."""
        self.step_s = 0.0
        """Seconds of a step since then, its wait for data included."""
        self._told: dict[str, float] = {}
        self._tally = Tally(world.device)
        self._settled = False
        self._samples = 0

    @property
    def done(self) -> int:
        """Samples of the epoch under way that were consumed; batches, if a loader gives them."""
        return self._source.done if self._source else 0

    @staticmethod
    def _seed_rank(seed: int, rank: int) -> None:
        """Give each rank its own random numbers: with the same, they would drop the same units."""
        key = epoch_key(seed, rank) % 2**63
        seed_generators(key)
        torch.manual_seed(key)  # the GPU's too

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
            length=source.length,
            unit=source.unit,
            quiet=self._quiet,
        )
        if resumed:
            progress.tell(f"resumed at step {self.step}, in epoch {self.epoch + 1}")
        metrics: dict[str, float] = {}
        while self.epoch < self.epochs and not self._have_enough():
            source.begin(self.epoch)
            self._train_epoch(source, progress)
            if source.done < source.length:
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
        progress.begin(source.done)
        portions = source.portions()
        waited_s, since_s, since = 0.0, time.perf_counter(), self.step
        while not self._have_enough():
            asked_s = time.perf_counter()
            portion = next(portions, None)
            if portion is None:
                break
            portion = self._make_ready(portion)
            waited_s += time.perf_counter() - asked_s
            if not self._settled:
                self._step.settle(portion)
                self._settled = True
            self._step.take(portion, self._tally)
            self._samples += portion.total or 0
            source.advance()
            self._after_step()
            over = source.done >= source.length
            if over or self.step % self._log_every == 0:
                now_s = time.perf_counter()
                self.data_wait = waited_s / (now_s - since_s)
                self.step_s = (now_s - since_s) / (self.step - since)
                waited_s, since_s, since = 0.0, now_s, self.step
                self._log(source, progress)
            if not over and self._save_every and self.step % self._save_every == 0:
                self.save()
            self._pass_by()

    def _have_enough(self) -> bool:
        return self.max_steps is not None and self.step >= self.max_steps

    def _make_ready(self, portion: Portion) -> Portion:
        exact, transform = self._current is not None, self._transform
        if self.world.device.type == "cpu" and not exact and transform is None:
            return portion
        batch = to_device(portion.batch, self.world.device)
        keys = self._keys(portion) if exact or transform else None
        if transform is not None:
            batch = transform(batch, keys)
        return replace(portion, batch=batch, keys=keys if exact else None)

    def _keys(self, portion: Portion) -> torch.Tensor:
        """Return the samples' keys; those of a loader of the user's are known by their step."""
        if portion.indices is not None:
            indices, epoch = torch.tensor(portion.indices), self.epoch
        else:
            indices = torch.arange(samples_in(portion.batch)) + (self.step << 24)
            epoch = -1 - self.world.rank
        return sample_keys(indices, seed=self._seed, epoch=epoch).to(self.world.device)

    def _after_step(self) -> None:
        self.step += 1
        if self.scheduler is not None and self._schedule_steps:
            self.scheduler.step()
        self._stop_line.tell(self.step)
        for ended in self._calls["step_ended"]:
            ended(self)

    def _log(self, source: Source, progress: Progress) -> None:
        self._told = self._tally.means()
        progress.update(
            step=self.step,
            epoch=self.epoch,
            done=source.done,
            means=self._told,
            data_wait=self.data_wait,
        )
        for logged in self._calls["logged"]:
            logged(self, self._told)

    def _end_epoch(self, validation: Any, progress: Progress) -> dict[str, float]:
        metrics = self.evaluate(validation) if validation is not None else {}
        if self.scheduler is not None and not self._schedule_steps:
            self.scheduler.step()
        self.epoch += 1
        assert self._source is not None
        self._source.begin(self.epoch)
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
        if isinstance(data, DataLoader) and self._current is not None:
            raise UsageError(
                "exact_layers have to know which samples a batch is of, and a DataLoader does not "
                "say",
                hint="give fit() the data set itself, or leave exact_layers out",
            )
        if isinstance(data, DataLoader):
            return LoaderSource(ResumableLoader(data, seed=self._seed))
        sampler = ElasticSampler(
            length_of(data),
            global_batch=self._global_batch,
            rank=self.world.rank,
            world_size=self.world.world_size,
            seed=self._seed,
            drop_last=self._drop_last,
        )
        pin = self.world.device.type == "cuda"
        return DatasetSource(data, sampler, workers=self._workers, pin=pin)

    # --- validation -----------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self, data: Dataset[Any] | DataLoader[Any]) -> dict[str, float]:
        """Measure on all data, each sample once: every rank a part, the means over all ranks."""
        self._share_buffers()
        self.module.eval()
        tally, transform = Tally(self.world.device), self._transform
        parts = rank_parts(
            data,
            rank=self.world.rank,
            world_size=self.world.world_size,
            batch=self._eval_batch,
            workers=self._workers,
        )
        for part, counts in parts:
            batch = to_device(part, self.world.device)
            with self._step.autocast():
                sums = self._measure(self.module, transform(batch, None) if transform else batch)
            tally.add(sums if counts else dict.fromkeys(sums, 0.0))
            if not isinstance(data, DataLoader):  # of which ranks may have more and fewer batches
                self._pass_by()
        self.module.train()
        return tally.means()

    def _share_buffers(self) -> None:
        """Give all ranks rank 0's buffers, as DDP does before each forward pass.

        A rank's own BatchNorm has seen its part of the last batch alone.
        """
        if not is_alone():
            for value in self.module.buffers():
                dist.broadcast(value, src=0)

    # --- checkpoints ----------------------------------------------------------------------------

    def save(self, metrics: Mapping[str, float] | None = None) -> None:
        """Save everything that a resume needs; for callbacks too, if all ranks call it."""
        if self.checkpointer is None or self._source is None:
            return
        self._share_buffers()
        self.checkpointer.save(
            {
                "model": self.module.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.scheduler.state_dict() if self.scheduler else None,
                "scaler": self._step.scaler.state_dict(),
                "source": self._source.state_dict(),
                "epoch": self.epoch,
            },
            own={
                "random": random_states(self.world.device),
                "tally": self._tally.state_dict(),
            },
            step=self.step,
            metrics=metrics,
        )

    def _resume(self, source: Source, start: Checkpoint | None) -> bool:
        found = (self.checkpointer.load() if self.checkpointer else None) or start
        if found is None:
            return False
        try:
            self.module.load_state_dict(found.state["model"])
            self.optimizer.load_state_dict(found.state["optimizer"])
        except (RuntimeError, ValueError) as error:
            raise UsageError(
                f"{found.path} is of another model or optimiser: {shorten(str(error), 200)}",
                hint="train what it was made with, or keep this training's in another folder",
            ) from error
        if self.scheduler is not None:
            self.scheduler.load_state_dict(found.state["scheduler"])
        self._step.scaler.load_state_dict(found.state["scaler"])
        source.load_state_dict(found.state["source"])
        self.step, self.epoch = found.step, int(found.state["epoch"])
        if found.own is not None:
            restore_random_states(found.own["random"], self.world.device)
            self._tally.load_state_dict(found.own["tally"])
        else:  # saved by another number of ranks: new numbers, not those of the beginning again
            self._seed_rank(self._seed + found.step, self.world.rank)
        return True


def _peak_memory_mib(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) // 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 2**10
