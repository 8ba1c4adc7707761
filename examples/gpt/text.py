"""Text as bytes: a folder's files, packed once into one file that all ranks read."""

import os
import sysconfig
from pathlib import Path

import torch
from torch.utils.data import Dataset

SUFFIXES = {".c", ".cpp", ".h", ".js", ".md", ".py", ".rst", ".txt"}
HELD_OUT = 20
"""One of so many windows is for validation."""


def pack_text(folder: Path | None, packed: Path) -> None:
    """Write the text files of a folder, or the standard library's, one after the other.

    Only one process may call it. A file that is there already is not written again: a training
    continues with the text it began with.
    """
    if packed.exists():
        return
    root = folder or Path(sysconfig.get_paths()["stdlib"])
    if not root.is_dir():
        raise SystemExit(f"error: {root} is not a folder")
    temporary = packed.with_name(f".{packed.name}-{os.getpid()}")
    with temporary.open("wb") as out:
        for path in list_files(root):
            out.write(path.read_bytes())
            out.write(b"\0")  # end of text
    if not temporary.stat().st_size:
        temporary.unlink()
        raise SystemExit(f"error: {root} has no files ending in {' '.join(sorted(SUFFIXES))}")
    temporary.rename(packed)


def list_files(root: Path) -> list[Path]:
    """Return a folder's text files, in the same order everywhere; without installed packages."""
    found = (path for path in root.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    return sorted(path for path in found if "site-packages" not in path.parts)


class Windows(Dataset):
    """Windows of `length` bytes, each with the byte that follows every byte of it."""

    def __init__(self, packed: Path, length: int, *, train: bool, limit: int | None) -> None:
        size = packed.stat().st_size
        self.bytes = torch.from_file(str(packed), size=size, dtype=torch.uint8)
        self.length = length
        count = (size - 1) // length
        self.starts = [n * length for n in range(count) if (n % HELD_OUT == 0) != train][:limit]
        if not self.starts:
            raise SystemExit(f"error: {packed} has only {size} bytes, too few for {length} a time")

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = self.starts[index]
        window = self.bytes[start : start + self.length + 1].long()
        return window[:-1], window[1:]

    def batch(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return whole batches at once, which is faster."""
        pairs = [self[index] for index in indices]
        return torch.stack([one for one, _ in pairs]), torch.stack([one for _, one in pairs])
