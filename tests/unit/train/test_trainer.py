import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from echelon.errors import UsageError
from echelon.train.loading import divide
from echelon.train.process_group import Group
from echelon.train.trainer import Trainer


class Points(Dataset):
    def __init__(self, count):
        draw = torch.Generator().manual_seed(1)
        self.x = torch.randn(count, 4, generator=draw)
        self.y = (self.x.sum(1) > 0).long()
        self.seen = []

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        self.seen.append(index)
        return self.x[index], self.y[index]


def trainer(**options):
    world = Group(device=torch.device("cpu"), backend="")
    return Trainer(
        world,
        nn.Linear(4, 2),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        **{"loss": nn.functional.cross_entropy, "global_batch": 8, **options},
    )


def test_it_learns_and_tells_so():
    result = trainer(epochs=10).fit(Points(100), Points(100))
    assert result.metrics["accuracy"] > 0.9
    assert (result.step, result.epoch) == (10 * 13, 10)


def test_each_sample_is_seen_once_per_epoch():
    data = Points(50)
    trainer(epochs=2).fit(data)
    assert sorted(data.seen) == sorted(list(range(50)) * 2)


def weights(model_trainer):
    return [parameter.detach().clone() for parameter in model_trainer.module.parameters()]


def test_the_gradient_is_that_of_the_mean_however_it_is_accumulated():
    found = []
    for parts in (1, 3):
        made = trainer(epochs=1, accumulate=parts, max_steps=3)
        made.fit(Points(24))
        found.append(weights(made))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_a_training_goes_on_from_its_checkpoint(tmp_path):
    whole = trainer(epochs=2)
    whole.fit(Points(50))
    first = trainer(epochs=2, checkpoints=tmp_path, save_every=1, max_steps=5)
    assert first.fit(Points(50)).step == 5
    second = trainer(epochs=2, checkpoints=tmp_path, save_every=1)
    assert second.fit(Points(50)).step == 14
    for one, other in zip(weights(whole), weights(second), strict=True):
        assert torch.equal(one, other)
    third = trainer(epochs=2, checkpoints=tmp_path)  # it is done already
    data = Points(50)
    assert third.fit(data).step == 14
    assert data.seen == []


def test_a_training_begins_where_another_was_until_it_has_a_checkpoint_of_its_own(tmp_path):
    other = trainer(epochs=1, checkpoints=tmp_path / "other")
    other.fit(Points(40))
    start = other.checkpointer.load()

    branch = trainer(epochs=2, checkpoints=tmp_path / "own")
    assert branch.fit(Points(40), start=start).step == 10
    whole = trainer(epochs=2)
    whole.fit(Points(40))
    assert all(map(torch.equal, weights(whole), weights(branch)))

    data = Points(40)
    again = trainer(epochs=2, checkpoints=tmp_path / "own")
    assert again.fit(data, start=start).step == 10
    assert data.seen == []


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    trainer(checkpoints=tmp_path).fit(Points(8))
    other = trainer(checkpoints=tmp_path)
    other.module = nn.Linear(5, 2)
    with pytest.raises(UsageError, match=r"step-000000001 is of another model.*size mismatch"):
        other.fit(Points(8))


def test_a_quiet_training_leaves_the_telling_to_its_callbacks(tmp_path, capsys):
    class Meter:
        def logged(self, trainer, means):
            lines.append((trainer.step, trainer.done, means["loss"], trainer.step_s))

    lines = []
    trainer(quiet=True, log_dir=tmp_path, log_every=2, callbacks=[Meter()]).fit(
        Points(40), Points(40)
    )
    assert [line[:2] for line in lines] == [(2, 16), (4, 32), (5, 40)]
    assert all(step_s > 0 for *_, step_s in lines)
    told = capsys.readouterr().err
    assert "epoch 1" not in told
    assert "trained to step 5" in told
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 4


def test_a_step_of_ones_own_is_used():
    def step(model, batch):
        x, y = batch
        return {"loss": nn.functional.cross_entropy(model(x), y, reduction="sum"), "count": len(y)}

    made = trainer(loss=None, train_step=step, epochs=1)
    made.fit(Points(24))
    usual = trainer(epochs=1)
    usual.fit(Points(24))
    for one, other in zip(weights(made), weights(usual), strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_are_clipped():
    made = trainer(epochs=1, max_steps=1, clip_norm=1e-6)
    before = weights(made)
    made.fit(Points(8))
    for one, other in zip(before, weights(made), strict=True):
        assert (one - other).abs().max() <= 1e-6


def test_validation_does_not_depend_on_its_batches():
    small, whole = trainer(eval_batch=5), trainer()
    small.module.load_state_dict(whole.module.state_dict())
    assert small.evaluate(Points(37)) == pytest.approx(whole.evaluate(Points(37)))
    assert whole.evaluate(Points(0)) == {}


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_batches_of_any_shape_are_divided(parts):
    batch = {"x": torch.arange(10), "y": [torch.arange(10), torch.arange(10)]}
    divided = divide(batch, parts)
    assert len(divided) == parts
    assert torch.cat([part["x"] for part in divided]).tolist() == list(range(10))
    assert torch.cat([part["y"][1] for part in divided]).tolist() == list(range(10))
