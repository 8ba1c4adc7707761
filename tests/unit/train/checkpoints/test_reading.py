"""Any part of a tensor is read from any layout; checkpoints of version 1 too."""

import hashlib
import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from echelon.train.checkpoint import Checkpointer
from echelon.train.checkpoints import safetensors_file
from echelon.train.checkpoints.layout import Box, Layout, whole
from echelon.train.checkpoints.manifest import (
    CheckpointError,
    Laid,
    Manifest,
    PartIndex,
    checkpoint_path,
    part_path,
)
from echelon.train.checkpoints.reading import Reader
from echelon.train.checkpoints.safetensors_file import TensorType, write_file

LAYOUTS = [
    Layout((4,), (0, 1, 2, 3), ("S(0)",)),
    Layout((4,), (0, 1, 2, 3), ("R",)),
    Layout((2, 2), (0, 1, 2, 3), ("R", "S(1)")),
    Layout((2, 2), (3, 2, 1, 0), ("_S(0, 2)", "S(0)")),
]


def save(folder, tensors, layout, copy=0):
    """Write a checkpoint of 32-bit integers, as four ranks do."""
    path = checkpoint_path(folder, 1)
    path.mkdir()
    types = {name: TensorType("I32", tuple(one.shape)) for name, one in tensors.items()}
    for rank in range(4):
        held = {name: layout.find_piece(types[name].shape, rank) for name in tensors}
        boxes = {name: box for name, (of, box) in held.items() if of == copy and box.size}
        parts = {name: tensors[name][slices(box)] for name, box in boxes.items()}
        stored, size, header = write_file(
            part_path(path, rank),
            {name: TensorType("I32", tuple(part.shape)) for name, part in parts.items()},
            lambda name, parts=parts: bytearray(parts[name].contiguous().numpy().tobytes()),
        )
        index = PartIndex(
            rank=rank,
            world_size=4,
            bytes=size,
            header=header,
            tensors=stored,
            offsets={name: box.offset for name, box in boxes.items()},
            own=None,
        )
        part_path(path, rank).with_suffix(".json").write_text(index.render())
    laid = {name: Laid(type=kind, layout=layout, copy=copy) for name, kind in types.items()}
    manifest = Manifest(step=1, world_size=4, metrics={}, state={}, tensors=laid)
    (path / "manifest.json").write_text(manifest.render())
    return path


def slices(box):
    return tuple(slice(begin, begin + n) for begin, n in zip(box.offset, box.shape, strict=True))


def read(reader, name, box):
    memory = bytearray(4 * box.size)
    reader.read({name: (box, memoryview(memory))})
    if not memory:
        return torch.zeros(box.shape, dtype=torch.int32)
    return torch.frombuffer(memory, dtype=torch.int32).reshape(box.shape)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("least_block", [4, 20, 1 << 17])
def test_any_part_comes_from_any_layout(tmp_path_factory, monkeypatch, layout, least_block):
    monkeypatch.setattr(safetensors_file, "_LEAST_BLOCK", least_block)
    shapes = {"rows": (7, 5), "cube": (5, 4, 3), "few": (2, 6)}
    tensors = {
        name: torch.arange(math.prod(shape), dtype=torch.int32).reshape(shape)
        for name, shape in shapes.items()
    }
    path = save(tmp_path_factory.mktemp("c"), tensors, layout, copy=layout.copies - 1)

    @given(st.data())
    def check(data):
        reader = Reader(path, threads=2)
        name = data.draw(st.sampled_from(sorted(tensors)))
        offset = tuple(data.draw(st.integers(0, n)) for n in shapes[name])
        sizes = zip(shapes[name], offset, strict=True)
        box = Box(offset, tuple(data.draw(st.integers(0, n - begin)) for n, begin in sizes))
        assert torch.equal(read(reader, name, box), tensors[name][slices(box)])

    check()
    Reader(path).verify()


def test_only_needed_blocks_are_read(tmp_path):
    rows, columns = 1024, 2048
    values = torch.randint(1 << 30, (rows, columns), dtype=torch.int32)
    path = save(tmp_path, {"w": values}, LAYOUTS[0])
    for count in (2, 3, 8):
        layout = Layout((count,), tuple(range(count)), ("S(0)",))
        for rank in range(count):
            reader = Reader(path)
            _, box = layout.find_piece((rows, columns), rank)
            assert torch.equal(read(reader, "w", box), values[slices(box)])
            assert reader.bytes_read <= 1.1 * 4 * box.size


def test_damage_is_seen_by_those_who_need_the_bytes(tmp_path):
    path = save(tmp_path, {"w": torch.zeros(8, 40_000, dtype=torch.int32)}, LAYOUTS[0])
    file = part_path(path, 1)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert read(Reader(path), "w", Box((4, 0), (4, 40_000))).sum() == 0
    with pytest.raises(CheckpointError, match=r"'w' in shard-00001.safetensors is not what"):
        read(Reader(path), "w", whole((8, 40_000)))
    with pytest.raises(CheckpointError, match=r"'w' in shard-00001.safetensors is not what"):
        Reader(path).verify()


def write_first_version(folder, *, digest=True):
    """Write a checkpoint as earlier versions of Echelon did."""
    path = checkpoint_path(folder, 5)
    path.mkdir()
    shards = []
    for rank in range(2):
        file = part_path(path, rank)
        save_file({f"state/{rank}": torch.full((3,), rank), "own/n": torch.tensor(rank)}, file)
        content = file.read_bytes()
        own = {"n": {"$tensor": "own/n"}}
        sha256 = hashlib.sha256(content).hexdigest()
        shards.append({"file": file.name, "sha256": sha256, "bytes": len(content), "own": own})
    record = {
        "format": "echelon checkpoint",
        "version": 1,
        "step": 5,
        "state": {"a": {"$tensor": "state/0"}, "b": [{"$tensor": "state/1"}, 7]},
        "metrics": {"loss": 1.0},
        "world_size": 2,
        "shards": shards,
    }
    if digest:
        record["sha256"] = hashlib.sha256(json.dumps(record).encode()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(record))
    return path


@pytest.mark.parametrize("digest", [True, False])
def test_a_checkpoint_of_the_first_version_is_loaded(tmp_path, digest):
    write_first_version(tmp_path, digest=digest)
    found = Checkpointer(tmp_path, rank=1, world_size=2).load()
    assert (found.step, found.metrics, found.own) == (5, {"loss": 1.0}, {"n": torch.tensor(1)})
    assert (found.state["a"].tolist(), found.state["b"][1]) == ([0, 0, 0], 7)
    assert found.state["b"][0].tolist() == [1, 1, 1]
    assert Checkpointer(tmp_path).load().own is None


@pytest.mark.parametrize("place", [3, 20, -1])
def test_one_that_is_damaged_is_not(tmp_path, place):
    path = write_first_version(tmp_path)
    content = bytearray(part_path(path, 1).read_bytes())
    content[place] ^= 1
    part_path(path, 1).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"shard-00001.safetensors is not what was written"):
        Reader(path)
