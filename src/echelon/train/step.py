"""One training step: the gradient of the mean over the global batch, and the optimizer's update.

DDP and FSDP average over ranks, so a rank's loss is weighted by n·W/N for its n of N samples on W
ranks. A stand-in has weight 0 and yields zeros, not NaN.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from echelon.errors import UsageError
from echelon.train.batches import divide, samples_in
from echelon.train.exact_layers import CurrentBatch
from echelon.train.loading import Portion, Rows
from echelon.train.metrics import Metrics, Step, Sums, Tally
from echelon.train.optimizers import make_capturable
from echelon.train.pace import PeerWait, StreamWait
from echelon.train.randomness import undisturbed
from echelon.train.sharded_model import hold_all_reduce, is_sharded_model

PRECISIONS = ("auto", "fp32", "bf16", "fp16")

Transform = Callable[[Any, torch.Tensor | None], Any]
"""A batch on the device, and a key per sample (None in validation) → the transformed batch."""
Objective = Callable[[nn.Module, Any], tuple[torch.Tensor, int, int, Sums]]
"""Model and batch → loss, number of samples that it is a mean over (1 for a sum), number of
samples, and further sums."""


def objective_of_loss(loss: Callable[..., torch.Tensor], metrics: Metrics | None) -> Objective:
    """Return the objective for batches of (inputs, targets) and a loss that is a mean."""

    def judge(model: nn.Module, batch: Any) -> tuple[torch.Tensor, int, int, Sums]:
        inputs, targets = batch
        outputs = model(inputs)
        mean, count = loss(outputs, targets), targets.shape[0]
        return mean, count, count, metrics(outputs.detach(), targets) if metrics else {}

    return judge


def objective_of_step(step: Step) -> Objective:
    """Return the objective for a user's train_step, which returns sums.

    Raises:
        UsageError: a required sum is missing.
    """

    def judge(model: nn.Module, batch: Any) -> tuple[torch.Tensor, int, int, Sums]:
        sums = step(model, batch)
        loss, count = sums.get("loss"), sums.get("count")
        if not isinstance(loss, torch.Tensor) or count is None:
            raise UsageError(
                "train_step must return 'loss' (a tensor) and 'count'; it returned: "
                f"{', '.join(sums) or 'nothing'}",
                hint="return {'loss': sum of the losses, 'count': number of samples, …}",
            )
        return loss, 1, int(count), {k: v for k, v in sums.items() if k not in ("loss", "count")}

    return judge


class EagerStep:
    """Takes steps operation by operation, on any device."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        objective: Objective,
        *,
        world_size: int,
        device: torch.device,
        clip_norm: float | None = None,
        accumulate: int = 1,
        precision: str = "auto",
        transform: Transform | None = None,
        current: CurrentBatch | None = None,
    ) -> None:
        """Create the step.

        Args:
            model: the model, wrapped in DDP or sharded if there are several ranks.
            optimizer: the optimizer of its parameters.
            objective: computes the loss.
            world_size: number of ranks.
            device: the model's device.
            clip_norm: largest norm of the gradient.
            accumulate: number of parts into which a batch is divided, to save memory.
            precision: one of PRECISIONS.
            transform: applied to each batch on the device.
            current: passes information about the batch to exact layers, if there are any.
        """
        self.model, self.optimizer, self._objective = model, optimizer, objective
        moved = {id(one) for group in optimizer.param_groups for one in group["params"]}
        self._fixed = [one for one in model.parameters() if id(one) not in moved]
        """Parameters without an optimizer."""
        self._world_size, self._device = world_size, device
        self._transform = transform
        self._clip, self._accumulate = clip_norm, accumulate
        self._current = current
        self._cast = choose_precision(precision, device)
        self._sharded = is_sharded_model(model)
        self._judge, self._move = self._judge_plainly, optimizer.step
        self.peer_wait: PeerWait | StreamWait | None = None
        if isinstance(model, DistributedDataParallel):
            self.peer_wait = StreamWait() if device.type == "cuda" else PeerWait()
        self._compiled: Any = None
        self.scaler = torch.amp.GradScaler(device.type, enabled=self._cast == torch.float16)
        """Prevents underflow of fp16 gradients; disabled in other precisions."""

    def take(self, portion: Portion, tally: Tally) -> None:
        """Take one step, and add its sums to the tally."""
        for parameter in self._fixed:
            parameter.grad = None
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        self._backward(portion, tally)
        if self._clip is not None:
            self.scaler.unscale_(self.optimizer)
            moved = [p for group in self.optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(moved, self._clip)
        if self._cast == torch.float16:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self._move()

    def _backward(self, portion: Portion, tally: Tally | None) -> None:
        *early, last = self._divide(portion)
        if self._sharded:
            # All ranks take part in every pass, so a rank with fewer parts repeats one for nothing.
            unused = replace(portion, size=0)
            for _ in range(self._accumulate - len(early) - 1):
                with self._hold_reduction():
                    self._add_gradient(last, unused, len(early) + 1, tally, syncs=False)
        for part in early:
            with self._hold_reduction():
                self._add_gradient(part, portion, len(early) + 1, tally, syncs=False)
        self._add_gradient(last, portion, len(early) + 1, tally, syncs=True)

    def _add_gradient(
        self,
        part: tuple[Any, torch.Tensor | None],
        portion: Portion,
        parts: int,
        tally: Tally | None,
        *,
        syncs: bool,
    ) -> None:
        if self._current is None:
            loss, unit, count, sums = self._differentiate(part, portion, parts, syncs)
        else:
            with self._current.of(portion, part[1]):
                loss, unit, count, sums = self._differentiate(part, portion, parts, syncs)
        if tally is not None and portion.size:
            tally.add_loss(loss, count, unit=unit)
            if sums:
                tally.add(sums)
        elif tally is not None:
            tally.add(dict.fromkeys(("loss", *sums), 0.0))

    def _differentiate(
        self, part: tuple[Any, torch.Tensor | None], portion: Portion, parts: int, syncs: bool
    ) -> tuple[torch.Tensor, int, int, Sums]:
        batch, keys = part
        loss, unit, count, sums = self._judge(batch, keys)
        factor = self._factor(batch, portion, unit, count, parts)
        scaled = loss if factor == 1.0 else loss * factor
        if self._cast == torch.float16:
            scaled = self.scaler.scale(scaled)
        if self.peer_wait is None or not syncs:
            scaled.backward()  # type: ignore[no-untyped-call]
        else:
            self.peer_wait.backward(scaled)
        return loss, unit, count, sums

    def _judge_plainly(
        self, batch: Any, keys: torch.Tensor | None
    ) -> tuple[torch.Tensor, int, int, Sums]:
        if self._transform is not None:
            batch = self._transform(batch, keys)
        if self._cast is None:
            return self._objective(self.model, batch)
        with self.autocast():
            return self._objective(self.model, batch)

    def _divide(self, portion: Portion) -> list[tuple[Any, torch.Tensor | None]]:
        """Return the parts of a batch, each with its samples' keys if they are used."""
        batch, keys = portion.batch, portion.keys
        if isinstance(batch, Rows):
            keys = batch.keys() if self._transform or self._current else None
            batch = batch.read()
        if self._accumulate == 1:
            return [(batch, keys)]
        parts = divide(batch, self._accumulate)
        if keys is None:
            return [(part, None) for part in parts]
        return list(zip(parts, divide(keys, self._accumulate), strict=True))

    def _factor(self, part: Any, portion: Portion, unit: int, count: int, parts: int) -> float:
        """Return the weight of a loss in the gradient, before DDP divides by the world size."""
        if not portion.size:
            return 0.0
        if portion.total is None:  # other ranks' counts are unknown: all means weigh the same
            share = samples_in(part) / samples_in(portion.batch) if parts > 1 else 1.0
            return unit * share / count
        return unit * self._world_size / portion.total

    def _hold_reduction(self) -> AbstractContextManager[Any]:
        if isinstance(self.model, DistributedDataParallel):
            return self.model.no_sync()
        return hold_all_reduce(self.model)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context that computes in the chosen precision."""
        if self._cast is None:
            return nullcontext()
        # A CUDA graph must not use cached casts of weights that it has not recorded.
        return torch.autocast(self._device.type, dtype=self._cast, cache_enabled=False)

    @contextmanager
    def compiled(self) -> Iterator[None]:
        """Use compiled code for steps within the block."""
        plain = self._judge, self._move
        if self._compiled is None:
            # Batches have one shape; the generic code for a second one would be slower.
            judge = torch.compile(self._judge_plainly, dynamic=False)
            fused = all(group.get("fused") for group in self.optimizer.param_groups)
            # A scheduler wraps the method to count calls; compile the original.
            move = partial(type(self.optimizer).step, self.optimizer)
            self._compiled = (
                judge,
                self.optimizer.step if fused else torch.compile(move, dynamic=False),
            )
        self._judge, self._move = self._compiled
        try:
            yield
        finally:
            self._judge, self._move = plain

    def why_not_captured(self) -> str:
        """Return why these steps cannot be captured as a CUDA graph, or ''."""
        if self._cast == torch.float16:
            return "fp16 gradient scaling is controlled by the host"
        return make_capturable(self.optimizer, self._device)

    def settle(self, portion: Portion) -> None:
        """Have DDP arrange its buckets before the first real step.

        DDP does so after its first backward pass, in the order in which gradients arrive. Sums in
        another order differ in the last bit, so an interrupted run would not be reproducible.
        """
        if not isinstance(self.model, DistributedDataParallel):
            return
        module = self.model.module
        buffers = {name: value.clone() for name, value in module.named_buffers()}
        with undisturbed(self._device):
            for _ in range(2):
                self._backward(portion, None)
        self.optimizer.zero_grad(set_to_none=True)
        for name, value in module.named_buffers():
            value.copy_(buffers[name])


def choose_precision(name: str, device: torch.device) -> torch.dtype | None:
    """Return the type to compute in; None for the weights' own type.

    Raises:
        UsageError: there is no such precision.
    """
    if name not in PRECISIONS:
        raise UsageError(
            f"invalid value for precision: '{name}'", hint=f"use one of: {', '.join(PRECISIONS)}"
        )
    if name == "auto":
        # Emulated bf16, as on a V100, is slower than fp32.
        cuda = device.type == "cuda"
        fast = cuda and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if fast else None
    return {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[name]
