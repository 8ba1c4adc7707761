"""Overhead of a framework per training step: the same tiny training in each, and in a raw loop.

    .venv-peers/bin/python benchmarks/overhead.py [--rounds N]

Trains one Linear(784, 10) on batches of 64 for 1,500 steps with SGD, in one process with one
thread. All use the same loader of whole batches, and end with the same loss. Echelon runs as under
its launcher, with a beacon, a progress bar, metrics.jsonl and TensorBoard's file. A second
measurement includes loading: samples drawn at random from memory. Each candidate has its own thread
and they alternate every 150 steps; the tenth percentile of the turns counts. Lightning and
Accelerate are included if installed (`make peers`). Writes benchmarks/results/overhead.json.
"""

import argparse
import gc
import io
import logging
import os
import statistics
import sys
import tempfile
import threading
import time
import traceback
import warnings
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path

import measuring
import torch
from measuring import workshop
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

import echelon
from echelon.launch.protocol.rank_shm import VARIABLE, RankShm

STEPS = 1500
BATCH = 64
FEATURES = 784
CLASSES = 10
TURN = 150
"""Steps per turn."""
COLD = 50
"""Untimed steps at the start of a turn, while the caches still hold other code."""
WARM_UP = 1
"""Initial turns that do not count."""
RAW = "raw loop"
AGAIN = "raw loop, once more"
"""A second raw loop; its difference from the first is the noise."""
OURS = "Echelon"
OURS_50 = "Echelon, log_every=50"
RAW_SAMPLES = "raw loop, DataLoader of samples"
OURS_SAMPLES = "Echelon, data set with batch()"
GOAL_US = 20.0


class Turns:
    """Lets threads run one at a time, one after the other."""

    def __init__(self, count):
        self._turns = [threading.Semaphore(0) for _ in range(count)]
        self._turns[0].release()

    def wait(self, number):
        self._turns[number].acquire()

    def give(self, number):
        self._turns[(number + 1) % len(self._turns)].release()


class Clock(nn.Linear):
    """The model. It times steps and switches turns, at the same point in every framework's loop."""

    def __init__(self, turns, number):
        super().__init__(FEATURES, CLASSES)
        self._turns, self._number = turns, number
        self._steps, self._began_s = 0, 0.0
        self.turns_us = []

    def forward(self, inputs):
        place = self._steps % TURN
        if place == 0:
            self._end_turn()
        elif place == COLD:
            self._began_s = time.perf_counter()
        self._steps += 1
        return super().forward(inputs)

    def _end_turn(self):
        self.turns_us.append(1e6 * (time.perf_counter() - self._began_s) / (TURN - COLD))
        self._turns.give(self._number)
        self._turns.wait(self._number)


class Samples(Dataset):
    """Labelled points in memory, readable one by one or in batches."""

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
    beacon = RankShm.create(folder / "beacon")
    # As in a rank of a run.
    os.environ |= {"ECHELON_RUN_DIR": str(folder), VARIABLE: str(folder / "beacon")}
    trainer = echelon.Trainer(
        echelon.init(environ={}),
        model,
        optimizer=sgd,
        loss=cross_entropy,
        global_batch=BATCH,
        **options,
    )
    assert trainer.fit(data).step == beacon.step == STEPS
    for pattern in ("metrics.jsonl", "tensorboard/*", "checkpoints/step-*"):
        assert list(folder.glob(pattern)), pattern


def run_echelon_50(model, data, folder):
    run_echelon(model, data, folder, log_every=50)


def run_fabric(model, loader, _folder):
    from lightning.fabric import Fabric  # noqa: PLC0415  optional

    fabric = Fabric(accelerator="cpu", devices=1)
    model, optimizer = fabric.setup(model, sgd(model.parameters()))
    for inputs, targets in fabric.setup_dataloaders(loader):
        optimizer.zero_grad()
        fabric.backward(cross_entropy(model(inputs), targets))
        optimizer.step()


def run_accelerate(model, loader, _folder):
    from accelerate import Accelerator  # noqa: PLC0415  optional

    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(model, sgd(model.parameters()), loader)
    for inputs, targets in loader:
        optimizer.zero_grad()
        accelerator.backward(cross_entropy(model(inputs), targets))
        optimizer.step()


def run_lightning(model, loader, folder, *, logs=False):
    import lightning  # noqa: PLC0415  optional
    from lightning.pytorch.loggers import CSVLogger  # noqa: PLC0415  optional

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
    """A file that claims to be a terminal, so that progress bars are drawn."""

    def isatty(self):
        return True


def measure(ways, folder):
    """Run all candidates in turns; return the microseconds per step of each turn."""
    turns, models = Turns(len(ways)), {}
    torch.manual_seed(0)
    like = nn.Linear(FEATURES, CLASSES).state_dict()
    for number, name in enumerate(ways):
        models[name] = Clock(turns, number)
        models[name].load_state_dict(like)

    def work(number, name):
        torch.set_num_threads(1)  # as launchers set it
        turns.wait(number)
        try:
            run, data, _ = ways[name]
            with tempfile.TemporaryDirectory(dir=folder) as own:
                run(models[name], data, Path(own))
        except BaseException:  # noqa: BLE001
            traceback.print_exc(file=sys.__stderr__)
            os._exit(1)  # the others would wait forever
        turns.give(number)

    threads = [threading.Thread(target=work, args=entry) for entry in enumerate(ways)]
    with (
        Terminal((folder / "screen").open("wb")) as screen,
        redirect_stdout(screen),
        redirect_stderr(screen),
    ):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for name, (_, _, reference) in ways.items():
        if reference == RAW:  # none has skipped work
            torch.testing.assert_close(models[name].weight, models[RAW].weight)
    return {name: model.turns_us[1 + WARM_UP :] for name, model in models.items()}


def find_ways(samples):
    """Return the candidates, their data, and the reference of each."""
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
    ways[AGAIN] = (run_raw, loader, RAW)
    ways[RAW_SAMPLES] = (run_raw, DataLoader(samples, BATCH, shuffle=True), RAW_SAMPLES)
    ways[OURS_SAMPLES] = (run_echelon, samples, RAW_SAMPLES)
    return ways


def quiet(turns_us):
    """Return the tenth percentile: other load can only add to the duration of a step."""
    return round(statistics.quantiles(turns_us, n=10)[0], 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the loops are compared on the CPU
    torch.set_num_threads(1)
    logging.getLogger("lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning|accelerate")
    ways = find_ways(Samples())
    taken = {name: [] for name in ways}
    with workshop() as folder:
        for _ in range(rounds):
            gc.collect()
            for name, turns_us in measure(ways, folder).items():
                taken[name] += turns_us
    rows = {}
    for name, (_, _, reference) in ways.items():
        rows[name] = {
            "step_us": quiet(taken[name]),
            "over_raw_us": round(quiet(taken[name]) - quiet(taken[reference]), 1),
            "median_step_us": round(statistics.median(taken[name]), 1),
            "turns": len(taken[name]),
        }
    goals = {
        "Echelon over the raw loop, µs per step": (rows[OURS]["over_raw_us"], GOAL_US),
        "a step with its data, over the raw loop, µs": (rows[OURS_SAMPLES]["over_raw_us"], GOAL_US),
    }
    measuring.write_results("overhead", rows, goals, load_average=os.getloadavg())


if __name__ == "__main__":
    main()
