"""Training speed on one GPU: a plain DDP loop, Accelerate, Lightning and Echelon, in one run.

    PYTHONPATH=src python benchmarks/gpu.py [mnist] [resnet18] [resnet50] [resnet50-1024]
                                            [checkpoint] [restart]

Each uses the same model, data, batch size and number of epochs, end to end from the data set's
file. The final losses are compared, to make sure that none skips work. Echelon is also measured
with its optimizations enabled one at a time. Peers are included if installed. Writes
benchmarks/results/gpu.json after each part.
"""

import argparse
import contextlib
import importlib.util
import json
import logging
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from datetime import UTC, datetime
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import echelon
from echelon.train.data import MNIST_MEAN, MNIST_STD, load_mnist
from echelon.train.images.packed import PackedImages

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"
RESULTS = HERE / "results" / "gpu.json"
GPU = torch.device("cuda", 0)
WORKERS = 8


def load_example(path):
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Workload:
    """A model, its data and its hyperparameters."""

    def __init__(self, *, make, data, test, transform, loss, optimizer, batch, epochs, gamma=1.0):
        self.make, self.data, self.test, self.transform = make, data, test, transform
        self.loss, self.optimizer, self.batch = loss, optimizer, batch
        self.epochs, self.gamma = epochs, gamma

    def model(self):
        torch.manual_seed(1)
        return self.make()

    def schedule(self, optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 1, self.gamma)

    def loader(self, *, shared=False):
        """Load like an ordinary script: single samples, collated by worker processes.

        Args:
            shared: divide the samples among the ranks, for a loop that has to do so itself.
        """
        samples = Samples(self.data)
        sampler = DistributedSampler(samples) if shared else None
        return DataLoader(
            samples, batch_size=self.batch, shuffle=sampler is None, sampler=sampler,
            num_workers=WORKERS // dist.get_world_size() if dist.is_initialized() else WORKERS,
            pin_memory=True, persistent_workers=True,
        )  # fmt: skip


class Samples(Dataset):
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]


def mnist():
    example = load_example(EXAMPLES / "mnist" / "train.py")
    folder = EXAMPLES / "mnist" / "data"
    return Workload(
        make=example.Net,
        data=load_mnist(folder, train=True),
        test=load_mnist(folder, train=False),
        transform=echelon.ImageTransform(mean=[MNIST_MEAN], std=[MNIST_STD]),
        loss=nn.functional.nll_loss,
        optimizer=lambda parameters: torch.optim.Adadelta(parameters, lr=1.0),
        batch=64,
        epochs=3,
        gamma=0.7,
    )


def resnet(name, batch, folder):
    example = load_example(EXAMPLES / "tinyimagenet" / "resnet.py")
    return Workload(
        make=lambda: getattr(example, name)(200),
        data=PackedImages(folder / "train.packed"),
        test=PackedImages(folder / "val.packed"),
        transform=echelon.ImageTransform(shift=4, flip=True),
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(
            parameters, lr=0.02, momentum=0.9, weight_decay=1e-4
        ),
        batch=batch,
        epochs=3,
    )


# --- ways to train ------------------------------------------------------------------------------


class Epochs:
    """Times epochs, including the device's work."""

    def __init__(self):
        self.ends_s = []

    def end(self):
        torch.cuda.synchronize()
        self.ends_s.append(time.perf_counter())

    def epoch_ended(self, _trainer, _metrics):
        self.end()

    @property
    def best_s(self):
        return min(b - a for a, b in zip(self.ends_s, self.ends_s[1:], strict=False))


def augment(work, batch):
    images, targets = batch
    keys = torch.randint(2**62, (len(targets),), device=images.device)
    return work.transform((images, targets), keys)


def train_raw(work):
    """Train as the tutorials do, with bf16 and channels last; the transform runs on the GPU."""
    work.transform.to(GPU)
    model = work.model().to(GPU, memory_format=torch.channels_last)
    model = DistributedDataParallel(model)
    optimizer = work.optimizer(model.parameters())
    scheduler, loader, clock = work.schedule(optimizer), work.loader(shared=True), Epochs()
    clock.end()
    for epoch in range(work.epochs):
        loader.sampler.set_epoch(epoch)
        for images, targets in loader:
            batch = augment(work, (images.to(GPU, non_blocking=True), targets.to(GPU)))
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                loss = work.loss(model(batch[0]), batch[1])
            loss.backward()
            optimizer.step()
        scheduler.step()
        clock.end()
    return clock.best_s, measure(work, model.module)


def train_accelerate(work):
    from accelerate import Accelerator  # noqa: PLC0415

    work.transform.to(GPU)
    accelerator = Accelerator(mixed_precision="bf16")
    model = work.model().to(memory_format=torch.channels_last)
    optimizer = work.optimizer(model.parameters())
    scheduler, clock = work.schedule(optimizer), Epochs()
    model, optimizer, loader = accelerator.prepare(model, optimizer, work.loader())
    clock.end()
    for _ in range(work.epochs):
        for given in loader:
            batch = augment(work, given)
            optimizer.zero_grad()
            loss = work.loss(model(batch[0]), batch[1])
            accelerator.backward(loss)
            optimizer.step()
        scheduler.step()
        clock.end()
    return clock.best_s, measure(work, accelerator.unwrap_model(model))


def train_lightning(work, *, nodes=1):
    import lightning  # noqa: PLC0415

    logging.getLogger("lightning").setLevel(logging.ERROR)
    work.transform.to(GPU)
    clock = Epochs()

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = work.model().to(memory_format=torch.channels_last)

        def training_step(self, given, _number):
            batch = augment(work, given)
            return work.loss(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            optimizer = work.optimizer(self.net.parameters())
            return [optimizer], [work.schedule(optimizer)]

        def on_train_start(self):
            clock.end()

        def on_train_epoch_end(self):
            clock.end()

    module = Module()
    trainer = lightning.Trainer(
        max_epochs=work.epochs, accelerator="gpu", devices=1, num_nodes=nodes, logger=False,
        precision="bf16-mixed", enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, work.loader())
    return clock.best_s, measure(work, module.net.to(GPU))


def train_echelon(work, *, world=None, **options):
    clock = Epochs()
    trainer = echelon.Trainer(
        world or echelon.Group(device=GPU, backend="nccl"),
        work.model(),
        loss=work.loss,
        optimizer=work.optimizer,
        scheduler=work.schedule,
        transform=work.transform,
        global_batch=work.batch,
        seed=1,
        log_every=100,
        callbacks=[clock],
        **{"epochs": work.epochs + 2, **options},
    )
    trainer.fit(work.data)
    return clock.best_s, measure(work, trainer.module)


@torch.no_grad()
def measure(work, model):
    """Return loss and accuracy on the test set."""
    model.eval()
    sums = torch.zeros(2, device=GPU)
    for start in range(0, len(work.test), 1000):
        indices = range(start, min(start + 1000, len(work.test)))
        images, targets = (
            tensor[indices.start : indices.stop].to(GPU) for tensor in work.test.tensors
        )
        outputs = model(work.transform((images, targets), None)[0])
        hits = (outputs.argmax(1) == targets).sum()
        sums += torch.stack([work.loss(outputs, targets) * len(targets), hits])
    return [round(float(value) / len(work.test), 4) for value in sums]


LADDER = {
    "data on the device, fp32, eager": {"capture": "never", "precision": "fp32"},
    "+ bf16": {"capture": "never"},
    "+ CUDA graph": {"compiled": False},
    "+ torch.compile": {"compiled": True},
    "the same with DDP inside": {"compiled": True, "capture": "always", "ddp": True},
}


def compare(name, work, report):
    peers = {"raw DDP": train_raw, "Accelerate": train_accelerate, "Lightning": train_lightning}
    rows = {}

    def add(label, train, **options):
        began_s = time.perf_counter()
        try:
            epoch_s, (loss, accuracy) = train(work, **options)
        except ImportError as error:
            print(f"{name}: {label}: left out, {error}", flush=True)
            return
        rows[label] = {
            "epoch_s": round(epoch_s, 4),
            "samples_per_s": round(len(work.data) / epoch_s),
            "loss": loss,
            "accuracy": accuracy,
            "whole_s": round(time.perf_counter() - began_s, 1),
        }
        print(f"{name}: {label}: {rows[label]}", flush=True)
        report(name, rows)
        torch.cuda.empty_cache()

    for label, train in peers.items():
        add(label, train)
    for label, options in LADDER.items():
        add(f"Echelon: {label}", train_echelon, **options)


def time_to_accuracy(report, goal=0.99):
    """Train MNIST to the target accuracy; compilation and warm-up are reported separately."""
    work, reached = mnist(), {}

    class Watch:
        def __init__(self):
            self.train_s, self.since_s = 0.0, None

        def step_ended(self, trainer):
            if trainer.step == 2:  # the first is eager, the second has compiled and recorded
                torch.cuda.synchronize()
                self.since_s = time.perf_counter()

        def epoch_ended(self, trainer, metrics):
            torch.cuda.synchronize()
            spent_s = time.perf_counter() - self.since_s
            if metrics["accuracy"] >= goal and not reached:
                reached.update(
                    epoch=trainer.epoch, accuracy=round(metrics["accuracy"], 4),
                    seconds=round(spent_s, 2),
                )  # fmt: skip

    began_s = time.perf_counter()
    trainer = echelon.Trainer(
        echelon.Group(device=GPU, backend="nccl"), work.model(), loss=work.loss,
        optimizer=work.optimizer, scheduler=work.schedule, transform=work.transform,
        global_batch=64, epochs=14, seed=1, log_every=100, compiled=True, callbacks=[Watch()],
    )  # fmt: skip
    result = trainer.fit(work.data, work.test)
    whole_s = round(time.perf_counter() - began_s, 1)
    report(
        "mnist to 99 %",
        {**reached, "after 14 epochs": result.metrics["accuracy"], "whole_s": whole_s},
    )


# --- checkpoints ----------------------------------------------------------------------------------


def checkpoint(report):
    """Measure, with 2 GB of state, how long a save blocks the loop and how writing slows it."""
    import torch.distributed.checkpoint as dcp  # noqa: PLC0415

    state = {f"layer {n}": torch.rand(25_000_000, device=GPU) for n in range(20)}
    a = torch.rand(4096, 4096, device=GPU, dtype=torch.bfloat16)

    def steps(count):
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        for _ in range(count):
            torch.mm(a, a)
        torch.cuda.synchronize()
        return (time.perf_counter() - began_s) / count

    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        keeper = echelon.Checkpointer(Path(folder) / "ours", keep=1)
        stalls = {"Echelon": [], "DCP async": []}
        steps(200)
        quiet_s = steps(5000)
        for number in range(4):
            torch.cuda.synchronize()
            began_s = time.perf_counter()
            keeper.save(state, step=number)
            stalls["Echelon"].append(time.perf_counter() - began_s)
            if number == 3:
                busy_s = steps(5000)
            keeper.wait()
        for number in range(3):
            torch.cuda.synchronize()
            began_s = time.perf_counter()
            future = dcp.async_save(state, checkpoint_id=f"{folder}/dcp-{number}")
            stalls["DCP async"].append(time.perf_counter() - began_s)
            future.result()
    report(
        "checkpoint of 2 GB",
        {
            **{f"{name}: stalls, ms": [round(1e3 * s, 1) for s in found]
               for name, found in stalls.items()},
            "slower while writing, %": round(100 * (busy_s / quiet_s - 1), 2),
        },
    )  # fmt: skip


# --- restarts -------------------------------------------------------------------------------------

KILLS_ITSELF = """\
import os, signal, sys, time
import torch
again = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
model = torch.nn.Linear(512, 512, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.rand(8, 512, device="cuda")).sum().backward()
optimizer.step()
torch.cuda.synchronize()
with open(sys.argv[1], "a") as file:
    file.write(f"{time.time()}\\n")
if not again:
    time.sleep(8)  # it has trained for a while
    with open(sys.argv[1], "a") as file:
        file.write(f"{time.time()}\\n")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def restart(report):
    """Measure from the death of a rank with a CUDA context to its successor's first step."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(KILLS_ITSELF)
        ways = {
            "Echelon": [sys.executable, "-m", "echelon", "run", "--procs=1", str(script)],
            "torchrun": [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
                *("--nproc-per-node=1", "--max-restarts=3", str(script)),
            ],
        }
        for name, argv in ways.items():
            times = Path(folder) / name
            subprocess.run(
                [*argv, str(times)], cwd=folder, check=False, timeout=120,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            marks = [float(line) for line in times.read_text().splitlines()]
            found[f"{name}, s"] = round(marks[2] - marks[1], 2)
    found["ratio"] = round(found["Echelon, s"] / found["torchrun, s"], 3)
    report("restart of a rank with a CUDA context", found)


def make_pictures(folder):
    """Create a packed data set of 12,800 images in TinyImageNet's layout."""
    maker = EXAMPLES / "tinyimagenet" / "make_synthetic.py"
    sizes = ["--classes=200", "--train-per-class=64", "--val-per-class=5"]
    subprocess.run([sys.executable, str(maker), *sizes, str(folder)], check=True)
    pack = [sys.executable, "-m", "echelon", "pack", str(folder)]
    subprocess.run(pack, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = ["mnist", "resnet18", "resnet50", "resnet50-1024", "checkpoint", "restart"]
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(known))
    parts = parser.parse_args().parts or known
    if unknown := [part for part in parts if part not in known]:
        parser.error(f"no such part: {', '.join(unknown)}")
    if len(parts) > 1:  # run each part in its own process, like a training
        for part in parts:
            subprocess.run([sys.executable, __file__, part], check=True)
    else:
        measure_part(*parts)


def measure_part(part):
    """Measure one part, and merge its results into the file."""
    warnings.simplefilter("ignore")
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "NCCL_DEBUG": "ERROR"}
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results |= {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{torch.cuda.get_device_name()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "python": platform.python_version(),
    }

    def report(name, values):
        results[name] = values
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        print(f"{name}: {values}", flush=True)

    if part == "restart":  # this process must not use the GPU
        restart(report)
        return
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        dist.init_process_group("cpu:gloo,cuda:nccl", rank=0, world_size=1, device_id=GPU)
        stack.callback(dist.destroy_process_group)
        if part == "mnist":
            compare("mnist", mnist(), report)
            time_to_accuracy(report)
        elif part == "checkpoint":
            checkpoint(report)
        else:
            make_pictures(Path(folder) / "pictures")
            name, _, batch = part.partition("-")
            compare(part, resnet(name, int(batch or 64), Path(folder) / "pictures"), report)


if __name__ == "__main__":
    main()
