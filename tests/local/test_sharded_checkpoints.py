"""Checkpoints of FSDP2: ranks save their parts, and any mesh loads them."""

import json
from contextlib import nullcontext, suppress
from functools import partial

import pytest
import torch
import torch._dynamo  # fully_shard imports it: once here, instead of in every rank
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from echelon.errors import UsageError
from echelon.train.checkpoint import Checkpointer
from echelon.train.checkpoints.manifest import CheckpointError, checkpoint_path, part_path
from forked_ranks import run_ranks

WIDTH, HIDDEN = 7, 5  # divisible by no number of ranks
MESHES = {"one process": (), "2": (2,), "3": (3,), "4": (4,), "8": (8,), "2 × 2": (2, 2)}
SAMPLES = 12


def make(dims, *, hidden=HIDDEN):
    """A model and an optimizer, sharded over a mesh: FSDP with one dimension, HSDP with two."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 3)]
    model = torch.nn.Sequential(*layers)
    if dims:
        mesh = init_device_mesh("cpu", dims, mesh_dim_names=("copies", "shards")[-len(dims) :])
        for module in (layers[0], layers[2], model):
            fully_shard(module, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.05)


def train(model, optimizer, steps, rank=0, count=1):
    """Take steps, each rank with its share of the samples; return this rank's losses."""
    losses = []
    for step in steps:
        drawn = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(step))
        share = drawn[rank * SAMPLES // count : (rank + 1) * SAMPLES // count]
        # The mean over ranks is that over all samples.
        loss = model(share).square().sum() * (count / SAMPLES)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def state_of(model, optimizer):
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def whole_state(model, optimizer):
    """All values, on every rank."""
    values = [*model.state_dict().values()]
    for entry in optimizer.state_dict()["state"].values():
        values += entry.values()
    return [one.full_tensor() if isinstance(one, DTensor) else one.clone() for one in values]


def save_after(folder, dims, steps, rank):
    model, optimizer = make(dims)
    train(model, optimizer, range(steps), rank, count_of(dims))
    Checkpointer(folder).save(state_of(model, optimizer), step=steps, own=rank, wait=True)
    return whole_state(model, optimizer)


def resume(folder, dims, steps, rank):
    """Load, compare, and train on; return what was loaded, how, and the weights at the end."""
    model, optimizer = make(dims)
    found = Checkpointer(folder).load(like={"model": model, "optimizer": optimizer})
    model.load_state_dict(found.state["model"])
    optimizer.load_state_dict(found.state["optimizer"])
    loaded = whole_state(model, optimizer)
    moment = optimizer.state_dict()["state"][0]["exp_avg"]
    train(model, optimizer, range(found.step, steps), rank, count_of(dims))
    return loaded, found.own, isinstance(moment, DTensor), whole_state(model, optimizer)


def count_of(dims):
    return int(torch.tensor(dims).prod()) if dims else 1


def on_ranks(folder, dims, task, *arguments):
    """Run a task on the ranks of a mesh, or in this process."""
    if not dims:
        return [task(folder / "c", dims, *arguments, 0)]
    return run_ranks(count_of(dims), folder, partial(task, folder / "c", dims, *arguments))


def equal(one, other):
    return len(one) == len(other) and all(map(torch.equal, one, other))


@pytest.mark.parametrize(
    "source",
    ["2 × 2", *(pytest.param(one, marks=pytest.mark.full) for one in ("one process", "4"))],
)
def test_what_was_saved_on_one_mesh_is_loaded_on_any(tmp_path, source):
    saved = on_ranks(tmp_path, MESHES[source], save_after, 2)[0]
    through = on_ranks(tmp_path, MESHES[source], resume, 6)[0][-1]
    for name, dims in MESHES.items():
        answers = on_ranks(tmp_path, dims, resume, 6)
        for rank, (loaded, own, sharded, after) in enumerate(answers):
            assert equal(loaded, saved), name
            assert own == (rank if count_of(dims) == count_of(MESHES[source]) else None)
            assert sharded == bool(dims)
            if dims == MESHES[source]:
                assert equal(after, through), name
            for one, other in zip(after, through, strict=True):
                assert torch.allclose(one, other, rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize("count", [3, *(pytest.param(n, marks=pytest.mark.full) for n in (2, 4))])
def test_a_resumed_training_is_the_same_bit_for_bit(tmp_path, count):
    uninterrupted = on_ranks(tmp_path, (count,), save_after, 12)[0]
    (tmp_path / "c").rename(tmp_path / "uninterrupted")
    on_ranks(tmp_path, (count,), save_after, 5)
    for _, _, _, after in on_ranks(tmp_path, (count,), resume, 12):
        assert equal(after, uninterrupted)


def test_each_rank_writes_its_part_and_copies_are_written_once(tmp_path):
    on_ranks(tmp_path, (2, 2), save_after, 1)
    path = checkpoint_path(tmp_path / "c", 1)
    manifest = json.loads((path / "manifest.json").read_text())
    elements = dict.fromkeys(manifest["tensors"], 0)
    for rank in range(4):
        index = json.loads(part_path(path, rank).with_suffix(".json").read_text())
        for name, entry in index["tensors"].items():
            elements[name] += torch.Size(entry["shape"]).numel()
        assert index["tensors"], "a rank without work"
    shapes = {name: entry["shape"] for name, entry in manifest["tensors"].items()}
    assert elements == {name: torch.Size(shape).numel() for name, shape in shapes.items()}
    assert sorted(one.name for one in path.iterdir() if one.suffix == "") == []


def save_two(folder, dims, rank):
    model, optimizer = make(dims)
    checkpointer = Checkpointer(folder)
    for step in (1, 2, 3):
        train(model, optimizer, [step], rank, count_of(dims))
        checkpointer.save(state_of(model, optimizer), step=step, wait=True)


def load_step(folder, dims, rank):
    model, optimizer = make(dims)
    with pytest.warns(RuntimeWarning) if rank < 2 else nullcontext():
        found = Checkpointer(folder).load(like={"model": model, "optimizer": optimizer})
    with pytest.raises(Exception, match=r"damaged|another rank"):
        Checkpointer(folder).load(step=3, like={"model": model, "optimizer": optimizer})
    return found.step


@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_all_ranks_pass_over_one_that_some_cannot_read(tmp_path, harm):
    """Rank 0 cannot read the third, rank 1 not the second: all load the first."""
    on_ranks(tmp_path, (3,), save_two)
    for step, rank in ((3, 0), (2, 1)):
        path = part_path(checkpoint_path(tmp_path / "c", step), rank)
        if harm == "missing":
            path.unlink()
            continue
        content = bytearray(path.read_bytes())
        content[-1] ^= 1  # of a tensor that only this rank needs
        path.write_bytes(content)
    assert on_ranks(tmp_path, (3,), load_step) == [1, 1, 1]


def load_other_model(folder, dims, rank):
    model, optimizer = make(dims, hidden=4)
    with pytest.raises(UsageError) as raised:
        Checkpointer(folder).load(like={"model": model, "optimizer": optimizer})
    renamed = torch.nn.ModuleDict({"new": torch.nn.Linear(WIDTH, HIDDEN)})
    with pytest.raises(UsageError) as raised_too:
        Checkpointer(folder).load(like={"model": renamed})
    return str(raised.value), str(raised_too.value)


def test_another_model_is_told_by_names_and_shapes(tmp_path):
    on_ranks(tmp_path, (2,), save_after, 1)
    for shapes, names in on_ranks(tmp_path, (2,), load_other_model):
        assert "model/0.weight: [5, 7] in the checkpoint, [4, 7] here" in shapes
        assert "model/0.bias: [5] in the checkpoint, [4] here" in shapes
        assert "model/new.weight: not in the checkpoint" in names
        assert "model/0.weight: only in the checkpoint" in names
    assert Checkpointer(tmp_path / "c").steps() == [1]


def save_placements(folder, dims, rank):
    mesh = init_device_mesh("cpu", dims, mesh_dim_names=("a", "b"))
    values = torch.arange(9 * 6).reshape(9, 6)
    ways = [(Shard(0), Shard(1)), (Shard(1), Replicate()), (Shard(0), Shard(0))]
    state = {str(way): distribute_tensor(values, mesh, way) for way in ways}
    state["inner mesh"] = distribute_tensor(values, mesh["b"], [Shard(0)])
    Checkpointer(folder).save(state, step=1, wait=True)
    turned = {
        name: one.redistribute(mesh, (Replicate(), Shard(1)))
        for name, one in state.items()
        if name != "inner mesh"
    }
    found = Checkpointer(folder).load(like={**turned, "inner mesh": state["inner mesh"]})
    return all(torch.equal(one.full_tensor(), values) for one in found.state.values())


def test_all_placements_are_saved_and_loaded(tmp_path):
    assert all(on_ranks(tmp_path, (2, 2), save_placements))
    alone = Checkpointer(tmp_path / "c").load()
    values = torch.arange(9 * 6).reshape(9, 6)
    assert [torch.equal(one, values) for one in alone.state.values()] == [True] * 4


def save_different(folder, dims, rank):
    state = {"w": torch.zeros(3), **({"extra": torch.zeros(1)} if rank else {})}
    checkpointer = Checkpointer(folder)
    checkpointer.save(state, step=1)
    # The other rank may have written its part before rank 0 gives the checkpoint up.
    given_up = suppress(CheckpointError)
    with pytest.raises(Exception, match="different states") if rank == 0 else given_up:
        checkpointer.wait()
    return checkpointer.steps()


def test_ranks_with_different_states_are_told(tmp_path):
    on_ranks(tmp_path, (2,), save_different)
    assert Checkpointer(tmp_path / "c").steps() == []
