"""What a framework adds to a training step: the same tiny training in each, beside a raw loop.

    .venv-peers/bin/python benchmarks/overhead.py [--rounds N]

One Linear(784, 10) on batches of 64, 1,500 steps, SGD, one process with one thread. All get the
same loader of whole batches, and end with the same loss. Echelon runs as under its launcher: with
a beacon, a bar, metrics.jsonl and TensorBoard's file. Then a user's whole step: samples drawn at
random from memory. Lightning and Accelerate take part where they are installed (`make peers`).
Writes benchmarks/results/overhead.json.
"""

import argparse
import gc
import io
import logging
import os
import statistics
import tempfile
import time
import warnings
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import measuring
import torch
from measuring import workshop
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

import echelon
from echelon.launch.beacon import VARIABLE, Beacon

STEPS = 1500
BATCH = 64
FEATURES = 784
CLASSES = 10
BLOCK = 50
"""Steps that are timed as one: in each of them everybody writes its logs at least once."""
RAW = "raw loop"
OURS = "Echelon"
OURS_50 = "Echelon, log_every=50"
RAW_SAMPLES = "raw loop, DataLoader of samples"
OURS_SAMPLES = "Echelon, data set with batch()"
GOAL_US = 20.0


class Clock(nn.Linear):
    """The model. It notes when each step begins, in the same place whoever owns the loop."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__(FEATURES, CLASSES)
        self.began_s = []

    def forward(self, inputs):
        self.began_s.append(time.perf_counter())
        return super().forward(inputs)

    def step_us(self):
        """Return the median over blocks, so that a machine's hiccup does not count."""
        assert len(self.began_s) == STEPS, len(self.began_s)
        marks = self.began_s[BLOCK::BLOCK]  # the first block warms up
        return statistics.median(1e6 * (b - a) / BLOCK for a, b in pairwise(marks))


class Samples(Dataset):
    """Labelled points in memory, which can be had one by one or many at once."""

    def __init__(self):
        draw = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(STEPS * BATCH, FEATURES, generator=draw)
        self.targets = torch.randint(CLASSES, (STEPS * BATCH,), generator=draw)

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]

    def batch(self, indices):
        wanted = torch.tensor(indices)
        return self.inputs[wanted], self.targets[wanted]

    def batches(self):
        return list(zip(self.inputs.split(BATCH), self.targets.split(BATCH), strict=True))


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.01)


# --- the loops ----------------------------------------------------------------------------------


def run_raw(model, loader, _folder):
    optimizer = sgd(model.parameters())
    for inputs, targets in loader:
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def run_echelon(model, data, folder, **options):
    with as_launched(folder), echelon.init(environ={}) as world:
        trainer = echelon.Trainer(
            world, model, optimizer=sgd, loss=cross_entropy, global_batch=BATCH, **options
        )
        assert trainer.fit(data).step == STEPS


@contextmanager
def as_launched(folder):
    """Have the environment of a rank: the folder of its run, and a beacon."""
    beacon = Beacon.create(folder / "beacon")
    variables = {"ECHELON_RUN_DIR": str(folder), VARIABLE: str(folder / "beacon")}
    os.environ |= variables
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
    assert beacon.step == STEPS
    for pattern in ("metrics.jsonl", "tensorboard/*", "checkpoints/step-*"):
        assert list(folder.glob(pattern)), pattern


def run_echelon_50(model, data, folder):
    run_echelon(model, data, folder, log_every=50)


def run_fabric(model, loader, _folder):
    from lightning.fabric import Fabric  # noqa: PLC0415  where it is installed

    fabric = Fabric(accelerator="cpu", devices=1)
    model, optimizer = fabric.setup(model, sgd(model.parameters()))
    for inputs, targets in fabric.setup_dataloaders(loader):
        optimizer.zero_grad()
        fabric.backward(cross_entropy(model(inputs), targets))
        optimizer.step()


def run_accelerate(model, loader, _folder):
    from accelerate import Accelerator  # noqa: PLC0415  likewise

    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(model, sgd(model.parameters()), loader)
    for inputs, targets in loader:
        optimizer.zero_grad()
        accelerator.backward(cross_entropy(model(inputs), targets))
        optimizer.step()


def run_lightning(model, loader, folder, *, logs=False):
    import lightning  # noqa: PLC0415  likewise
    from lightning.pytorch.loggers import CSVLogger  # noqa: PLC0415  likewise

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.inner = model

        def training_step(self, batch, _number):
            inputs, targets = batch
            loss = cross_entropy(self.inner(inputs), targets)
            if logs:
                self.log("loss", loss, prog_bar=True)
            return loss

        def configure_optimizers(self):
            return sgd(self.parameters())

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=CSVLogger(folder) if logs else False,
        log_every_n_steps=10,
        enable_progress_bar=logs,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(Module(), loader)


def run_lightning_logging(model, loader, folder):
    run_lightning(model, loader, folder, logs=True)


# --- measuring ----------------------------------------------------------------------------------


class Terminal(io.TextIOWrapper):
    """A file that says it is a terminal, so that bars are drawn in it."""

    def isatty(self):
        return True


def measure(run, data, folder):
    """Return microseconds of a step, and the weights afterwards."""
    model = Clock()
    gc.collect()
    with (
        tempfile.TemporaryDirectory(dir=folder) as own,
        Terminal((folder / "screen").open("wb")) as screen,
        redirect_stdout(screen),
        redirect_stderr(screen),
    ):
        run(model, data, Path(own))
    return model.step_us(), model.weight.detach()


def measure_all(ways, folder, rounds):
    """Return each way's microseconds, round by round: they take turns."""
    taken = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, (run, data, reference) in ways.items():
            step_us, weights = measure(run, data, folder)
            if reference == name:
                expected = weights
            elif reference == RAW:
                torch.testing.assert_close(weights, expected)  # nobody has left anything out
            if number:  # the first round also loads code
                taken[name].append(step_us)
    return taken


def find_ways(samples):
    """Return what is run, on which data, and what it is compared with."""
    loader = DataLoader(samples.batches(), batch_size=None)
    ways = {
        RAW: (run_raw, loader, RAW),
        OURS: (run_echelon, loader, RAW),
        OURS_50: (run_echelon_50, loader, RAW),
    }
    if find_spec("lightning"):
        ways["Fabric"] = (run_fabric, loader, RAW)
        ways["Lightning, bare"] = (run_lightning, loader, RAW)
        ways["Lightning, log and bar"] = (run_lightning_logging, loader, RAW)
    if find_spec("accelerate"):
        ways["Accelerate"] = (run_accelerate, loader, RAW)
    ways[RAW_SAMPLES] = (run_raw, DataLoader(samples, BATCH, shuffle=True), RAW_SAMPLES)
    ways[OURS_SAMPLES] = (run_echelon, samples, RAW_SAMPLES)
    return ways


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)  # as launchers set it
    logging.getLogger("lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning|accelerate")
    ways = find_ways(Samples())
    with workshop() as folder:
        taken = measure_all(ways, folder, rounds)
    rows = {}
    for name, (_, _, reference) in ways.items():
        over = [us - raw_us for us, raw_us in zip(taken[name], taken[reference], strict=True)]
        rows[name] = {
            "step_us": round(statistics.median(taken[name]), 1),
            "over_raw_us": round(statistics.median(over), 1),
            "least_over_raw_us": round(min(over), 1),
            "rounds": rounds,
        }
    goals = {
        "Echelon over the raw loop, µs per step": (rows[OURS]["over_raw_us"], GOAL_US),
        "a step with its data, over the raw loop, µs": (rows[OURS_SAMPLES]["over_raw_us"], GOAL_US),
    }
    measuring.write_results("overhead", rows, goals)


if __name__ == "__main__":
    main()
