import pytest
import torch
from torch import nn

from echelon.errors import UsageError
from echelon.train.mesh import mesh_dims
from echelon.train.sharded_model import change_layers, find_layers


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 4))

    def forward(self, x):
        return x + self.mlp(x)


class Net(nn.Module):
    def __init__(self, *, blocks=3):
        super().__init__()
        self.tokens = nn.Embedding(1000, 4)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.heads = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def forward(self, x):
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x)
        return self.heads(x)


def test_the_repeated_blocks_are_found():
    net = Net()
    assert find_layers(net) == list(net.blocks)  # not the linear layers in them
    stages = nn.Sequential(nn.Linear(4, 4), Net(), Net(blocks=2))
    assert find_layers(stages) == [stages[1], stages[2]]
    apart = nn.ModuleDict({"a": Net(), "b": Net(blocks=2)})
    assert find_layers(apart) == [*apart["a"].blocks, *apart["b"].blocks]
    assert find_layers(nn.Linear(4, 4)) == []


@pytest.mark.parametrize("named", ["Block", ["Block"], [Block], ["blocks"], Block])
def test_layers_are_named_by_class_or_place(named):
    net = Net()
    assert find_layers(net, named) == list(net.blocks)


def test_a_layer_inside_another_is_part_of_it():
    net = Net()
    assert find_layers(net, ["blocks.1", "Linear"])[2:4] == [net.blocks[1], net.blocks[2].mlp[0]]
    assert len(find_layers(net, ["blocks.1", "Linear"])) == 4 + 1 + 2
    assert find_layers(net, ["tokens", "blocks.0"]) == [net.tokens, net.blocks[0]]


def test_layers_that_are_not_there_are_refused_with_those_that_are():
    with pytest.raises(UsageError, match="no layers 'Blok'") as raised:
        find_layers(Net(), ["Blok"])
    assert "such as: Block, Linear, blocks, blocks.0.mlp" in raised.value.hint
    with pytest.raises(UsageError) as raised:
        find_layers(nn.ModuleDict({"small": nn.Linear(1, 1), "large": nn.Linear(9, 9)}), ["x"])
    assert raised.value.hint.endswith("such as: large, small")


def test_recomputed_layers_have_the_same_gradients():
    torch.manual_seed(0)
    plain, again = Net(), Net()
    again.load_state_dict(plain.state_dict())
    calls = []
    again.blocks[0].mlp[0].register_forward_hook(lambda *_: calls.append(1))
    change_layers(find_layers(again), recompute=True, compiled=False)
    for net in (plain, again):
        net(torch.arange(5)).square().sum().backward()
    assert len(calls) == 2
    assert again.state_dict().keys() == plain.state_dict().keys()
    for one, other in zip(plain.parameters(), again.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


def test_batch_statistics_cannot_be_recomputed():
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)) for _ in range(2)))
    with pytest.raises(UsageError, match="BatchNorm"):
        change_layers(find_layers(layers), recompute=True, compiled=False)
    with pytest.raises(UsageError, match="no repeated layers"):
        change_layers(find_layers(nn.Linear(2, 2)), recompute=True, compiled=False)


def test_the_ranks_of_a_mesh():
    assert mesh_dims("fsdp", 6, None) == (6,)
    assert mesh_dims("hsdp", 6, 2) == (3, 2)
    with pytest.raises(UsageError, match="shard_size=4 does not divide 6 ranks") as raised:
        mesh_dims("hsdp", 6, 4)
    assert raised.value.hint == "use one of: 1, 2, 3, 6"
    with pytest.raises(UsageError, match="over all 6 ranks"):
        mesh_dims("fsdp", 6, 2)
