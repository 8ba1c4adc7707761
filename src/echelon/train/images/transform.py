"""Convert uint8 images into a model's input, on the device that they are on.

Crop and flip use keyed random numbers, so a sample is augmented the same way on any rank and after
any restart.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from echelon.train.randomness import uniform

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class ImageTransform(nn.Module):
    """Normalize uint8 images to mean 0 and standard deviation 1; in training, shift and flip them.

    For batches of (images, targets), with images N×C×H×W: `Trainer(transform=ImageTransform(…))`.
    It is a module so that its buffers move to the images' device.
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(
        self,
        *,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        shift: int = 0,
        flip: bool = False,
    ) -> None:
        """Create the transform.

        Args:
            mean: mean of each channel, where white is 1.
            std: standard deviation of each channel.
            shift: largest shift in each direction, in pixels; the border is filled with the mean.
            flip: whether to mirror half of the images.
        """
        super().__init__()
        self.shift, self.flip = shift, flip
        self.register_buffer("mean", 255 * torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("std", 255 * torch.tensor(std).view(1, -1, 1, 1))

    def forward(self, batch: Any, keys: torch.Tensor | None) -> Any:
        """Return the transformed batch; without keys, it is not shifted or mirrored."""
        images, *rest = batch
        ready = (images.float() - self.mean) / self.std
        if keys is not None and (self.shift or self.flip):
            ready = _gather(ready, *self._places(ready, keys))
        return (ready, *rest)

    def _places(
        self, images: torch.Tensor, keys: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return for each image the source row and column of each of its pixels."""
        height, width = images.shape[-2:]
        rows = torch.arange(height, device=images.device).expand(len(images), height)
        columns = torch.arange(width, device=images.device).expand(len(images), width)
        if self.flip:
            mirrored = (uniform(keys, 0) < 0.5).unsqueeze(1)
            columns = torch.where(mirrored, width - 1 - columns, columns)
        if self.shift:
            span = 2 * self.shift + 1
            rows = rows + ((uniform(keys, 1) * span).long() - self.shift).unsqueeze(1)
            columns = columns + ((uniform(keys, 2) * span).long() - self.shift).unsqueeze(1)
        return rows, columns


def _gather(images: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Return images of the given rows and columns; pixels from outside are 0, the mean."""
    height, width = images.shape[-2:]
    inside = _within(rows, height).unsqueeze(2) & _within(columns, width).unsqueeze(1)
    numbers = torch.arange(len(images), device=images.device).view(-1, 1, 1)
    taken = images.permute(0, 2, 3, 1)[
        numbers, rows.clamp(0, height - 1).unsqueeze(2), columns.clamp(0, width - 1).unsqueeze(1)
    ]
    return (taken * inside.unsqueeze(3)).permute(0, 3, 1, 2)


def _within(places: torch.Tensor, size: int) -> torch.Tensor:
    return (places >= 0) & (places < size)
