"""Images per second and core that loaders deliver, from JPEG files and from a packed file.

    .venv/bin/python benchmarks/loader.py [--rounds N] [--images N]

Reads a synthetic TinyImageNet (64×64) in shuffled batches of 256, once per loader and round: JPEG
files, decoded with Pillow and converted to floats, like torchvision's ImageFolder and ToTensor;
packed, sample by sample through a DataLoader; and packed, in whole batches, as bytes (for
normalization on the device) and normalized on the CPU. All files are in the page cache. Writes
benchmarks/results/loader.json.

"Per core" means per second of CPU time of all processes, which does not depend on other load and
makes loaders with and without worker processes comparable.
"""

import argparse
import operator
import resource
import statistics
import subprocess
import sys
from pathlib import Path

import measuring
import numpy as np
import torch
from measuring import ECHELON, workshop
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from echelon.train.images.folders import list_split
from echelon.train.images.packed import PackedImages

MAKE = Path(__file__).parents[1] / "examples" / "tinyimagenet" / "make_synthetic.py"
CLASSES = 20
BATCH = 256
MEAN, STD = torch.tensor([0.48, 0.45, 0.4]), torch.tensor([0.28, 0.27, 0.28])
FILES, FILES_2 = "JPEG files, DataLoader", "JPEG files, DataLoader, 2 processes"
SAMPLES, BYTES, FLOATS = (
    "packed, DataLoader, sample by sample",
    "packed, whole batches, uint8",
    "packed, whole batches, normalised floats",
)
EPOCHS = {BYTES: 50, FLOATS: 5}
"""Epochs per round, if not one: fast loaders are timed over more than a few milliseconds."""


class ImageFiles(Dataset):
    """Equivalent of torchvision's ImageFolder with ToTensor."""

    def __init__(self, folder):
        listing = list_split(folder, "train")
        self.samples = [(str(listing.folder / e.file), e.label) for e in listing.entries]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, label = self.samples[index]
        with open(path, "rb") as file:  # noqa: PTH123  as torchvision does
            image = np.array(Image.open(file).convert("RGB"))
        return torch.from_numpy(image).permute(2, 0, 1).contiguous().float().div(255), label


def load(data, **options):
    yield from DataLoader(data, BATCH, shuffle=True, **options)


def gather(data):
    for indices in torch.randperm(len(data)).split(BATCH):
        yield data.batch(indices)


def normalise(batches):
    """Convert bytes to floats, whole rows of pixels at a time, which is fast on a CPU."""
    for images, labels in batches:
        pixels = images.permute(0, 2, 3, 1)
        shape = pixels.shape
        scale, shift = (x.repeat(shape[1] * shape[2]) for x in (1 / (255 * STD), MEAN / STD))
        floats = torch.mul(pixels.reshape(shape[0], -1), scale).sub_(shift)
        yield floats.view(shape).permute(0, 3, 1, 2), labels


def cpu_s():
    """Return the CPU time of this process and of its terminated children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def measure(loader, epochs, count):
    """Return images per second of CPU time."""
    before, seen = cpu_s(), 0
    for _ in range(epochs):
        for images, labels in loader():
            assert len(images) == len(labels)
            seen += len(images)
    assert seen == epochs * count, (seen, count)
    return seen / (cpu_s() - before)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--images", type=int, default=4000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with workshop() as folder:
        per_class = ["--train-per-class", str(options.images // CLASSES), "--val-per-class", "1"]
        make = [sys.executable, str(MAKE), str(folder / "tiny"), "--classes", str(CLASSES)]
        subprocess.run([*make, *per_class], check=True)
        pack = [*ECHELON, "pack", str(folder / "tiny"), "--split", "train"]
        subprocess.run(pack, check=True, capture_output=True)
        files, packed = ImageFiles(folder / "tiny"), PackedImages(folder / "tiny" / "train.packed")
        loaders = {
            FILES: lambda: load(files),
            FILES_2: lambda: load(files, num_workers=2),
            SAMPLES: lambda: load(packed),
            BYTES: lambda: gather(packed),
            FLOATS: lambda: normalise(gather(packed)),
        }
        rates = {name: [] for name in loaders}
        for number in range(options.rounds + 1):
            for name, loader in loaders.items():
                rate = measure(loader, EPOCHS.get(name, 1), len(files))
                if number:  # skip the first, which fills the page cache
                    rates[name].append(rate)
    rows = {
        name: {
            "images/s per core": round(statistics.median(measured)),
            # Compare within a round, so that both sides had the same conditions.
            "× JPEG files": round(
                statistics.median(map(operator.truediv, measured, rates[FILES])), 2
            ),
            "rounds": len(measured),
        }
        for name, measured in rates.items()
    }
    goals = {
        "JPEG files to packed bytes, images/s per core": (
            round(1 / rows[BYTES]["× JPEG files"], 4),
            1 / 20,
        )
    }
    measuring.write_results("loader", rows, goals, images=len(files))


if __name__ == "__main__":
    main()
