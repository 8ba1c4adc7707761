import gzip
import lzma
import struct
from pathlib import Path

import pytest
import torch

from echelon.errors import NotFoundError, UsageError
from echelon.train.data import read_idx

EXAMPLE = Path(__file__).parents[3] / "examples" / "mnist" / "data"


def idx(*shape, content=None):
    count = torch.Size(shape).numel()
    head = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
    return head + (bytes(range(count)) if content is None else content)


@pytest.mark.parametrize(
    ("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)]
)
def test_bytes_come_in_their_shape_however_they_are_packed(tmp_path, suffix, pack):
    (tmp_path / f"x{suffix}").write_bytes(pack(idx(2, 3)))
    assert read_idx(tmp_path / "x").tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "not an IDX file"),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), "not an IDX file"),
        (idx(2, 3)[:-1], "has 5 values, expected 6"),
        (idx(2, 3) + b"x", "has 7 values, expected 6"),
    ],
)
def test_what_is_no_whole_idx_file_is_told(tmp_path, content, problem):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(UsageError, match=problem):
        read_idx(tmp_path / "x")


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(NotFoundError, match="no train-images"):
        read_idx(tmp_path / "train-images-idx3-ubyte")


@pytest.mark.parametrize(("kind", "count"), [("train", 60000), ("t10k", 10000)])
def test_the_examples_copy_is_the_real_thing(kind, count):
    images = read_idx(EXAMPLE / f"{kind}-images-idx3-ubyte")
    labels = read_idx(EXAMPLE / f"{kind}-labels-idx1-ubyte")
    assert (tuple(images.shape), tuple(labels.shape)) == ((count, 28, 28), (count,))
    assert labels.unique().tolist() == list(range(10))
