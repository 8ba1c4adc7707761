"""Layers whose result does not depend on how the global batch is divided among ranks.

torch's BatchNorm uses its own rank's samples, and its dropout depends on their position, so both
change with the number of ranks. Here, BatchNorm's statistics are those of the global batch, and a
sample's dropout mask is a function of (seed, epoch, sample, layer).
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from echelon.errors import UsageError
from echelon.train.agreement import collective_device, is_alone
from echelon.train.loading import Portion
from echelon.train.randomness import uniforms


class CurrentBatch:
    """The current batch: information for the layers that is not in their input."""

    def __init__(self) -> None:
        self.portion: Portion | None = None
        """None outside of a step; layers then behave like torch's own."""
        self.keys: torch.Tensor | None = None
        """One key per sample of the pass."""
        self._calls: Counter[int] = Counter()

    @contextmanager
    def of(self, portion: Portion, keys: torch.Tensor | None) -> Iterator[None]:
        """Set the portion of the forward and backward passes in this block."""
        self.portion, self.keys = portion, keys
        self._calls.clear()
        try:
            yield
        finally:
            self.portion = self.keys = None

    def draw(self, layer: int) -> int:
        """Return the draw number of a layer: a new one for each call in a pass.

        Raises:
            UsageError: activation checkpointing repeats a call, and it is unknown which one.
        """
        if torch._C._current_graph_task_id() != -1:  # noqa: SLF001  in the backward pass
            if self._calls[layer] > 1:
                raise UsageError(
                    "with exact_layers, a dropout layer inside activation checkpointing cannot be "
                    "used several times",
                    hint="use a separate layer for each place, or omit exact_layers",
                )
            return layer << 32
        self._calls[layer] += 1
        return (layer << 32) + self._calls[layer] - 1


# --- BatchNorm --------------------------------------------------------------------------------


class _SumOverRanks(torch.autograd.Function):
    """The sum of the ranks' tensors; its gradient is the sum of the ranks' gradients."""

    @staticmethod
    def forward(_ctx: Any, values: torch.Tensor) -> torch.Tensor:
        summed = (
            values.detach().to(collective_device()).clone(memory_format=torch.contiguous_format)
        )
        if not is_alone():
            dist.all_reduce(summed)
        return summed.to(values.device)

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> Any:
        return _sum_over_ranks(gradient)


def _sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    summed: torch.Tensor = _SumOverRanks.apply(values)  # type: ignore[no-untyped-call]
    return summed


def batch_statistics(
    inputs: torch.Tensor, *, counts: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return mean and variance of each channel over all ranks' samples, and the number of values.

    This is a collective, with another one in the backward pass. Every rank takes part in both, even
    if its samples do not count; hence the empty slice, which sums to 0 and has a gradient.
    """
    counted = inputs[: len(inputs) if counts else 0]
    others = [0, *range(2, inputs.ndim)]
    sums = counted.sum(others).double()
    values = sums.new_tensor([counted.numel() // inputs.shape[1]])
    totals = _sum_over_ranks(torch.cat([sums, values]))
    count = totals[-1].detach()
    mean = totals[:-1] / count
    apart = counted - _per_channel(mean, inputs)
    variance = _sum_over_ranks(apart.square().sum(others).double()) / count
    return mean, variance, count


def _per_channel(values: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    return values.to(inputs.dtype).view(1, -1, *[1] * (inputs.ndim - 2))


class ExactBatchNorm:
    """Forward pass of a BatchNorm: over the global batch in training, otherwise torch's own."""

    def __init__(self, layer: _BatchNorm, current: CurrentBatch) -> None:
        self._layer, self._current = layer, current

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        layer, portion = self._layer, self._current.portion
        if portion is None or not layer.training or is_alone():
            return _BatchNorm.forward(layer, inputs)
        layer._check_input_dim(inputs)  # type: ignore[no-untyped-call]  # noqa: SLF001
        if portion.total == 1 and inputs[0, 0].numel() == 1:  # the same check as in torch
            raise ValueError("Expected more than 1 value per channel when training, got 1 over all")
        values = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
        mean, variance, count = batch_statistics(values, counts=portion.size > 0)
        if layer.track_running_stats:
            self._follow(mean.detach(), variance.detach() * (count / (count - 1).clamp(min=1)))
        scale = (variance + layer.eps).rsqrt()
        normal = (values - _per_channel(mean, values)) * _per_channel(scale, values)
        if layer.weight is not None:
            normal = normal * _per_channel(layer.weight, values)
        if layer.bias is not None:
            normal = normal + _per_channel(layer.bias, values)
        return normal.to(inputs.dtype)

    def _follow(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Update the running statistics; without a momentum they are the mean over all batches."""
        layer, tracked = self._layer, self._layer.num_batches_tracked
        assert tracked is not None
        tracked.add_(1)
        share = 1 / float(tracked) if layer.momentum is None else layer.momentum
        for running, found in ((layer.running_mean, mean), (layer.running_var, variance)):
            assert running is not None
            running.lerp_(found.to(running.dtype), share)


# --- dropout ----------------------------------------------------------------------------------


class ExactDropout:
    """Forward pass of a dropout layer: keyed by sample in training, otherwise torch's own."""

    def __init__(self, layer: _DropoutNd, current: CurrentBatch, number: int) -> None:
        self._layer, self._current, self._number = layer, current, number
        self._channels = not isinstance(layer, nn.Dropout)
        """Whether it drops whole channels instead of single values."""

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        layer, keys = self._layer, self._current.keys
        if keys is None or not layer.training or layer.p == 0:
            plain: torch.Tensor = type(layer).forward(layer, inputs)
            return plain
        if len(inputs) != len(keys):
            raise UsageError(
                f"a dropout layer got an input of shape {tuple(inputs.shape)} in a batch of "
                f"{len(keys)} samples; with exact_layers, the first dimension must be the batch",
                hint="use batch_first=True, or apply dropout before reshaping samples, or omit "
                "exact_layers",
            )
        drawn = inputs.shape[1:2] if self._channels else inputs.shape[1:]
        draws = uniforms(keys, self._current.draw(self._number), drawn.numel())
        dropped = (draws < layer.p).view(len(keys), *drawn, *[1] * (inputs.ndim - 1 - len(drawn)))
        scale = 0.0 if layer.p == 1 else 1 / (1 - layer.p)
        if layer.inplace:
            return inputs.masked_fill_(dropped, 0).mul_(scale)
        return inputs.masked_fill(dropped, 0) * scale


# --- models -----------------------------------------------------------------------------------

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def make_exact(model: nn.Module, *, accumulate: int = 1) -> CurrentBatch:
    """Replace the forward passes of a model's layers; return the object that steps pass data in.

    The layers keep their names, parameters and hooks. A layer with a forward pass of its own, such
    as SyncBatchNorm, keeps it.

    Raises:
        UsageError: the model has BatchNorm, and batches are divided (accumulate > 1).
    """
    current = CurrentBatch()
    for number, (name, layer) in enumerate(model.named_modules()):
        its = type(layer).forward
        if its is _BatchNorm.forward and accumulate > 1:
            raise UsageError(
                f"exact_layers cannot be used with accumulate={accumulate}: '{name}' would use the "
                "statistics of a part of the batch, which depends on the number of ranks",
                hint="use accumulate=1, or omit exact_layers",
            )
        if its is _BatchNorm.forward:
            layer.forward = ExactBatchNorm(cast("_BatchNorm", layer), current)
        elif any(its is kind.forward for kind in _DROPOUTS):
            layer.forward = ExactDropout(cast("_DropoutNd", layer), current, number)
    return current
