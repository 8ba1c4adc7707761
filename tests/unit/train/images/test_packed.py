"""Reading packed files: what comes out, and what is refused."""

import copy
import hashlib
import pickle
import struct

import pytest
import torch
from torch.utils.data import DataLoader

from echelon.errors import NotFoundError, UsageError
from echelon.train.images import packing
from echelon.train.images.folders import list_folder
from echelon.train.images.packed import PackedImages
from image_folders import class_folders, pixels


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed")
    listing = list_folder(class_folders(folder / "set", per_class=10))
    packing.pack(packing.make_plan(listing, folder / "x.packed", size=None), workers=1)
    return folder / "x.packed"


def expected(number):
    """The image as H×W×3 in the file, seen as 3×H×W."""
    flat = torch.frombuffer(bytearray(pixels(number)), dtype=torch.uint8)
    return flat.view(6, 8, 3).permute(2, 0, 1)


def test_images_labels_and_classes_come_back(packed):
    data = PackedImages(packed)
    assert len(data) == 30
    assert data.classes == ["ant", "bee", "cow"]
    assert (data.images.shape, data.images.dtype) == ((30, 3, 6, 8), torch.uint8)
    assert data.images.is_contiguous(memory_format=torch.channels_last)
    assert (data.labels.dtype, data.labels.tolist()) == (torch.int64, [k // 10 for k in range(30)])
    image, label = data[17]
    assert torch.equal(image, expected(17))
    assert (label.item(), label.dtype) == (1, torch.int64)
    assert torch.equal(data[-1][0], expected(29))
    with pytest.raises(IndexError):
        data[30]


@pytest.mark.parametrize("kind", [list, tuple, torch.tensor])
def test_a_batch_is_its_samples(packed, kind):
    data = PackedImages(packed)
    images, labels = data.batch(kind([5, 29, 0, 5]))
    assert torch.equal(images, torch.stack([expected(k) for k in (5, 29, 0, 5)]))
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert labels.tolist() == [0, 2, 0, 0]
    assert data.batch([])[0].shape == (0, 3, 6, 8)
    with pytest.raises((IndexError, RuntimeError)):
        data.batch([30])


def test_what_is_written_to_images_stays_in_memory(packed):
    before = packed.read_bytes()
    data = PackedImages(packed)
    data.images[0] = 255
    image, _ = data[1]
    image.zero_()
    assert torch.equal(data.images[1], expected(1))
    assert packed.read_bytes() == before
    assert torch.equal(PackedImages(packed).images[0], expected(0))


@pytest.mark.parametrize("again", [lambda data: pickle.loads(pickle.dumps(data)), copy.deepcopy])
def test_a_copy_opens_the_file_itself(packed, again, monkeypatch):
    monkeypatch.chdir(packed.parent)
    data = PackedImages("x.packed")
    monkeypatch.chdir("/")
    assert len(pickle.dumps(data)) < 1000
    other = again(data)
    assert torch.equal(other.images, data.images)
    assert other.images.data_ptr() != data.images.data_ptr()


@pytest.mark.parametrize(("start", "batch_size"), [("fork", 4), ("fork", None), ("spawn", 4)])
def test_loaders_with_processes_see_all_of_it(packed, start, batch_size):
    data = PackedImages(packed)
    loader = DataLoader(data, batch_size, num_workers=1, multiprocessing_context=start, timeout=60)
    images = torch.cat([images.view(-1, 3, 6, 8) for images, _ in loader])
    assert torch.equal(images, data.images)


def newer(content):
    return content[:8] + struct.pack("<I", 2) + content[12:]


def nonsense(content):
    text = b'{"count": 3}'
    head = struct.pack("<8sII32s", content[:8], 1, len(text), hashlib.sha256(text).digest())
    return head + text


def flip(place):
    return lambda content: content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: b"", "is not a packed file"),
        (lambda _: b"\x89PNG\r\n\x1a\n" + bytes(100), "is not a packed file"),
        (lambda content: content[:20], "is truncated after 20 bytes"),
        (lambda content: content[:100], "header of .* is damaged"),
        (lambda content: content[:-1], "has 8415 bytes, expected 8416"),
        (lambda content: content + b"x", "has 8417 bytes, expected 8416"),
        (newer, "has format version 2; this Echelon supports up to 1"),
        (flip(60), "header of .* is damaged"),
        (nonsense, "header of .* is invalid"),
    ],
)
def test_what_is_no_whole_packed_file_is_told(packed, tmp_path, change, message):
    (tmp_path / "y.packed").write_bytes(change(packed.read_bytes()))
    with pytest.raises(UsageError, match=message) as caught:
        PackedImages(tmp_path / "y.packed")
    assert caught.value.hint


def test_damaged_labels_are_told(packed, tmp_path):
    content = bytearray(packed.read_bytes())
    content[content.index(struct.pack("<5q", 0, 1, 1, 1, 1))] ^= 1
    (tmp_path / "y.packed").write_bytes(content)
    with pytest.raises(UsageError, match=r"labels of .* are damaged"):
        PackedImages(tmp_path / "y.packed")


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(NotFoundError, match="there is no packed file") as caught:
        PackedImages(tmp_path / "x.packed")
    assert "echelon pack" in caught.value.hint
    with pytest.raises(UsageError, match="is a directory"):
        PackedImages(tmp_path)
