"""Metrics of a training: sums over samples on the device, and means over all ranks.

A mean of means is wrong if batches have different sizes; sums with their count are always right.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from echelon.train.agreement import sum_over_ranks

Sums = Mapping[str, torch.Tensor | float]
"""Sums over the samples of a batch: `loss`, `count`, and any further metrics."""
Step = Callable[[nn.Module, Any], Sums]
"""Model and batch → sums; the form of both training and validation steps."""
Metrics = Callable[[torch.Tensor, torch.Tensor], Mapping[str, torch.Tensor]]
"""Outputs and targets → sums over the samples."""


class Tally:
    """Accumulates sums and returns their means. Only `means` waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._on_cpu = device, device.type == "cpu"
        self._sums: dict[str, Any] = {}
        """Tensors on a device; on the CPU plain numbers, which are faster to add."""
        self._count = 0.0

    @property
    def samples(self) -> float:
        """Number of samples counted since the last call of `means`."""
        return self._count

    def add(self, sums: Sums, *, unit: float = 1.0) -> None:
        """Add a batch's sums, each multiplied by `unit`: for means, their number of samples.

        Add zeros for a batch that must not count: all ranks need the same names.
        """
        for name, value in sums.items():
            if name == "count":
                self._count += float(value)
            elif self._on_cpu:
                number = value.item() if isinstance(value, torch.Tensor) else value
                self._sums[name] = self._sums.get(name, 0.0) + unit * number
            else:
                if name not in self._sums:
                    self._sums[name] = torch.zeros((), dtype=torch.float64, device=self._device)
                held = value.detach() if isinstance(value, torch.Tensor) else value
                self._sums[name].add_(held, alpha=unit)

    def add_loss(self, loss: torch.Tensor, count: int, *, unit: float) -> None:
        """Add a batch's loss and its number of samples; every step does this."""
        if self._on_cpu:
            self._count += count
            self._sums["loss"] = self._sums.get("loss", 0.0) + unit * loss.item()
        else:
            self.add({"loss": loss, "count": count}, unit=unit)

    def means(self) -> dict[str, float]:
        """Return the means over all ranks' samples, and reset the sums. A collective."""
        names = sorted(self._sums)
        values = [self._sums[name] for name in names]
        if self._on_cpu:
            *sums, count = sum_over_ranks([*values, self._count])
        else:
            counted = torch.tensor(self._count, dtype=torch.float64, device=self._device)
            *sums, count = sum_over_ranks(torch.stack([*values, counted]))
        for name, value in zip(names, values, strict=True):
            self._sums[name] = 0.0 if self._on_cpu else value.zero_()
        self._count = 0.0
        return {name: value / count for name, value in zip(names, sums, strict=True) if count}

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Discard what is counted in the block. Tensors keep their memory."""
        count, before = self._count, {n: value.clone() for n, value in self._sums.items()}
        try:
            yield
        finally:
            self._count = count
            for name, value in self._sums.items():
                value.copy_(before[name]) if name in before else value.zero_()

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's sums, so that a restart does not change the reported means."""
        return {"sums": dict(self._sums), "count": self._count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._sums, self._count = {}, state["count"]
        self.add(state["sums"])  # may have been saved on another type of device


def top_k(*ks: int) -> Metrics:
    """Return a classifier's top-k accuracies: how often the target is among the first k.

    Top-1 is called `accuracy`, others `top5` and so on.
    """

    def measure(outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        best = min(max(ks), outputs.shape[1])
        hits = outputs.topk(best, dim=1).indices == targets.unsqueeze(1)
        return {"accuracy" if k == 1 else f"top{k}": hits[:, :k].sum() for k in ks}

    return measure
