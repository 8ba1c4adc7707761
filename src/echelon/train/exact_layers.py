"""Layers whose result does not depend on how the global batch is divided over ranks.

torch's BatchNorm sees its own rank's samples, and its dropout draws by their place: on another
number of ranks both compute something else. Here BatchNorm's statistics are those of the global
batch, and what dropout keeps of a sample is a function of (seed, epoch, sample, layer).
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
    """The batch that is under way: what layers have to know of it, and their input does not say."""

    def __init__(self) -> None:
        self.portion: Portion | None = None
        """None outside of a step; the layers are torch's own then."""
        self.keys: torch.Tensor | None = None
        """One for each sample of the pass."""
        self._calls: Counter[int] = Counter()

    @contextmanager
    def of(self, portion: Portion, keys: torch.Tensor | None) -> Iterator[None]:
        """Say whose the passes in this block are, forward and backward."""
        self.portion, self.keys = portion, keys
        self._calls.clear()
        try:
            yield
        finally:
            self.portion = self.keys = None

    def draw(self, layer: int) -> int:
        """Return the number of a layer's draw: a new one each time that a pass comes by it.

        Raises:
            UsageError: activation checkpointing comes by again, and nobody knows which time it is.
        """
        if torch._C._current_graph_task_id() != -1:  # noqa: SLF001  in the backward pass
            if self._calls[layer] > 1:
                raise UsageError(
                    "a dropout layer that is used several times is inside activation checkpointing",
                    hint="give each place a layer of its own, or leave exact_layers out",
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
    """Return mean and variance of each channel over all ranks' samples, and of how many values.

    A collective, and another in the backward pass: every rank takes part in both, whether its
    samples count or not. Hence the empty slice, which sums to 0 and still has a gradient.
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
    """A BatchNorm's forward pass, over the global batch in training; torch's own otherwise."""

    def __init__(self, layer: _BatchNorm, current: CurrentBatch) -> None:
        self._layer, self._current = layer, current

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        layer, portion = self._layer, self._current.portion
        if portion is None or not layer.training or is_alone():
            return _BatchNorm.forward(layer, inputs)
        layer._check_input_dim(inputs)  # type: ignore[no-untyped-call]  # noqa: SLF001
        if portion.total == 1 and inputs[0, 0].numel() == 1:  # torch's own words, and its reason
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
        """Move the running statistics; without a momentum they are the mean of all batches'."""
        layer, tracked = self._layer, self._layer.num_batches_tracked
        assert tracked is not None
        tracked.add_(1)
        share = 1 / float(tracked) if layer.momentum is None else layer.momentum
        for running, found in ((layer.running_mean, mean), (layer.running_var, variance)):
            assert running is not None
            running.lerp_(found.to(running.dtype), share)


# --- dropout ----------------------------------------------------------------------------------


class ExactDropout:
    """A dropout's forward pass, keyed by sample in training; torch's own otherwise."""

    def __init__(self, layer: _DropoutNd, current: CurrentBatch, number: int) -> None:
        self._layer, self._current, self._number = layer, current, number
        self._channels = not isinstance(layer, nn.Dropout)
        """Whether it drops whole channels, not single values."""

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        layer, keys = self._layer, self._current.keys
        if keys is None or not layer.training or layer.p == 0:
            plain: torch.Tensor = type(layer).forward(layer, inputs)
            return plain
        if len(inputs) != len(keys):
            raise UsageError(
                f"a dropout layer got {tuple(inputs.shape)} in a batch of {len(keys)} samples, and "
                "with exact_layers the first dimension has to be theirs",
                hint="batch_first=True perhaps, or drop before samples are taken apart; "
                "or leave exact_layers out",
            )
        drawn = inputs.shape[1:2] if self._channels else inputs.shape[1:]
        draws = uniforms(keys, self._current.draw(self._number), drawn.numel())
        dropped = (draws < layer.p).view(len(keys), *drawn, *[1] * (inputs.ndim - 1 - len(drawn)))
        scale = 0.0 if layer.p == 1 else 1 / (1 - layer.p)
        if layer.inplace:
            return inputs.masked_fill_(dropped, 0).mul_(scale)
        return inputs.masked_fill(dropped, 0) * scale


# --- a whole model ----------------------------------------------------------------------------

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def make_exact(model: nn.Module, *, accumulate: int = 1) -> CurrentBatch:
    """Give a model's layers their exact forward passes, and return what a step says to them.

    The layers stay what they are, with their names, parameters and hooks. One that has a forward
    pass of its own, as SyncBatchNorm has, keeps it.

    Raises:
        UsageError: there is BatchNorm, and batches are divided before it sees them.
    """
    current = CurrentBatch()
    for number, (name, layer) in enumerate(model.named_modules()):
        its = type(layer).forward
        if its is _BatchNorm.forward and accumulate > 1:
            raise UsageError(
                f"exact_layers with accumulate={accumulate}: '{name}' would see the statistics of "
                "a part of the batch, another one on each number of ranks",
                hint="use accumulate=1, or leave exact_layers out",
            )
        if its is _BatchNorm.forward:
            layer.forward = ExactBatchNorm(cast("_BatchNorm", layer), current)
        elif any(its is kind.forward for kind in _DROPOUTS):
            layer.forward = ExactDropout(cast("_DropoutNd", layer), current, number)
    return current
