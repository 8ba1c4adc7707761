"""The newest checkpoint is damaged, perhaps with checksums that fit: the one before is loaded."""

import hashlib
import json
import os
import struct

import pytest
import torch

from echelon.train.checkpoint import Checkpointer
from echelon.train.checkpoint_files import CheckpointError, checkpoint_path


@pytest.fixture
def folder(tmp_path):
    checkpointer = Checkpointer(tmp_path, rank=0, world_size=1)
    for step in (1, 2):
        state = {"weight": torch.full((4,), float(step)), "step": step}
        checkpointer.save(state, step=step, own={"seed": step}, metrics={"loss": 1.0}, wait=True)
    return tmp_path


def change_manifest(folder, change, *, fits=True):
    """Change fields of the manifest; with `fits`, its checksum does not tell."""
    path = checkpoint_path(folder, 2) / "manifest.json"
    record = json.loads(path.read_text())
    change(record)
    if fits:
        del record["sha256"]
    path.write_text(json.dumps(record))


def change_shard(folder, change):
    """Change the content of the shard, and its checksum with it."""
    path = checkpoint_path(folder, 2) / "shard-00000.safetensors"
    content = change(path.read_bytes())
    path.write_bytes(content)

    def fit(record):
        digest = hashlib.sha256(content).hexdigest()
        record["shards"][0] |= {"bytes": len(content), "sha256": digest}

    change_manifest(folder, fit)


def change_header(folder, change):
    def rewrite(content):
        size = struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8 : 8 + size])
        change(header)
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + content[8 + size :]

    change_shard(folder, rewrite)


def put_pipe(folder, name):
    path = checkpoint_path(folder, 2) / name
    path.unlink()
    os.mkfifo(path)


def change_byte(folder):
    path = checkpoint_path(folder, 2) / "shard-00000.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


HARMS = {
    "no shard": lambda f: (checkpoint_path(f, 2) / "shard-00000.safetensors").unlink(),
    "a shard that is a pipe": lambda f: put_pipe(f, "shard-00000.safetensors"),
    "a manifest that is a pipe": lambda f: put_pipe(f, "manifest.json"),
    "a shard with one byte changed": change_byte,
    "an empty shard": lambda f: change_shard(f, lambda _: b""),
    "a header beyond the file": lambda f: change_shard(f, lambda c: struct.pack("<Q", 1 << 40) + c),
    "a header that is no JSON": lambda f: change_shard(f, lambda c: c[:8] + b"x" * (len(c) - 8)),
    "offsets that overlap": lambda f: change_header(
        f, lambda h: h.update(other={"dtype": "F32", "shape": [4], "data_offsets": [0, 16]})
    ),
    "an unknown dtype": lambda f: change_header(f, lambda h: h["state/weight"].update(dtype="X9")),
    "a dtype of another size": lambda f: change_header(
        f, lambda h: h["state/weight"].update(dtype="F64")
    ),
    "a tensor of another name": lambda f: change_header(
        f, lambda h: h.update(x=h.pop("state/weight"))
    ),
    "deep JSON": lambda f: (checkpoint_path(f, 2) / "manifest.json").write_text("[" * 100_000),
    "a manifest that is a list": lambda f: (checkpoint_path(f, 2) / "manifest.json").write_text(
        "[]"
    ),
    "another step": lambda f: change_manifest(f, lambda m: m.update(step=7)),
    "a step that is no number": lambda f: change_manifest(f, lambda m: m.update(step="x")),
    "no shards": lambda f: change_manifest(f, lambda m: m.pop("shards")),
    "shards that are numbers": lambda f: change_manifest(f, lambda m: m.update(shards=[1, 2])),
    "no state": lambda f: change_manifest(f, lambda m: m.pop("state")),
    "a state of odd keys": lambda f: change_manifest(
        f, lambda m: m.update(state={"$int keys": [[[], 1]]})
    ),
    "an unknown tensor": lambda f: change_manifest(
        f, lambda m: m.update(state={"$tensor": "state/other"})
    ),
    "a state that is another": lambda f: change_manifest(
        f, lambda m: m.update(state={"step": 7}), fits=False
    ),
    "a digest that is no text": lambda f: change_manifest(
        f, lambda m: m.update(sha256=[]), fits=False
    ),
    "a tensor whose name is a list": lambda f: change_manifest(
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


def test_a_manifest_of_an_earlier_version_has_no_digest(folder):
    change_manifest(folder, lambda _: None)
    assert Checkpointer(folder, rank=0, world_size=1).load().step == 2


def test_a_folder_whose_name_is_no_step_is_none(folder):
    (folder / f"step-{'9' * 30}").mkdir()
    assert Checkpointer(folder, rank=0, world_size=1).steps() == [1, 2]
