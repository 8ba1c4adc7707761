"""Images as they come from a file, uint8, made ready for a model on whatever device they are on.

Crop and flip draw keyed numbers, so a sample is augmented alike on any rank and after any restart.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from echelon.train.randomness import uniform

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTransform:
    """uint8 images → floats of mean 0 and deviation 1; in training shifted and flipped.

    For batches of (images, targets), with images N×C×H×W: `Trainer(transform=ImageTransform(…))`.
    """

    mean: tuple[float, ...] = IMAGENET_MEAN
    """Of each channel, where white is 1."""
    std: tuple[float, ...] = IMAGENET_STD
    shift: int = 0
    """By how many pixels an image is moved at most, in each direction; what comes in is grey."""
    flip: bool = False
    """Whether half of the images are mirrored."""

    def __call__(self, batch: Any, keys: torch.Tensor | None) -> Any:
        """Return a batch made ready; not moved nor mirrored when there are no keys."""
        images, *rest = batch
        return (self._prepare(images, keys), *rest)

    def _prepare(self, images: torch.Tensor, keys: torch.Tensor | None) -> torch.Tensor:
        ready = (images.float() - _levels(self.mean, images.device)) / _levels(
            self.std, images.device
        )
        if keys is None or not (self.shift or self.flip):
            return ready
        return _gather(ready, *self._places(ready, keys.to(ready.device)))

    def _places(
        self, images: torch.Tensor, keys: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return for each image which row and which column each of its pixels comes from."""
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


@cache
def _levels(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """Return a number per channel, where white is 255. Kept: a copy to a GPU waits for it."""
    return torch.tensor(values, device=device).view(1, -1, 1, 1) * 255


def _gather(images: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Return images of those rows and columns; a pixel from outside is 0, the mean."""
    height, width = images.shape[-2:]
    inside = _within(rows, height).unsqueeze(2) & _within(columns, width).unsqueeze(1)
    numbers = torch.arange(len(images), device=images.device).view(-1, 1, 1)
    taken = images.permute(0, 2, 3, 1)[
        numbers, rows.clamp(0, height - 1).unsqueeze(2), columns.clamp(0, width - 1).unsqueeze(1)
    ]
    return (taken * inside.unsqueeze(3)).permute(0, 3, 1, 2)


def _within(places: torch.Tensor, size: int) -> torch.Tensor:
    return (places >= 0) & (places < size)
