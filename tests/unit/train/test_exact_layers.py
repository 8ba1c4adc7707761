"""What one process can know of the layers; tests/local/test_exact_layers.py has several."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from echelon.errors import UsageError
from echelon.train.exact_layers import batch_statistics, make_exact
from echelon.train.loading import Portion
from echelon.train.process_group import Group
from echelon.train.randomness import sample_keys
from echelon.train.trainer import Trainer

SAMPLES = 6
SHAPES = {nn.Dropout: (40,), nn.Dropout1d: (40, 2), nn.Dropout2d: (40, 2, 2)}
SHAPES[nn.Dropout3d] = (40, 2, 2, 2)


def keys_of(*indices, epoch=0):
    return sample_keys(torch.tensor(indices), seed=1, epoch=epoch)


def passed(layer, current, keys, inputs=None):
    """Pass ones through a layer in one step."""
    if inputs is None:
        inputs = torch.ones(len(keys), *SHAPES[type(layer)])
    with current.of(Portion(inputs, len(keys), len(keys)), keys):
        return layer(inputs)


@pytest.fixture(params=list(SHAPES))
def dropout(request):
    layer = request.param(0.25)
    return layer, make_exact(layer)


def test_a_sample_is_dropped_alike_in_whatever_batch_it_is(dropout):
    whole = passed(*dropout, keys_of(*range(SAMPLES)))
    parts = [passed(*dropout, keys_of(*part)) for part in ((0,), (1, 2, 3), (4, 5))]
    assert torch.equal(whole, torch.cat(parts))
    assert torch.equal(whole[[4, 2]], passed(*dropout, keys_of(4, 2)))


def test_each_sample_epoch_layer_and_use_has_its_own(dropout):
    layer, current = dropout
    both = nn.ModuleList([type(layer)(0.25), type(layer)(0.25)])
    current, keys = make_exact(both), keys_of(0, 1)
    ones = torch.ones(2, *SHAPES[type(layer)])
    with current.of(Portion(ones, 2, 2), keys):
        found = [both[0](ones), both[1](ones), both[0](ones)]
    found.append(passed(both[0], current, keys_of(0, 1, epoch=1)))
    rows = [row for each in found for row in each]
    assert len({tuple(row.flatten().tolist()) for row in rows}) == len(rows) == 8


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_it_drops_as_often_as_it_should_and_keeps_the_mean(rate, inplace):
    layer = nn.Dropout(rate, inplace=inplace)
    inputs = torch.ones(200, 200)
    out = passed(layer, make_exact(layer), keys_of(*range(200)), inputs)
    assert not inplace or out is inputs
    assert float((out == 0).double().mean()) == pytest.approx(rate, abs=0.01)
    kept = out[out != 0]
    assert torch.equal(kept, torch.full_like(kept, 1 / (1 - rate) if rate < 1 else 0))


def test_channels_are_dropped_whole():
    layer = nn.Dropout2d(0.5)
    out = passed(layer, make_exact(layer), keys_of(*range(SAMPLES)))
    assert set(out.sum((2, 3)).unique().tolist()) == {0.0, 8.0}


def test_outside_of_training_and_of_steps_they_are_torchs_own(dropout):
    layer, current = dropout
    ones = torch.ones(3, *SHAPES[type(layer)])
    torch.manual_seed(0)
    free = layer(ones)
    torch.manual_seed(0)
    assert torch.equal(free, type(layer)(0.25)(ones))
    assert torch.equal(passed(layer.eval(), current, keys_of(0, 1, 2)), ones)


def test_samples_elsewhere_than_in_the_first_dimension_are_told():
    layer = nn.Dropout()
    with pytest.raises(UsageError, match=r"shape \(9, 2, 4\) in a batch of 2 samples"):
        passed(layer, make_exact(layer), keys_of(0, 1), torch.ones(9, 2, 4))


def test_a_layer_that_is_computed_again_drops_the_same():
    layer, keys = nn.Dropout(), keys_of(*range(SAMPLES))
    current = make_exact(layer)
    inputs = torch.ones(SAMPLES, 40, requires_grad=True)
    with current.of(Portion(inputs, SAMPLES, SAMPLES), keys):
        out = checkpoint(lambda x: layer(x).exp(), inputs, use_reentrant=False)
        out.sum().backward()
    slope = torch.where(out > 1, 2 * out, 0).detach()  # of exp(2x), or of what is always 1
    torch.testing.assert_close(inputs.grad, slope)


def test_a_layer_that_is_used_twice_cannot_be_computed_again():
    layer, keys = nn.Dropout(), keys_of(*range(SAMPLES))
    current = make_exact(layer)
    inputs = torch.ones(SAMPLES, 40, requires_grad=True)
    with current.of(Portion(inputs, SAMPLES, SAMPLES), keys):
        out = checkpoint(lambda x: layer(layer(x)).exp(), inputs, use_reentrant=False)
        with pytest.raises(UsageError, match="cannot be used several times"):
            out.sum().backward()


# --- BatchNorm --------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 3), (5, 3, 4), (4, 3, 2, 3), (2, 3, 2, 2, 2)])
def test_statistics_and_their_gradients_are_those_of_the_batch(shape):
    inputs = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    others = [0, *range(2, len(shape))]
    mean, variance, count = batch_statistics(inputs, counts=True)
    torch.testing.assert_close(mean, inputs.mean(others))
    torch.testing.assert_close(variance, inputs.var(others, unbiased=False))
    assert count == inputs.numel() // 3
    both = lambda x: torch.cat(batch_statistics(x, counts=True)[:2])  # noqa: E731
    assert torch.autograd.gradcheck(both, inputs)
    assert torch.autograd.gradgradcheck(both, inputs)


# --- a whole model ----------------------------------------------------------------------------


def make_model():
    torch.manual_seed(0)
    parts = [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2)]
    return nn.Sequential(*parts)


def test_a_model_stays_what_it_was():
    model, plain, seen = make_model(), make_model(), []
    model[1].register_forward_hook(lambda *_: seen.append(1))
    make_exact(model)
    assert [type(layer) for layer in model] == [type(layer) for layer in plain]
    assert list(model.state_dict()) == list(plain.state_dict())
    inputs = torch.randn(5, 4)
    assert torch.equal(model.eval()(inputs), plain.eval()(inputs))
    assert seen == [1]


def test_a_copy_of_a_model_has_layers_of_its_own():
    model = make_model()
    make_exact(model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for value in model.parameters():
            value.zero_()
    inputs = torch.randn(5, 4)
    assert torch.equal(twin.eval()(inputs), make_model().eval()(inputs))


def test_layers_with_a_forward_pass_of_their_own_keep_it():
    class Other(nn.Dropout):
        def forward(self, inputs):
            return inputs + 1

    model = nn.Sequential(nn.SyncBatchNorm(2), Other())
    make_exact(model)
    assert not [layer for layer in model if "forward" in vars(layer)]


def trainer(model, **options):
    return Trainer(
        Group(device=torch.device("cpu"), backend=""),
        model,
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        global_batch=8,
        exact_layers=True,
        **options,
    )


def points():
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(28, 4, generator=draw)
    return TensorDataset(x, (x.sum(1) > 0).long())


def test_dropout_does_not_depend_on_how_batches_are_divided():
    found = []
    for parts in (1, 3):
        first, _, *others = make_model()
        model = nn.Sequential(first, *others)
        trainer(model, accumulate=parts).fit(points())
        found.append(model.state_dict())
    torch.testing.assert_close(*found)


def test_batch_norm_over_parts_of_a_batch_is_refused():
    with pytest.raises(UsageError, match=r"accumulate=2: '1' would use"):
        trainer(make_model(), accumulate=2)


def test_a_loader_that_does_not_name_its_samples_is_refused():
    with pytest.raises(UsageError, match="needs the indices of a batch's samples"):
        trainer(make_model()).fit(DataLoader(points(), batch_size=4))
