"""Steps as CUDA graphs do what steps one operation at a time do. Run by hand, on a GPU."""

import json
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from echelon.train.images.transform import ImageTransform
from echelon.train.process_group import Group
from echelon.train.trainer import Trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

WORLD = Group(device=torch.device("cuda", 0), backend="")


def images(count=100):
    draw = torch.Generator().manual_seed(1)
    pixels = torch.randint(0, 256, (count, 3, 16, 16), dtype=torch.uint8, generator=draw)
    labels = torch.randint(0, 4, (count,), generator=draw)
    return TensorDataset(pixels, labels)


class Streamed(Dataset):
    """The same, but not tensors that could live on the GPU."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def batch(self, indices):
        return tuple(tensor[torch.tensor(indices)] for tensor in self.data.tensors)


def net(*, dropout=0.0):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.AvgPool2d(7),
        nn.Flatten(), nn.Dropout(dropout), nn.Linear(64, 4),
    )  # fmt: skip


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-4),
    "plain sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
}


def trainer(*, optimizer="sgd", model=None, **options):
    usual = {
        "optimizer": OPTIMIZERS.get(optimizer, optimizer),
        "loss": nn.functional.cross_entropy,
        "transform": ImageTransform(shift=2, flip=True),
        "global_batch": 16,
        "epochs": 3,
        "precision": "fp32",
        "seed": 5,
    }
    return Trainer(WORLD, model or net(), **{**usual, **options})


def weights(made):
    return {name: value.clone() for name, value in made.module.state_dict().items()}


def assert_same(one, other, **tolerance):
    for name, value in one.items():
        torch.testing.assert_close(
            other[name], value, msg=lambda m, n=name: f"{n}: {m}", **tolerance
        )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    "options", [{}, {"clip_norm": 0.1}, {"accumulate": 2}, {"schedule_steps": True}], ids=str
)
def test_captured_and_eager_agree(optimizer, options, capsys):
    """100 samples in batches of 16: the last of each epoch has 4."""

    def schedule(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)

    found = {}
    for capture in ("never", "always"):
        made = trainer(optimizer=optimizer, capture=capture, scheduler=schedule, **options)
        result = made.fit(images(), images())
        found[capture] = (weights(made), result.metrics)
        assert made.step == 21
    assert made.why_not_captured == ""
    assert made.graphs == 2  # of full batches, and of the last
    assert_same(found["never"][0], found["always"][0], rtol=2e-3, atol=2e-4)
    assert found["never"][1]["loss"] == pytest.approx(found["always"][1]["loss"], rel=1e-3)
    assert "not captured" not in capsys.readouterr().err


def test_one_gpu_is_captured_by_default_and_one_argument_switches_it_off():
    made = trainer()
    made.fit(images())
    assert made.graphs
    made = trainer(capture="never")
    made.fit(images())
    assert made.graphs == 0


def test_data_on_the_device_and_streamed_data_train_alike():
    resident, streamed = trainer(), trainer()
    resident.fit(images())
    streamed.fit(Streamed(images()))
    assert_same(weights(resident), weights(streamed), rtol=0, atol=0)


def test_workers_feed_it_too():
    class Single(Dataset):
        def __len__(self):
            return 100

        def __getitem__(self, index):
            return tuple(tensor[index] for tensor in images().tensors)

    made, usual = trainer(workers=2), trainer()
    made.fit(Single())
    usual.fit(images())
    assert_same(weights(usual), weights(made), rtol=0, atol=0)


def test_a_loader_of_the_users_own_feeds_it_too():
    found = []
    for capture in ("never", "always"):
        draw = torch.Generator().manual_seed(2)
        loader = DataLoader(images(), batch_size=16, shuffle=True, num_workers=2, generator=draw)
        made = trainer(capture=capture)
        made.fit(loader)
        found.append(weights(made))
    assert made.step == 21
    assert made.graphs == 2
    assert_same(*found, rtol=2e-3, atol=2e-4)


def test_dropout_and_augmentation_are_fresh_at_each_replay():
    """The same sample again and again: what is left of it differs."""
    seen = []

    class Look:
        def logged(self, _trainer, means):
            seen.append(round(means["kept"], 6))

    def step(model, batch):
        inputs, _ = batch
        kept = nn.functional.dropout(torch.ones_like(inputs), 0.5).sum()
        return {"loss": model(inputs).sum() * 0.0, "count": len(inputs), "kept": kept}

    made = trainer(
        loss=None, train_step=step, global_batch=1, epochs=20, log_every=1, callbacks=[Look()],
        transform=None, model=nn.Sequential(nn.Flatten(), nn.Linear(768, 4)),
    )  # fmt: skip
    one = TensorDataset(torch.rand(1, 3, 16, 16), torch.zeros(1))
    made.fit(one)
    assert made.graphs == 1
    assert len(set(seen)) > 8  # of 20, in steps of 2


def test_an_epoch_in_bf16_is_about_as_good():
    found = {}
    for precision in ("fp32", "bf16"):
        made = trainer(precision=precision, epochs=30, transform=ImageTransform())
        found[precision] = made.fit(images(), images()).metrics["accuracy"]
    assert found["bf16"] == pytest.approx(found["fp32"], abs=0.08)


@pytest.mark.parametrize("kind", [TensorDataset, Streamed])
def test_a_captured_training_resumes(tmp_path, kind, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

    def data():
        return images() if kind is TensorDataset else Streamed(images())

    whole = trainer(model=net(dropout=0.5), deterministic=True)
    try:
        whole.fit(data())
        for stop in (2, 9, 13):
            made = trainer(
                model=net(dropout=0.5), deterministic=True, checkpoints=tmp_path, save_every=1,
                max_steps=stop,
            )  # fmt: skip
            made.fit(data())
        last = trainer(model=net(dropout=0.5), deterministic=True, checkpoints=tmp_path)
        last.fit(data())
    finally:
        torch.use_deterministic_algorithms(mode=False)
    assert_same(weights(whole), weights(last), rtol=0, atol=0)


def test_a_checkpoint_of_a_gpu_goes_on_without_one(tmp_path):
    trainer(optimizer="adamw", checkpoints=tmp_path, epochs=1).fit(images())
    cpu = Group(device=torch.device("cpu"), backend="")
    made = Trainer(
        cpu, net(), optimizer=OPTIMIZERS["adamw"], loss=nn.functional.cross_entropy, epochs=2,
        transform=ImageTransform(), global_batch=16, seed=5, checkpoints=tmp_path,
    )  # fmt: skip
    assert made.fit(images()).step == 14
    back = trainer(optimizer="adamw", checkpoints=tmp_path, epochs=3)
    assert back.fit(images()).step == 21
    assert back.why_not_captured == ""


def test_what_cannot_be_captured_is_taken_eagerly_and_said_once(capsys):
    def step(model, batch):
        inputs, targets = batch
        loss = nn.functional.cross_entropy(model(inputs), targets, reduction="sum")
        if loss.item() < 0:  # asks the device
            raise AssertionError
        return {"loss": loss, "count": len(targets)}

    made = trainer(loss=None, train_step=step)
    made.fit(images())
    usual = trainer(capture="never")
    usual.fit(images())
    assert_same(weights(usual), weights(made), rtol=1e-3, atol=1e-4)
    trainer(loss=None, train_step=step, model=net(dropout=0.5)).fit(images())
    told = capsys.readouterr().err
    assert told.count("steps are not captured as CUDA graphs") == 2  # of two trainings
    assert made.why_not_captured


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"optimizer": torch.optim.Adagrad}, "Adagrad"),
        ({"precision": "fp16"}, "fp16"),
    ],
)
def test_the_reason_is_told(options, reason, capsys):
    trainer(**options).fit(images())
    assert reason in capsys.readouterr().err


def test_a_learning_rate_that_a_callback_replaces_is_followed():
    class Lower:
        def epoch_ended(self, trainer, _metrics):
            for group in trainer.optimizer.param_groups:
                group["lr"] = 0.02 / (trainer.epoch + 1)

    found = []
    for capture in ("never", "always"):
        made = trainer(capture=capture, callbacks=[Lower()])
        made.fit(images())
        found.append(weights(made))
    unchanged = trainer()
    unchanged.fit(images())
    assert made.why_not_captured == ""
    assert_same(*found, rtol=2e-3, atol=2e-4)
    with pytest.raises(AssertionError):
        assert_same(found[0], weights(unchanged), rtol=2e-3, atol=2e-4)


def test_a_schedule_of_more_than_the_learning_rate_is_not_captured(capsys):
    """OneCycleLR turns momentum too, and a graph has that as a number."""

    def cycle(optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=21)

    found = []
    for capture in ("never", "always"):
        made = trainer(capture=capture, scheduler=cycle, schedule_steps=True)
        made.fit(images())
        found.append(weights(made))
    assert "settings other than the learning rate change" in made.why_not_captured
    assert capsys.readouterr().err.count("steps are not captured") == 1
    assert_same(*found, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("kind", [lambda data: data, Streamed], ids=["resident", "streamed"])
def test_the_host_waits_for_nothing_between_two_lines(kind):
    """torch raises where the host would wait for the device."""

    class Forbid:
        def step_ended(self, trainer):
            if trainer.step == 4:
                with warnings.catch_warnings(action="ignore"):  # it is a prototype
                    torch.cuda.set_sync_debug_mode("error")
            if trainer.step == 60:
                torch.cuda.set_sync_debug_mode("default")

    data = images(1600)
    try:
        trainer(log_every=90, callbacks=[Forbid()], epochs=1).fit(kind(data))
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.leaves_threads  # the compiler's own
@pytest.mark.filterwarnings("ignore")
def test_compiled_and_eager_agree():
    found = []
    for options in ({"capture": "never"}, {"compiled": True}):
        made = trainer(optimizer="adadelta", **options)
        made.fit(images())
        found.append(weights(made))
    assert made.graphs == 2
    assert_same(*found, rtol=5e-3, atol=5e-4)


def test_metrics_are_those_of_all_steps(tmp_path):
    found = []
    for capture in ("never", "always"):
        made = trainer(capture=capture, log_every=7, log_dir=tmp_path / capture)
        made.fit(images())
        lines = (tmp_path / capture / "metrics.jsonl").read_text().splitlines()
        found.append([json.loads(line)["metrics"]["loss"] for line in lines])
    assert found[1] == pytest.approx(found[0], rel=1e-3)


def test_a_step_with_ddp_can_be_captured(capsys):
    """On one rank: no machine with two GPUs has shown more."""
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=WORLD.device)
    try:
        found = []
        for options in ({"capture": "never"}, {"capture": "always", "ddp": True}):
            made = trainer(**options)
            made.fit(images())
            found.append(weights(made))
        assert made.why_not_captured == ""
        assert_same(*found, rtol=2e-3, atol=2e-4)
    finally:
        dist.destroy_process_group()
