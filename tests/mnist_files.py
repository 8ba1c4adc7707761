"""A few images in MNIST's own files: any net can tell them apart after a few steps."""

import random
import struct


def write_digits(folder, *, train=256, test=64):
    """Write a training set and a test set, in which a bright column says which digit it is."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind, count in (("train", train), ("t10k", test)):
        draw = random.Random(kind)  # noqa: S311  the same images every time
        labels = bytes(draw.randrange(10) for _ in range(count))
        pixels = b"".join(_draw_digit(label, draw) for label in labels)
        (folder / f"{kind}-labels-idx1-ubyte").write_bytes(
            struct.pack(">2I", 0x801, count) + labels
        )
        head = struct.pack(">4I", 0x803, count, 28, 28)
        (folder / f"{kind}-images-idx3-ubyte").write_bytes(head + pixels)
    return folder


def _draw_digit(label, draw):
    rows = []
    for _ in range(28):
        row = bytearray(draw.randrange(64) for _ in range(28))
        row[2 * label + 4 : 2 * label + 6] = b"\xff\xff"
        rows.append(bytes(row))
    return b"".join(rows)
