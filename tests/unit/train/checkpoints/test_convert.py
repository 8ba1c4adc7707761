"""A state survives the way through every format, one tensor at a time in memory."""

import importlib
import json
import os
import pickle
import tracemalloc

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from echelon.errors import ConflictError, NotFoundError, UsageError
from echelon.train.checkpoint import Checkpointer
from echelon.train.checkpoints.convert import convert, open_source, write_model
from echelon.train.checkpoints.manifest import CheckpointError, checkpoint_path
from echelon.train.state import flatten

SAME = "same"
"""A token, as ranks with a process group agree on one."""


def make_state():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(3, 8)).sum().backward()
    optimizer.step()
    odd = {"bf16": torch.randn(3).bfloat16(), "none": torch.empty(0, 2), "flag": torch.tensor(True)}
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "odd": odd,
        "epoch": 3,
        "name": "x",
    }


@pytest.fixture
def saved(tmp_path):
    """A checkpoint that two ranks wrote."""
    ranks = [Checkpointer(tmp_path / "c", rank=n, world_size=2, token=SAME) for n in (0, 1)]
    for checkpointer in ranks:
        checkpointer.save(make_state(), step=7)
    for checkpointer in ranks:
        checkpointer.wait()
    return checkpoint_path(tmp_path / "c", 7)


def same(one, other):
    (skeleton, tensors), (skeleton_2, tensors_2) = flatten(one), flatten(other)
    assert skeleton == skeleton_2
    assert all(torch.equal(tensors[name], tensors_2[name]) for name in tensors)
    return True


def load(folder, step):
    return Checkpointer(folder).load(step=step).state


def test_a_model_as_one_file_is_what_others_load(tmp_path, saved):
    convert(saved, tmp_path / "model.safetensors", key="model")
    assert same(load_file(tmp_path / "model.safetensors"), dict(make_state()["model"]))
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    convert(tmp_path / "model.safetensors", tmp_path / "back", to="echelon", step=4, key="model")
    assert same(load(tmp_path / "back", 4), {"model": dict(make_state()["model"])})


def test_a_large_model_is_divided_as_hugging_face_does(tmp_path, saved):
    write_model(open_source(saved), tmp_path / "hf", most_bytes=100)
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    model = make_state()["model"]
    assert index["metadata"]["total_size"] == sum(one.nbytes for one in model.values())
    files = set(index["weight_map"].values())
    assert files == {path.name for path in (tmp_path / "hf").glob("*.safetensors")}
    assert len(files) > 1
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(tmp_path / "hf" / file)[name], model[name])
    convert(tmp_path / "hf", tmp_path / "back", to="echelon", key="model")
    assert same(load(tmp_path / "back", 0)["model"], dict(model))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_torch_loads_what_was_written_for_it(tmp_path, saved):
    convert(saved, tmp_path / "dcp", to="dcp", key="model")
    state, expected = make_state(), make_state()
    for tensor in flatten(state)[1].values():
        tensor.zero_()
    state["epoch"] = 0
    dcp.load(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert same(state, expected)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("by", ["torch", "us"])
def test_what_torch_wrote_is_loaded(tmp_path, saved, by):
    if by == "torch":
        dcp.save(make_state(), checkpoint_id=tmp_path / "dcp", no_dist=True)
    else:
        convert(saved, tmp_path / "dcp", to="dcp", key="model")
    convert(tmp_path / "dcp", tmp_path / "back", to="echelon", step=1, key="model")
    found = load(tmp_path / "back", 1)
    assert same(found["model"], dict(make_state()["model"]))
    assert same(found["odd"], make_state()["odd"])
    assert (found["epoch"], found["name"]) == (3, "x")
    optimizer = torch.optim.Adam(torch.nn.Linear(8, 4).parameters())
    moments = found["optimizer"]["state"][0]["exp_avg"]
    assert torch.equal(moments, make_state()["optimizer"]["state"][0]["exp_avg"])
    assert found["optimizer"]["param_groups"][0].keys() >= optimizer.param_groups[0].keys()


class Evil:
    def __reduce__(self):
        return os.mkdir, ("here",)


def test_metadata_with_more_than_data_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp" / ".metadata").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(CheckpointError, match=r"posix.mkdir is not part of such a file"):
        convert(tmp_path / "dcp", tmp_path / "back", to="echelon", key="model")
    (tmp_path / "dcp" / ".metadata").write_bytes(b"\x80\x04X")
    with pytest.raises(CheckpointError, match="cannot be read"):
        convert(tmp_path / "dcp", tmp_path / "back", to="echelon", key="model")
    assert [path.name for path in tmp_path.iterdir()] == ["dcp"]


@pytest.mark.parametrize(
    ("name", "attribute"),
    [("pathlib\nPosixPath", "__truediv__"), ("torch.serialization\n_get_layout", "cache")],
)
def test_metadata_does_not_change_classes_and_functions(tmp_path, name, attribute):
    """Every path of the process would be another one afterwards."""
    module, _, own = name.partition("\n")
    target = getattr(importlib.import_module(module), own)
    before = getattr(target, attribute)
    found = f"c{name}\n".encode()
    state = b"(d" + f"V{attribute}\n".encode() + found + b"s"
    (tmp_path / "dcp").mkdir()
    try:
        for whole in (state, b"N" + state + b"\x86"):
            (tmp_path / "dcp" / ".metadata").write_bytes(b"\x80\x02" + found + whole + b"b.")
            with pytest.raises(
                CheckpointError, match="cannot be read as DCP's metadata: a state of"
            ):
                open_source(tmp_path / "dcp")
            assert getattr(target, attribute) is before
    finally:
        setattr(target, attribute, before)


def test_memory_is_bounded_by_the_largest_tensor(tmp_path):
    many = {f"{n}": torch.zeros(1 << 18) for n in range(24)}  # a MiB each
    Checkpointer(tmp_path / "c").save({"model": many}, step=1, wait=True)
    targets = {"one.safetensors": "", "hf": "safetensors", "again": "echelon"}
    tracemalloc.start()
    for name, to in targets.items():
        source = tmp_path / ("c/step-000000001" if name != "again" else "hf")
        convert(source, tmp_path / name, to=to, key="model")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"key": "ema"}, CheckpointError, "no tensors in 'ema'"),
        ({"to": "zip"}, UsageError, "invalid value for --to: 'zip'"),
        ({"target": "x"}, UsageError, "cannot tell the format"),
        ({"target": "old.safetensors"}, ConflictError, "already exists"),
        ({"path": "old.safetensors"}, CheckpointError, "is not a safetensors file"),
        ({"path": "nowhere"}, NotFoundError, "is not a checkpoint"),
    ],
)
def test_bad_input_is_told_and_nothing_is_left(tmp_path, saved, arguments, error, text):
    (tmp_path / "old.safetensors").write_text("not one")
    before = sorted(tmp_path.iterdir())
    given = {"path": saved, "target": "new.safetensors", "key": "model", **arguments}
    path, target = (tmp_path / given.pop(name) for name in ("path", "target"))
    with pytest.raises(error, match=text):
        convert(path, target, **given)
    assert sorted(tmp_path.iterdir()) == before


def test_a_damaged_source_leaves_no_target(tmp_path, saved):
    path = saved / "shard-00001.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="not what was written"):
        convert(saved, tmp_path / "dcp", to="dcp", key="model")
    assert [one.name for one in tmp_path.iterdir()] == ["c"]


def test_an_index_does_not_lead_to_other_folders(tmp_path):
    (tmp_path / "hf").mkdir()
    save_file({"secret": torch.ones(1)}, tmp_path / "secret.safetensors")
    record = {"weight_map": {"secret": "../secret.safetensors"}}
    (tmp_path / "hf" / "model.safetensors.index.json").write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match="is not a safetensors file"):
        open_source(tmp_path / "hf")
