"""Data sets written by `echelon pack`: one memory-mapped file, read in whole batches."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch.utils.data import Dataset

from echelon.train.images import packfile


class PackedImages(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Images of one size and their labels, in one memory-mapped file.

    Opening it reads only the labels. Images are read from disk on first use, and all processes of a
    machine share them. Changes to `images` stay in this process.
    """

    samples_are_rows = True
    """A sample is exactly one row of `tensors`."""
    images: torch.Tensor
    """N×3×H×W, uint8; in memory the channels are last."""
    labels: torch.Tensor
    """N, int64."""
    classes: list[str]
    """Names by label; empty if labels are numbers without names."""
    words: list[str]
    """Readable names of the classes, if the source has them."""

    def __init__(self, path: Path | str) -> None:
        """Open a file.

        Raises:
            NotFoundError: the file does not exist.
            UsageError: it is not a packed file, has a newer format, or is damaged or truncated.
        """
        self.path = Path(path).absolute()
        header = packfile.read_header(self.path)
        labels = bytearray(packfile.read_labels(self.path, header))
        self.classes, self.words = list(header.classes), list(header.words)
        self.labels = torch.frombuffer(labels, dtype=torch.int64)
        # Not shared: a page that is written to becomes this process's own copy.
        content = torch.from_file(
            str(self.path), shared=False, size=header.file_bytes, dtype=torch.uint8
        )
        self._rows = content[header.images_offset :].view(header.count, header.image_bytes)
        self._shape = (header.height, header.width, packfile.CHANNELS)
        self.images = self._rows.view(-1, *self._shape).permute(0, 3, 1, 2)

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Images and labels; a data set of tensors can be kept on a GPU, if it fits."""
        return self.images, self.labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        # A copy: sending a view to another process would send the whole file.
        return self.images[index].clone(), self.labels[index].clone()

    def batch(self, indices: Sequence[int] | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a whole batch in one copy: B×3×H×W, uint8, channels last; and its labels."""
        wanted = torch.as_tensor(indices, dtype=torch.int64)
        images = self._rows.index_select(0, wanted).view(-1, *self._shape)
        return images.permute(0, 3, 1, 2), self.labels.index_select(0, wanted)

    def __reduce__(self) -> tuple[type["PackedImages"], tuple[Path]]:
        # Another process maps the file itself.
        return type(self), (self.path,)
