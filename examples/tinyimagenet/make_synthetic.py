"""Create a small synthetic data set with the exact layout of TinyImageNet.

python examples/tinyimagenet/make_synthetic.py --classes 10 --train-per-class 100 tiny

Each class is a pattern: stripes of one direction and width in two colors. Every image shifts the
pattern, changes its brightness and adds noise, so that a network has something to learn and clearly
beats chance. The same seed gives the same files.
"""

import argparse
import colorsys
import math
from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 64
QUALITY = 75
WNIDS = ("n01443537", "n01629819", "n01641577", "n01644900", "n01698640", "n01742172", "n01768244")
"""The first real ones; further classes get consecutive numbers."""
TESTS_PER_CLASS = 2


def name_class(number: int) -> str:
    return WNIDS[number] if number < len(WNIDS) else f"n{2_000_000 + number:08}"


def draw(number: int, classes: int, rng: np.random.Generator) -> Image.Image:
    """Return a random image of a class."""
    angle = math.pi * number / classes + rng.normal(0, 0.04)
    period = (6, 10, 16)[number % 3] * rng.uniform(0.9, 1.1)
    rows, columns = np.mgrid[0:SIDE, 0:SIDE]
    along = columns * math.cos(angle) + rows * math.sin(angle)
    wave = 0.5 + 0.5 * np.sin(2 * math.pi * (along / period + rng.uniform()))
    hue = number / classes
    light, dark = (
        np.array(colorsys.hsv_to_rgb((hue + shift) % 1, 0.7, value))
        for shift, value in ((0.0, 0.9), (0.35, 0.4))
    )
    image = wave[..., None] * light + (1 - wave[..., None]) * dark
    image = image * rng.uniform(0.6, 1.1) + rng.normal(0, 0.12, image.shape)
    return Image.fromarray((image.clip(0, 1) * 255).astype(np.uint8))


def save(image: Image.Image, path: Path, rng: np.random.Generator) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Like the real data set: a few gray images among the colored ones, files of about 2 kB.
    (image.convert("L") if rng.random() < 0.02 else image).save(path, "JPEG", quality=QUALITY)


def box(rng: np.random.Generator) -> str:
    x, y = rng.integers(0, SIDE // 2, 2)
    return f"{x}\t{y}\t{x + SIDE // 2 - 1}\t{y + SIDE // 2 - 1}"


def make_train(folder: Path, wnids: list[str], count: int, rng: np.random.Generator) -> None:
    for number, wnid in enumerate(wnids):
        boxes = []
        for k in range(count):
            name = f"{wnid}_{k}.JPEG"
            save(draw(number, len(wnids), rng), folder / wnid / "images" / name, rng)
            boxes.append(f"{name}\t{box(rng)}\n")
        (folder / wnid / f"{wnid}_boxes.txt").write_text("".join(boxes))


def make_val(folder: Path, wnids: list[str], count: int, rng: np.random.Generator) -> None:
    """Create the validation split. As in the real one, file names do not show the class."""
    lines = []
    for k, number in enumerate(rng.permutation(np.repeat(np.arange(len(wnids)), count))):
        name = f"val_{k}.JPEG"
        save(draw(int(number), len(wnids), rng), folder / "images" / name, rng)
        lines.append(f"{name}\t{wnids[number]}\t{box(rng)}\n")
    (folder / "val_annotations.txt").write_text("".join(lines))


def make_test(folder: Path, wnids: list[str], rng: np.random.Generator) -> None:
    """Create the test split, without labels."""
    for k in range(TESTS_PER_CLASS * len(wnids)):
        image = draw(int(rng.integers(len(wnids))), len(wnids), rng)
        save(image, folder / "images" / f"test_{k}.JPEG", rng)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--train-per-class", type=int, default=100)
    parser.add_argument("--val-per-class", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.folder.exists() and any(options.folder.iterdir()):
        parser.error(f"{options.folder} is not empty")
    rng = np.random.default_rng(options.seed)
    wnids = [name_class(number) for number in range(options.classes)]
    make_train(options.folder / "train", wnids, options.train_per_class, rng)
    make_val(options.folder / "val", wnids, options.val_per_class, rng)
    make_test(options.folder / "test", wnids, rng)
    # The real list is not sorted either.
    listed = [wnids[number] for number in rng.permutation(len(wnids))]
    (options.folder / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in listed))
    words = [f"{wnid}\tstripes {number}, pattern\n" for number, wnid in enumerate(wnids)]
    (options.folder / "words.txt").write_text("".join(words))


if __name__ == "__main__":
    main()
