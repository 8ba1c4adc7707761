import json
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from echelon.errors import EchelonError, UsageError
from echelon.train import progress
from echelon.train.checkpoint_files import Part
from echelon.train.metrics import top_k
from echelon.train.process_group import Group
from echelon.train.randomness import uniform
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


def trainer(*, kind=Trainer, model=None, **options):
    world = Group(device=torch.device("cpu"), backend="")
    usual = {
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        "loss": nn.functional.cross_entropy,
        "global_batch": 8,
    }
    torch.manual_seed(0)
    return kind(world, model or nn.Linear(4, 2), **{**usual, **options})


def test_it_learns_and_tells_so():
    result = trainer(epochs=10).fit(Points(100), Points(100))
    assert result.metrics["accuracy"] > 0.9
    assert (result.step, result.epoch) == (10 * 13, 10)


def test_each_sample_is_seen_once_per_epoch():
    data = Points(50)
    trainer(epochs=2).fit(data)
    assert sorted(data.seen) == sorted(list(range(50)) * 2)


def test_callbacks_can_see_which_samples_a_step_took():
    class Taken:
        def __init__(self):
            self.indices = []

        def step_ended(self, trainer):
            self.indices += [list(trainer.indices)]

    taken, data = Taken(), Points(20)
    made = trainer(epochs=1, callbacks=[taken])
    assert made.indices is None
    made.fit(data)
    assert [len(one) for one in taken.indices] == [8, 8, 4]
    assert sorted(index for one in taken.indices for index in one) == list(range(20))
    made = trainer(epochs=1)
    made.fit(DataLoader(Points(20), batch_size=8))
    assert made.indices is None


def test_steps_on_the_cpu_are_not_captured():
    made = trainer(epochs=1)
    made.fit(Points(8))
    assert (made.graphs, made.why_not_captured) == (0, "")


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


def test_a_training_whose_last_checkpoint_cannot_be_written_fails(tmp_path, monkeypatch):
    whole, made = Part.complete, trainer(epochs=3, checkpoints=tmp_path)

    def complete(part):
        if part.manifest.step != 7:
            raise PermissionError(13, "Permission denied")
        return whole(part)

    monkeypatch.setattr(Part, "complete", complete)
    with (
        pytest.warns(RuntimeWarning, match="of step 14 could not be written"),
        pytest.raises(EchelonError, match=r"step 21 could not be written .* Permission denied"),
    ):
        made.fit(Points(50))
    assert made.checkpointer.steps() == [7]


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


class Shaken(Points):
    """Points to which all three generators that a transform may use add something."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + torch.rand(()) + random.random() + float(np.random.rand()), y  # noqa: NPY002, S311


class Stream(IterableDataset):
    def __init__(self, points):
        self.points = points

    def __len__(self):
        return len(self.points)

    def __iter__(self):
        return (self.points[index] for index in range(len(self.points)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(Points(50), batch_size=8, shuffle=True, num_workers=2),
        lambda: DataLoader(Shaken(50), batch_size=8, shuffle=True),
        lambda: DataLoader(Stream(Shaken(50)), batch_size=8),
        lambda: DataLoader(Stream(Points(50)), batch_size=8, num_workers=1),
    ],
)
def test_a_loader_of_ones_own_goes_on_where_it_was(tmp_path, make):
    whole = trainer(epochs=2)
    whole.fit(make())
    for steps in (3, 9, None):
        resumed = trainer(epochs=2, checkpoints=tmp_path, save_every=1, max_steps=steps)
        resumed.fit(make())
    assert resumed.step == whole.step == 14
    for one, other in zip(weights(whole), weights(resumed), strict=True):
        assert torch.equal(one, other)


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
    other = trainer(checkpoints=tmp_path, model=nn.Linear(5, 2))
    with pytest.raises(
        UsageError,
        match=r"step-000000001 does not match the model or optimizer:\n.*in the checkpoint",
    ):
        other.fit(Points(8))


def test_a_quiet_training_leaves_the_telling_to_its_callbacks(tmp_path, capsys):
    class TelemetryClient:
        def logged(self, trainer, means):
            lines.append((trainer.step, trainer.done, means["loss"], trainer.step_s))

    lines = []
    trainer(quiet=True, log_dir=tmp_path, log_every=2, callbacks=[TelemetryClient()]).fit(
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


def test_a_subclass_says_how_to_train():
    class Mine(Trainer):
        def train_step(self, model, batch):
            x, y = batch
            loss = nn.functional.cross_entropy(model(x), y, reduction="sum")
            return {"loss": loss, "count": len(y), "ones": y.sum()}

    mine = trainer(kind=Mine, loss=None, epochs=1)
    result = mine.fit(Points(24), Points(24))
    assert result.metrics.keys() == {"loss", "ones"}
    usual = trainer(epochs=1)
    usual.fit(Points(24))
    for one, other in zip(weights(mine), weights(usual), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"loss": None}, "nothing to train on"),
        ({"train_step": lambda *_: {}}, "a loss and a train_step"),
        (
            {"loss": None, "train_step": lambda *_: {"loss": 1.0}},
            "must return 'loss' .* and 'count'",
        ),
        ({"precision": "fp8"}, "invalid value for precision: 'fp8'"),
        ({"global_batch": 0}, "invalid value for global_batch: 0"),
        ({"log_every": 0}, "log_every=0"),
    ],
)
def test_what_cannot_be_trained_is_told(options, complaint):
    with pytest.raises(UsageError, match=complaint):
        trainer(**options).fit(Points(24))


def test_a_loader_of_ones_own_trains_and_resumes(tmp_path):
    def loader():
        return DataLoader(Points(50), batch_size=8, shuffle=True, drop_last=True)

    whole = trainer(epochs=2)
    assert whole.fit(loader(), loader()).metrics["accuracy"] > 0.5
    first = trainer(epochs=2, checkpoints=tmp_path, save_every=1, max_steps=8)
    first.fit(loader())
    second = trainer(epochs=2, checkpoints=tmp_path, save_every=1)
    assert second.fit(loader()).step == 12
    for one, other in zip(weights(whole), weights(second), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("every_step", [False, True])
def test_schedulers_act_and_resume(tmp_path, every_step):
    def schedule(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

    options = {"scheduler": schedule, "schedule_steps": every_step, "checkpoints": tmp_path}
    trainer(**options, epochs=1).fit(Points(16))
    made = trainer(**options, epochs=2)
    made.fit(Points(16))
    assert made.optimizer.param_groups[0]["lr"] == 0.5 * 0.5 ** (4 if every_step else 2)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precisions_learn_too_and_resume(tmp_path, precision):
    options = {"precision": precision, "checkpoints": tmp_path, "clip_norm": 10.0}
    trainer(**options, epochs=5).fit(Points(100))
    made = trainer(**options, epochs=10)
    assert made.fit(Points(100), Points(100)).metrics["accuracy"] > 0.9
    assert made.module.weight.dtype == torch.float32


def test_deterministic_algorithms_are_asked_for():
    try:
        trainer(deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(mode=False)


class Draws(Points):
    """Random numbers in the data, in a transform, and in the model."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + torch.randn(4), y


def test_random_numbers_come_again_after_a_resume(tmp_path):
    def noise(batch, keys):
        x, y = batch
        return (x if keys is None else x + uniform(keys, 0).unsqueeze(1), y)

    def make(**options):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 2))
        return trainer(model=model, epochs=3, transform=noise, **options)

    whole = make()
    whole.fit(Draws(50))
    for stop in (3, 9, 16):
        make(checkpoints=tmp_path, save_every=1, max_steps=stop).fit(Draws(50))
        torch.rand(7)
    last = make(checkpoints=tmp_path)
    last.fit(Draws(50))
    for one, other in zip(weights(whole), weights(last), strict=True):
        assert torch.equal(one, other)


def test_callbacks_are_called_with_what_they_ask_for():
    heard = []

    class Listener:
        def step_ended(self, trainer):
            heard.append(trainer.step)

        def logged(self, _trainer, means):
            heard.append(sorted(means))

        def epoch_ended(self, trainer, metrics):
            heard.append((trainer.epoch, metrics))

    class Deaf:
        pass

    trainer(callbacks=[Deaf(), Listener()], log_every=2, metrics=top_k(1)).fit(Points(24))
    assert heard == [1, 2, ["accuracy", "loss"], 3, ["accuracy", "loss"], (1, {})]


def test_metrics_are_of_the_epochs_samples(tmp_path):
    """A learning rate of 0: the mean loss of an epoch is the loss over all its samples."""
    made = trainer(
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
        log_every=100,
        log_dir=tmp_path,
    )
    result = made.fit(Points(21), Points(21))
    told = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [record["kind"] for record in told] == ["step", "validation"]
    assert told[0]["metrics"]["loss"] == pytest.approx(result.metrics["loss"], rel=1e-5)


def test_metrics_are_on_file_before_a_checkpoint_after_which_they_are_not_repeated(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(progress, "_WRITE_S", 3600.0)
    made = trainer(checkpoints=tmp_path / "saved", save_every=3, log_every=1, log_dir=tmp_path)
    save, steps = made.checkpointer.save, []

    def note(*args, step, **options):
        lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
        steps.append((step, max(json.loads(line)["step"] for line in lines)))
        save(*args, step=step, **options)

    monkeypatch.setattr(made.checkpointer, "save", note)
    made.fit(Points(64))
    assert steps
    assert all(saved == written for saved, written in steps), steps


def test_a_run_has_its_checkpoints_and_metrics_in_its_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ECHELON_RUN_DIR", str(tmp_path))
    trainer().fit(Points(16))
    assert {path.name for path in tmp_path.iterdir()} == {
        *("checkpoints", "metrics.jsonl", "tensorboard"),
    }


@pytest.mark.parametrize("samples", [0, 1, 7])
def test_few_samples_are_no_trouble(samples):
    result = trainer(epochs=2).fit(Points(samples), Points(samples))
    assert result.epoch == 2
    assert result.step == 2 * (samples > 0)


def test_frozen_layers_stay_frozen_through_a_validation():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.1), nn.Linear(4, 2))
    model[0].eval()
    made = trainer(model=model)
    made.fit(Points(16), Points(16))
    assert [layer.training for layer in model] == [False, True, True]
    assert model[0].num_batches_tracked == 0


def test_a_loader_that_gives_less_than_it_says_is_told():
    class Short(Stream):
        def __len__(self):
            return 100

    with pytest.raises(UsageError, match="gave 7 of 13 batches"):
        trainer(epochs=3).fit(DataLoader(Short(Points(50)), batch_size=8))


def test_the_last_step_is_saved_and_its_metrics_are_known_again(tmp_path, capsys):
    options = {"checkpoints": tmp_path, "epochs": 2}
    made = trainer(**options, max_steps=3)
    made.fit(Points(32))
    assert made.checkpointer.steps() == [3]
    done = trainer(**options)
    first = done.fit(Points(32), Points(32)).metrics
    again = trainer(**options).fit(Points(32), Points(32)).metrics
    assert again == pytest.approx(first)
    assert "nothing left to train" in capsys.readouterr().err


def test_a_data_set_that_does_more_than_read_rows_is_asked_for_its_samples():
    class More(TensorDataset):
        asked = 0

        def __getitem__(self, index):
            More.asked += 1
            return super().__getitem__(index)

    points = Points(16)
    trainer().fit(More(points.x, points.y))
    assert More.asked == 16


def test_gradients_of_uneven_parts_of_a_loader_count_by_sample():
    found = []
    for parts in (1, 4):
        made = trainer(accumulate=parts, max_steps=1)
        made.fit(DataLoader(Points(5), batch_size=5))
        found.append(weights(made))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_what_the_optimiser_does_not_move_does_not_count_in_the_norm():
    def make():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))

    found = []
    for frozen in (False, True):
        model = make()
        model[0].requires_grad_(not frozen)
        made = trainer(
            model=model,
            clip_norm=0.05,
            optimizer=lambda _, head=model[1]: torch.optim.SGD(head.parameters(), lr=0.5),
        )
        made.fit(Points(48))
        found.append(weights(made))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_the_old_option_for_capturing_works_with_a_warning():
    with pytest.warns(DeprecationWarning, match="capture='always', 'never' or 'auto'"):
        trainer(step="eager")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_old_option_means_what_it_meant():
    with pytest.raises(UsageError, match="capture='always' needs a GPU"):
        trainer(step="captured")
