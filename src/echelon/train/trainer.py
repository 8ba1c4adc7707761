"""The training loop: one that reads from top to bottom, and whose parts can be used alone.

You give a model, a loss or a `train_step`, an optimiser and data; you get DDP over whatever ranks
there are, the gradient of the mean over the global batch, checkpoints, and a resume in mid-epoch
that sees each sample exactly once.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from echelon.launch.beacon import VARIABLE as BEACON
from echelon.launch.beacon import Beacon
from echelon.train.checkpoint import Checkpointer
from echelon.train.process_group import Group
from echelon.train.progress import Progress
from echelon.train.sampler import ElasticSampler, Share

TrainStep = Callable[[nn.Module, Any], tuple[torch.Tensor, int]]
"""Model and batch → the sum of the losses, and over how many samples."""
Measure = Callable[[nn.Module, Any], Mapping[str, torch.Tensor | float]]
"""Model and batch → sums over its samples; `count` among them says how many there were."""


class Callback(Protocol):
    """Something of yours that is called as the training goes on; every method may be left out."""

    def step_ended(self, trainer: "Trainer") -> None: ...

    def epoch_ended(self, trainer: "Trainer", metrics: Mapping[str, float]) -> None: ...


@dataclass(slots=True)
class Result:
    """How a training ended."""

    step: int
    epoch: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Of the last validation, or of the last epoch's training."""
    train_s: float = 0.0
    peak_memory_mib: int = 0
    """Of the GPU; 0 without one."""


class Trainer:
    """See the module."""

    def __init__(
        self,
        world: Group,
        model: nn.Module,
        *,
        optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
        scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
        train_step: TrainStep | None = None,
        measure: Measure | None = None,
        global_batch: int = 64,
        epochs: int = 1,
        max_steps: int | None = None,
        clip_norm: float | None = None,
        accumulate: int = 1,
        precision: str = "auto",
        seed: int = 0,
        checkpoints: Path | None = None,
        save_every: int = 0,
        keep: int = 3,
        best: str = "",
        larger_is_better: bool = False,
        workers: int = 0,
        log_every: int = 10,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        """Prepare a training.

        Args:
            world: from `echelon.init()`.
            model: it is moved to the rank's device, and wrapped in DDP if there are several ranks.
            optimizer: makes one from the model's parameters.
            scheduler: makes one from the optimiser; it is stepped after every epoch.
            loss: mean loss of outputs and targets; for data of (inputs, targets).
            train_step: instead of a loss, for anything else.
            measure: what validation adds up; loss and accuracy when None.
            global_batch: samples of one step, over all ranks.
            epochs: how often all data are seen.
            max_steps: end after so many steps, if that comes first.
            clip_norm: largest norm of the gradient.
            accumulate: into how many parts a rank's batch is divided, to need less memory.
            precision: `fp32`, `bf16`, or `auto` for bf16 where the GPU has it.
            seed: decides the order of samples, and random numbers where nothing else does.
            checkpoints: folder for them; none are written when None.
            save_every: steps between checkpoints, beside the one after each epoch; 0 for none.
            keep: how many checkpoints stay.
            best: the metric of validation that decides which is best.
            larger_is_better: whether more of it is better.
            workers: DataLoader workers of each rank.
            log_every: steps between two lines about the training.
            callbacks: things of yours to call.
        """
        assert (loss is None) != (train_step is None), "give either a loss or a train_step"
        torch.manual_seed(seed)
        self.world, self.epochs, self.max_steps = world, epochs, max_steps
        self.module = model.to(world.device)
        self.optimizer = optimizer(self.module.parameters())
        self.scheduler = scheduler(self.optimizer) if scheduler else None
        self.model = self._wrap()
        self._train_step = train_step or _step_with(loss)
        self._measure = measure or _measure_with(loss)
        self._global_batch, self._clip, self._accumulate = global_batch, clip_norm, accumulate
        self._seed, self._workers, self._save_every = seed, workers, save_every
        self._log_every, self._callbacks = log_every, callbacks
        self._bf16 = _wants_bf16(precision, world.device)
        self._checkpointer = None
        if checkpoints is not None:
            self._checkpointer = Checkpointer(
                checkpoints,
                rank=world.rank,
                world_size=world.world_size,
                keep=keep,
                best=best,
                larger_is_better=larger_is_better,
            )
        beacon = os.environ.get(BEACON, "")
        self._beacon = Beacon.open(Path(beacon)) if beacon and Path(beacon).exists() else None
        self.step = 0
        """Steps that were taken, over all epochs and interruptions."""
        self.epoch = 0
        self._sums = torch.zeros(2, dtype=torch.float64)
        """Loss and samples of this rank since they were last told."""

    # --- the loop -------------------------------------------------------------------------------

    def fit(self, data: Dataset[Any], validation: Dataset[Any] | None = None) -> Result:
        """Train to the end, from the newest checkpoint if there is one."""
        sampler = ElasticSampler(
            len(data),  # type: ignore[arg-type]
            global_batch=self._global_batch,
            rank=self.world.rank,
            world_size=self.world.world_size,
            seed=self._seed,
        )
        resumed = self._resume(sampler)
        progress = Progress(self.world, epochs=self.epochs, samples=sampler.usable)
        if resumed:
            progress.tell(f"resumed at step {self.step}, in epoch {self.epoch + 1}")
        began_s, metrics, settled = time.monotonic(), dict[str, float](), False
        while self.epoch < self.epochs and not self._have_enough():
            sampler.set_epoch(self.epoch)
            for share, batch in self._batches(data, sampler):
                if not settled:
                    self._settle(share, batch)
                    settled = True
                self._take_step(share, batch)
                sampler.advance()
                self._after_step(sampler, progress)
                if self._have_enough():
                    break
            if not sampler.over:
                break
            metrics = self._end_epoch(validation, sampler, progress)
        if self._checkpointer:
            self._checkpointer.wait()
        progress.close()
        return Result(
            step=self.step,
            epoch=self.epoch,
            metrics=metrics,
            train_s=time.monotonic() - began_s,
            peak_memory_mib=_peak_memory_mib(self.world.device),
        )

    def _have_enough(self) -> bool:
        return self.max_steps is not None and self.step >= self.max_steps

    def _batches(self, data: Dataset[Any], sampler: ElasticSampler) -> Iterator[tuple[Share, Any]]:
        loader: DataLoader[Any] = DataLoader(
            data,
            batch_sampler=sampler,
            num_workers=self._workers,
            pin_memory=self.world.device.type == "cuda",
            # Else every rank would draw a seed for its workers from its own random state.
            generator=torch.Generator().manual_seed(self._seed + self.epoch),
        )
        for share, batch in zip(sampler.shares(), loader, strict=True):
            yield share, _to(batch, self.world.device)

    def _take_step(self, share: Share, batch: Any) -> None:
        """Step on the gradient of the mean over the global batch.

        DDP averages over the ranks, so a rank's sum counts world_size / total; a stand-in counts
        nothing.
        """
        self.optimizer.zero_grad(set_to_none=True)
        loss_sum = self._backward(share, batch)
        if self._clip is not None:
            nn.utils.clip_grad_norm_(self.module.parameters(), self._clip)
        self.optimizer.step()
        self.step += 1
        if share.size:
            self._sums += torch.stack([loss_sum.double().cpu(), torch.tensor(float(share.size))])

    def _backward(self, share: Share, batch: Any) -> torch.Tensor:
        parts = _split(batch, self._accumulate)
        total = torch.zeros((), device=self.world.device)
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            with self._without_reduction(last=last), self._autocast():
                loss_sum, _ = self._train_step(self.model, part)
                counts = 1.0 if share.size else 0.0
                scaled = loss_sum * (counts * self.world.world_size / share.total)
            scaled.backward()  # type: ignore[no-untyped-call]
            total = total + loss_sum.detach()
        return total

    def _without_reduction(self, *, last: bool) -> AbstractContextManager[Any]:
        if last or not isinstance(self.model, DistributedDataParallel):
            return nullcontext()
        return self.model.no_sync()

    def _autocast(self) -> AbstractContextManager[Any]:
        if not self._bf16:
            return nullcontext()
        return torch.autocast(self.world.device.type, dtype=torch.bfloat16)

    def _after_step(self, sampler: ElasticSampler, progress: Progress) -> None:
        if self._beacon is not None:
            self._beacon.step = self.step
        for callback in self._callbacks:
            if ended := getattr(callback, "step_ended", None):
                ended(self)
        if self.step % self._log_every == 0 or sampler.over:
            loss, count = self._reduce(self._sums)
            self._sums.zero_()
            progress.update(
                step=self.step, epoch=self.epoch, done=sampler.cursor, loss=loss / max(1.0, count)
            )
        if self._save_every and self.step % self._save_every == 0 and not sampler.over:
            self.save(sampler)

    def _end_epoch(
        self, validation: Dataset[Any] | None, sampler: ElasticSampler, progress: Progress
    ) -> dict[str, float]:
        if self.scheduler is not None:
            self.scheduler.step()
        metrics = self.evaluate(validation) if validation is not None else {}
        self.epoch += 1
        sampler.set_epoch(self.epoch)
        progress.end_epoch(self.epoch, metrics)
        self.save(sampler, metrics)
        for callback in self._callbacks:
            if ended := getattr(callback, "epoch_ended", None):
                ended(self, metrics)
        return metrics

    # --- validation -----------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self, data: Dataset[Any], *, batch: int = 1000) -> dict[str, float]:
        """Measure on all data, each sample once: every rank a part, the sums over all ranks."""
        self._share_buffers()
        self.module.eval()
        length = len(data)  # type: ignore[arg-type]
        mine = range(self.world.rank, length, self.world.world_size)
        loader: DataLoader[Any] = DataLoader(
            torch.utils.data.Subset(data, mine), batch_size=batch, num_workers=self._workers
        )
        sums: dict[str, float] = {}
        for part in loader:
            with self._autocast():
                told = self._measure(self.module, _to(part, self.world.device))
            for name, value in told.items():
                sums[name] = sums.get(name, 0.0) + float(value)
        self.module.train()
        names = self._names(sums)
        totals = self._reduce(torch.tensor([sums.get(n, 0.0) for n in names], dtype=torch.float64))
        found = dict(zip(names, totals, strict=True))
        count = found.pop("count", 0.0)
        return {name: value / count for name, value in found.items()} if count else {}

    def _names(self, sums: Mapping[str, float]) -> list[str]:
        """Return the metrics' names; a rank without data learns them from the others."""
        if self.world.world_size == 1 or not dist.is_initialized():
            return sorted(sums)
        text = ",".join(sorted(sums)).encode()
        size = torch.tensor([len(text)], device=self._collective_device)
        dist.all_reduce(size, op=dist.ReduceOp.MAX)
        padded = text.ljust(int(size.item()), b"\0")
        names = torch.tensor(list(padded), dtype=torch.uint8, device=self._collective_device)
        dist.all_reduce(names, op=dist.ReduceOp.MAX)
        joined = bytes(names.tolist()).rstrip(b"\0").decode()
        return joined.split(",") if joined else []

    # --- ranks ----------------------------------------------------------------------------------

    def _wrap(self) -> nn.Module:
        if self.world.world_size == 1 or not dist.is_initialized():
            return self.module
        return DistributedDataParallel(self.module)

    @property
    def _collective_device(self) -> str:
        return "cuda" if self.world.backend == "nccl" else "cpu"

    def _reduce(self, sums: torch.Tensor) -> list[float]:
        """Return sums over all ranks."""
        if self.world.world_size > 1 and dist.is_initialized():
            # NCCL takes what is on the GPU, gloo what is not.
            moved = sums.to(self._collective_device, copy=True)
            dist.all_reduce(moved)
            return [float(value) for value in moved.tolist()]
        return [float(value) for value in sums.tolist()]

    def _share_buffers(self) -> None:
        """Give all ranks rank 0's buffers, as DDP does before each forward pass.

        A rank's own BatchNorm has seen its part of the last batch alone.
        """
        if isinstance(self.model, DistributedDataParallel):
            for value in self.module.buffers():
                dist.broadcast(value, src=0)

    def _settle(self, share: Share, batch: Any) -> None:
        """Let DDP arrange its buckets before the first step that counts.

        It does so after its first backward pass, in the order in which gradients came; sums in
        another order differ in the last bit, and so would a run that was interrupted.
        """
        if not isinstance(self.model, DistributedDataParallel):
            return
        buffers = {name: value.clone() for name, value in self.module.named_buffers()}
        random_states = _random_states(self.world.device)
        for _ in range(2):
            self._backward(share, batch)
        self.optimizer.zero_grad(set_to_none=True)
        for name, value in self.module.named_buffers():
            value.copy_(buffers[name])
        _restore_random_states(random_states, self.world.device)

    # --- checkpoints ----------------------------------------------------------------------------

    def save(self, sampler: ElasticSampler, metrics: Mapping[str, float] | None = None) -> None:
        """Save everything that a resume needs."""
        if self._checkpointer is None:
            return
        self._share_buffers()
        self._checkpointer.save(
            {
                "model": self.module.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.scheduler.state_dict() if self.scheduler else None,
                "sampler": sampler.state_dict(),
                "epoch": self.epoch,
            },
            own=_random_states(self.world.device),
            step=self.step,
            metrics=metrics,
        )

    def _resume(self, sampler: ElasticSampler) -> bool:
        found = self._checkpointer.load() if self._checkpointer else None
        if found is None:
            return False
        self.module.load_state_dict(found.state["model"])
        self.optimizer.load_state_dict(found.state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(found.state["scheduler"])
        sampler.load_state_dict(found.state["sampler"])
        self.step, self.epoch = found.step, int(found.state["epoch"])
        if found.own is not None:
            _restore_random_states(found.own, self.world.device)
        return True


# --- small things -----------------------------------------------------------------------------


def _step_with(loss: Any) -> TrainStep:
    """Return the step for data of (inputs, targets) and a loss that is a mean."""

    def step(model: nn.Module, batch: Any) -> tuple[torch.Tensor, int]:
        inputs, targets = batch
        return loss(model(inputs), targets) * len(targets), len(targets)

    return step


def _measure_with(loss: Any) -> Measure:
    """Return the usual measures of a classifier: mean loss and accuracy."""

    def measure(model: nn.Module, batch: Any) -> Mapping[str, torch.Tensor | float]:
        inputs, targets = batch
        outputs = model(inputs)
        right = (outputs.argmax(dim=1) == targets).sum()
        found: dict[str, torch.Tensor | float] = {"accuracy": right, "count": len(targets)}
        if loss is not None:
            found["loss"] = loss(outputs, targets) * len(targets)
        return found

    return measure


def _wants_bf16(precision: str, device: torch.device) -> bool:
    if precision == "auto":
        return device.type == "cuda" and torch.cuda.is_bf16_supported()
    return precision == "bf16"


def _to(batch: Any, device: torch.device) -> Any:
    """Move a batch, whatever its shape, to a device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: _to(value, device) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch)(_to(value, device) for value in batch)
    return batch


def _split(batch: Any, parts: int) -> list[Any]:
    """Divide a batch of tensors into parts of about the same size, none of them empty."""
    if parts == 1:
        return [batch]
    if isinstance(batch, torch.Tensor):
        return list(batch.chunk(parts))
    if isinstance(batch, Mapping):
        columns = {key: _split(value, parts) for key, value in batch.items()}
        count = len(next(iter(columns.values())))
        return [{key: column[n] for key, column in columns.items()} for n in range(count)]
    return [list(row) for row in zip(*(_split(value, parts) for value in batch), strict=True)]


def _random_states(device: torch.device) -> dict[str, torch.Tensor]:
    found = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device)
    return found


def _restore_random_states(states: Mapping[str, torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def _peak_memory_mib(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) // 2**20 if device.type == "cuda" else 0
