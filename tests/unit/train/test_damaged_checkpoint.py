"""The newest checkpoint is damaged, perhaps with checksums that fit: the one before is loaded."""

import hashlib
import json
import os
import struct

import pytest
import torch

from echelon.train.checkpoint import Checkpointer
from echelon.train.checkpoints.manifest import CheckpointError, checkpoint_path
from echelon.train.checkpoints.reading import Reader


@pytest.fixture
def folder(tmp_path):
    checkpointer = Checkpointer(tmp_path, rank=0, world_size=1)
    for step in (1, 2):
        state = {"weight": torch.full((4,), float(step)), "step": step}
        checkpointer.save(state, step=step, own={"seed": step}, metrics={"loss": 1.0}, wait=True)
    return tmp_path


def change_record(folder, change, *, name="manifest.json", fits=True):
    """Change fields of a record; with `fits`, its checksum does not tell."""
    path = checkpoint_path(folder, 2) / name
    record = json.loads(path.read_text())
    change(record)
    if fits:
        del record["sha256"]
        record["sha256"] = hashlib.sha256(json.dumps(record).encode()).hexdigest()
    path.write_text(json.dumps(record))


def change_index(folder, change, *, fits=True):
    change_record(folder, change, name="shard-00000.json", fits=fits)


def change_shard(folder, change):
    path = checkpoint_path(folder, 2) / "shard-00000.safetensors"
    path.write_bytes(change(path.read_bytes()))


def change_entry(folder, **values):
    change_index(folder, lambda record: record["tensors"]["state/weight"].update(values))


def put_pipe(folder, name):
    path = checkpoint_path(folder, 2) / name
    path.unlink()
    os.mkfifo(path)


def change_byte(content):
    return content[:-1] + bytes([content[-1] ^ 1])


HARMS = {
    "no shard": lambda f: (checkpoint_path(f, 2) / "shard-00000.safetensors").unlink(),
    "a shard that is a pipe": lambda f: put_pipe(f, "shard-00000.safetensors"),
    "a manifest that is a pipe": lambda f: put_pipe(f, "manifest.json"),
    "an index that is a pipe": lambda f: put_pipe(f, "shard-00000.json"),
    "a shard with one byte changed": lambda f: change_shard(f, change_byte),
    "an empty shard": lambda f: change_shard(f, lambda _: b""),
    "a shard that is too short": lambda f: change_shard(f, lambda content: content[:-1]),
    "a header beyond the file": lambda f: change_shard(
        f, lambda content: struct.pack("<Q", 1 << 40) + content[8:]
    ),
    "a header that is another": lambda f: change_shard(
        f, lambda content: content[:20] + b"x" + content[21:]
    ),
    "no index": lambda f: (checkpoint_path(f, 2) / "shard-00000.json").unlink(),
    "an index of another rank": lambda f: change_index(f, lambda m: m.update(rank=1)),
    "an index of another checkpoint": lambda f: change_index(f, lambda m: m.update(world_size=2)),
    "an index that is another": lambda f: change_index(f, lambda m: m.update(own=7), fits=False),
    "an index without digest": lambda f: change_index(f, lambda m: m.pop("sha256"), fits=False),
    "an unknown dtype": lambda f: change_entry(f, dtype="X9"),
    "a dtype of another size": lambda f: change_entry(f, dtype="F64"),
    "another part of the tensor": lambda f: change_entry(f, offset=[1]),
    "another place in the file": lambda f: change_entry(f, begin=8),
    "a place beyond the file": lambda f: change_entry(f, begin=1 << 40),
    "a place beyond all numbers": lambda f: change_entry(f, begin=float("inf")),
    "a block beyond all numbers": lambda f: change_entry(f, block=10**400),
    "a tensor without a place in the whole": lambda f: change_index(
        f, lambda m: m["tensors"]["state/weight"].pop("offset")
    ),
    "a tensor without a checksum": lambda f: change_entry(f, crc32=[]),
    "a tensor of another name": lambda f: change_index(
        f, lambda m: m["tensors"].update(x=m["tensors"].pop("state/weight"))
    ),
    "deep JSON": lambda f: (checkpoint_path(f, 2) / "manifest.json").write_text("[" * 100_000),
    "a manifest that is a list": lambda f: (checkpoint_path(f, 2) / "manifest.json").write_text(
        "[]"
    ),
    "another step": lambda f: change_record(f, lambda m: m.update(step=7)),
    "a step that is no number": lambda f: change_record(f, lambda m: m.update(step="x")),
    "no tensors": lambda f: change_record(f, lambda m: m.pop("tensors")),
    "tensors that are numbers": lambda f: change_record(f, lambda m: m.update(tensors=[1, 2])),
    "a layout that is none": lambda f: change_record(f, lambda m: m.update(layouts=[{}])),
    "a part that does not exist": lambda f: change_record(
        f, lambda m: m["layouts"][0].update(ranks=[1])
    ),
    "a copy beyond all numbers": lambda f: change_record(
        f, lambda m: m["tensors"]["state/weight"].update(copy=float("inf"))
    ),
    "no state": lambda f: change_record(f, lambda m: m.pop("state")),
    "a state of odd keys": lambda f: change_record(
        f, lambda m: m.update(state={"$int keys": [[[], 1]]})
    ),
    "an unknown tensor": lambda f: change_record(
        f, lambda m: m.update(state={"$tensor": "state/other"})
    ),
    "a state that is another": lambda f: change_record(
        f, lambda m: m.update(state={"step": 7}), fits=False
    ),
    "a digest that is no text": lambda f: change_record(
        f, lambda m: m.update(sha256=[]), fits=False
    ),
    "a tensor whose name is a list": lambda f: change_record(
        f, lambda m: m.update(state={"$tensor": []})
    ),
}


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.timeout(120)
def test_it_is_passed_over_with_one_line_that_says_why(folder, harm):
    HARMS[harm](folder)
    checkpointer = Checkpointer(folder, rank=0, world_size=1)
    with pytest.warns(RuntimeWarning, match=r"step-000000002 .*; the one before it") as told:
        loaded = checkpointer.load()
    assert (loaded.step, loaded.state["step"], loaded.own) == (1, 1, {"seed": 1})
    assert len(told) == 1
    with pytest.raises(CheckpointError, match="step-000000002"):
        checkpointer.load(step=2)
    assert Checkpointer(folder, rank=0, world_size=1).best_step() is None


def test_a_folder_whose_name_is_no_step_is_none(folder):
    (folder / f"step-{'9' * 30}").mkdir()
    assert Checkpointer(folder, rank=0, world_size=1).steps() == [1, 2]


def test_the_size_of_a_block_does_not_decide_how_much_memory_verifying_takes(folder):
    change_entry(folder, block=1 << 50)
    Reader(checkpoint_path(folder, 2)).verify()
