"""The Trainer with FSDP and HSDP: the same training, on any mesh."""

from functools import partial

import pytest
import torch
import torch._dynamo  # fully_shard imports it: once here, instead of in every rank
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset

from echelon.errors import UsageError
from echelon.train.checkpoint import Checkpointer
from echelon.train.checkpoint_files import load_checkpoint
from echelon.train.checkpoints.manifest import checkpoint_path
from echelon.train.process_group import Group
from echelon.train.trainer import Trainer
from forked_ranks import run_ranks

SAMPLES, BATCH, EPOCHS = 45, 7, 3  # divisible by no number of ranks
STEPS = EPOCHS * -(-SAMPLES // BATCH)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(6), nn.Linear(6, 9), nn.Linear(9, 6)

    def forward(self, x):
        return x + self.narrow(torch.tanh(self.wide(self.norm(x))))


class Net(nn.Module):
    """Two blocks, a buffer, and one weight in two places."""

    def __init__(self, *, seed, width=5):
        torch.manual_seed(seed)
        super().__init__()
        self.first = nn.Linear(width, 6)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.last = nn.Linear(6, 6)
        self.last.weight = nn.Parameter(torch.randn(6, 6))
        self.tied = nn.Linear(6, 6, bias=False)
        self.tied.weight = self.last.weight
        self.register_buffer("scale", torch.ones(1) + seed)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.tied(self.last(x)) * self.scale


def make_data():
    draw = torch.Generator().manual_seed(5)
    return TensorDataset(
        torch.randn(SAMPLES, 5, generator=draw), torch.randint(6, (SAMPLES,), generator=draw)
    )


def world_of(rank, count):
    place = {"rank": rank, "local_rank": rank, "world_size": count, "local_world_size": count}
    return Group(device=torch.device("cpu"), backend="gloo" if count > 1 else "", **place)


def make(folder, rank, count, *, net=None, **options):
    """A Trainer on a rank. Models differ at first: all ranks begin with rank 0's."""
    return Trainer(
        world_of(rank, count),
        net or Net(seed=rank),
        loss=nn.functional.cross_entropy,
        **{"optimizer": lambda p: torch.optim.AdamW(p, lr=0.02), "seed": 3, "epochs": EPOCHS}
        | {"global_batch": BATCH, "checkpoints": folder, "quiet": True, "loggers": (), **options},
    )


def train(folder, count, options, rank):
    """Train; return whether the model was sharded, its weights as a whole, and the metrics."""
    trainer = make(folder, rank, count, **options)
    result = trainer.fit(make_data(), make_data())
    weights = trainer.module.state_dict()
    sharded = all(isinstance(one, DTensor) for name, one in weights.items() if name != "scale")
    whole = {
        n: one.full_tensor() if sharded and n != "scale" else one for n, one in weights.items()
    }
    return sharded, {n: one.clone() for n, one in whole.items()}, result.metrics.get("loss")


def on(folder, count, task=train, **options):
    """Run a task on ranks; return what rank 0 returns. This process trains nothing: it forks."""
    within_s = 600 if options.get("compiled") else 120
    found = run_ranks(count, folder, partial(task, folder / "c", count, options), within_s=within_s)
    for other in found[1:]:
        if task is train:
            assert all(torch.equal(other[1][name], one) for name, one in found[0][1].items())
    return found[0]


FSDP, HSDP = {"shard": "fsdp"}, {"shard": "hsdp", "shard_size": 2}
CLIPPED = {"clip_norm": 0.1}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same training on one rank, with and without clipping."""
    plain = on(tmp_path_factory.mktemp("alone"), 1)
    clipped = on(tmp_path_factory.mktemp("alone"), 1, **CLIPPED)
    assert not torch.allclose(plain[1]["first.weight"], clipped[1]["first.weight"], rtol=1e-2)
    return {False: plain, True: clipped}


@pytest.mark.timeout(900)  # torch.compile on a busy machine
@pytest.mark.parametrize(
    ("count", "options"),
    [
        (3, {**FSDP, **CLIPPED}),
        (2, {**FSDP, "recompute": True, "accumulate": 2}),
        (4, {**HSDP, **CLIPPED, "accumulate": 2}),
        (4, {"recompute": True, "accumulate": 2, "shard_layers": ["blocks"], **CLIPPED}),  # DDP
        (1, {**FSDP, "recompute": True}),
        pytest.param(2, {**FSDP, "compiled": True}, marks=pytest.mark.full),
        pytest.param(2, {**FSDP, "compiled": True, "recompute": True}, marks=pytest.mark.full),
        pytest.param(4, {**FSDP, "exact_layers": True}, marks=pytest.mark.full),
    ],
)
def test_a_sharded_training_is_the_same_as_on_one_rank(tmp_path, alone, count, options):
    sharded, weights, loss = on(tmp_path, count, **options)
    assert sharded == (count > 1 and "shard" in options)
    _, expected, expected_loss = alone["clip_norm" in options]
    torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-5)
    assert loss == pytest.approx(expected_loss, rel=1e-5)


LEGS = [(2, {}), (3, FSDP), (4, HSDP), (2, {})]


def test_it_is_resumed_on_any_mesh(tmp_path, alone):
    for leg, (count, options) in enumerate(LEGS, 1):
        stop = None if leg == len(LEGS) else STEPS * leg // len(LEGS)
        sharded, weights, _ = on(tmp_path, count, **options, max_steps=stop)
        assert sharded == ("shard" in options)
        assert Checkpointer(tmp_path / "c").steps()[-1] == (stop or STEPS)
    torch.testing.assert_close(weights, alone[False][1], rtol=1e-4, atol=1e-5)


def low_precision(folder, count, options, rank):
    trainer = make(folder, rank, count, **options)
    seen = []
    trainer.module.blocks[0].wide.register_forward_hook(
        lambda module, _, output: seen.extend([module.weight.dtype, output.dtype])
    )
    metrics = trainer.fit(make_data(), make_data()).metrics
    state = trainer.optimizer.state[trainer.module.first.weight]
    return {*seen}, trainer.module.first.weight.dtype, state["exp_avg"].dtype, metrics["loss"]


def test_bf16_has_weights_and_moments_of_fp32(tmp_path, alone):
    seen, weights, moments, loss = on(tmp_path, 2, low_precision, **FSDP, precision="bf16")
    assert seen == {torch.bfloat16}
    assert (weights, moments) == (torch.float32, torch.float32)
    assert loss == pytest.approx(alone[False][2], rel=0.05)


def begin_elsewhere(folder, count, options, rank):
    found = load_checkpoint(checkpoint_path(folder, STEPS))
    trainer = make(folder.parent / "other", rank, count, **options, max_steps=STEPS)
    trainer.fit(make_data(), start=found)
    return trainer.step, trainer.module.first.weight.full_tensor()


def test_another_trainings_checkpoint_is_divided_among_the_ranks(tmp_path):
    _, weights, _ = on(tmp_path, 1)
    step, weight = on(tmp_path, 3, begin_elsewhere, **FSDP)
    assert step == STEPS
    assert torch.equal(weight, weights["first.weight"])


def refuse(folder, count, options, rank):
    """Every mistake, one after the other, on the same ranks."""
    told = []

    def attempt(call):
        with pytest.raises(UsageError) as raised:
            call()
        told.append(f"{raised.value} ({raised.value.hint})")

    make_one = partial(make, folder, rank, count)
    attempt(lambda: make_one(shard="hsdp", shard_size=3))
    attempt(lambda: make_one(shard="fspd"))
    attempt(lambda: make_one(shard="fsdp", ddp=True))
    attempt(lambda: make_one(shard="fsdp", precision="fp16"))
    attempt(lambda: make_one(shard="fsdp", shard_layers=["Blok"]))
    with torch.device("meta"):
        empty = Net(seed=0)
    attempt(lambda: make_one(shard="fsdp", net=empty))
    uneven = DataLoader(make_data(), batch_size=10 + 20 * rank)
    attempt(lambda: make_one(shard="fsdp").evaluate(uneven))
    attempt(lambda: make_one(shard="fsdp", net=Net(seed=0, width=4)).fit(make_data()))
    return told


def test_mistakes_are_refused_on_every_rank(tmp_path):
    on(tmp_path, 1, max_steps=1)
    told = run_ranks(2, tmp_path, partial(refuse, tmp_path / "c", 2, {}))
    for expected, one, other in zip(REFUSALS, *told, strict=True):
        assert expected in one
        assert expected in other
    assert Checkpointer(tmp_path / "c").steps() == [1]


REFUSALS = [
    "shard_size=3 does not divide 2 ranks (use one of: 1, 2)",
    "invalid value for shard: 'fspd' (use one of: none, fsdp, hsdp)",
    "shard='fsdp' and ddp=True",
    "precision='fp16' is not supported with shard='fsdp' (use bf16 or fp32)",
    "no layers 'Blok' (use names of classes or modules, such as: Block, blocks, ",
    "on the meta device",
    "of 2 to 5 batches: a sharded model needs as many batches on every rank",
    "model/first.weight: [6, 5] in the checkpoint, [6, 4] here",
]


# --- the mesh -----------------------------------------------------------------------------------


def look_at_mesh(rank):
    place = {"rank": rank, "world_size": 4, "local_rank": rank % 2, "local_world_size": 2}
    world = Group(device=torch.device("cpu"), backend="gloo", **place)
    flat, nodes = world.mesh(), world.mesh("hsdp")
    assert world.mesh("hsdp", shard_size=2) is nodes
    told = []
    cyclic = {**place, "local_rank": rank // 2}
    ragged = {**place, "local_world_size": 3 if rank < 3 else 1}
    for wrong in (cyclic, ragged):
        with pytest.raises(UsageError) as raised:
            Group(device=torch.device("cpu"), backend="gloo", **wrong).mesh("hsdp")
        told.append(str(raised.value))
    return flat.mesh.tolist(), nodes.mesh.tolist(), nodes.mesh_dim_names, told


def test_the_world_gives_the_mesh_with_a_nodes_ranks_side_by_side(tmp_path):
    for flat, nodes, names, told in run_ranks(4, tmp_path, look_at_mesh):
        assert (flat, nodes) == ([0, 1, 2, 3], [[0, 1], [2, 3]])
        assert names == ("replicate", "shard")
        assert told[0] == "the ranks of a node are not consecutive"
        assert told[1] == "nodes have different numbers of ranks, from 1 to 3"


def leave_and_make_mesh(_rank):
    dist.destroy_process_group()
    with Group(device=torch.device("cpu"), backend="") as world:
        found = world.mesh().mesh.tolist(), world.mesh("hsdp").mesh.tolist()
    assert not dist.is_initialized()
    world.mesh()
    return found


def test_a_single_process_has_a_mesh_too(tmp_path):
    assert run_ranks(1, tmp_path, leave_and_make_mesh) == [([0], [[0]])]
