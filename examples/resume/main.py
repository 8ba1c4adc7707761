"""Train on MNIST with the flags and meters of the PyTorch ImageNet example, and resume.

laptop:  python examples/resume/main.py -a mlp --epochs 2 --multiprocessing-distributed
Slurm:   echelon submit --nodes 2 --gpus 4 examples/resume/main.py -a cnn --epochs 90
"""

import argparse
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.optim.lr_scheduler import StepLR

import echelon
from echelon.errors import NotFoundError, UsageError
from echelon.train.checkpoint_files import load_checkpoint, load_foreign
from echelon.train.checkpoints.manifest import checkpoint_path, step_of
from echelon.train.data import MNIST_MEAN, MNIST_STD, load_mnist

HERE = Path(__file__).parent
DECAY_EPOCHS = 30
"""The learning rate drops to a tenth every this many epochs."""

# --- models -------------------------------------------------------------------------------------


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(800, 10),
    )  # fmt: skip


ARCHITECTURES = {"linear": linear, "mlp": mlp, "cnn": cnn}

# --- output -------------------------------------------------------------------------------------


class Meters:
    """Prints each value as the mean since the last line and, in brackets, of the epoch so far."""

    def __init__(self, samples: int, batch: int) -> None:
        self.batch = batch
        self.steps = -(-samples // batch)
        self.last_done: int | None = None
        self.clear()

    def clear(self) -> None:
        self.samples, self.sums = 0, dict.fromkeys(("Time", "Data", "Loss", "Acc@1", "Acc@5"), 0.0)

    def step_ended(self, trainer: echelon.Trainer) -> None:
        if self.last_done is None:  # the first step, possibly in the middle of an epoch
            self.last_done = max(0, trainer.done - self.batch)

    def logged(self, trainer: echelon.Trainer, means: Mapping[str, float]) -> None:
        values = {
            "Time": trainer.step_s,
            "Data": trainer.step_s * trainer.data_wait,
            "Loss": means["loss"],
            "Acc@1": 100 * means["accuracy"],
            "Acc@5": 100 * means["top5"],
        }
        fresh = trainer.done - self.last_done
        self.last_done = trainer.done
        self.samples += fresh
        for name, value in values.items():
            self.sums[name] += value * fresh
        shown = (f"{n} {v:6.3f} ({self.sums[n] / self.samples:6.3f})" for n, v in values.items())
        step = -(-trainer.done // self.batch)
        tell(trainer.world, f"Epoch: [{trainer.epoch}][{step:3}/{self.steps}]  {'  '.join(shown)}")

    def epoch_ended(self, trainer: echelon.Trainer, metrics: Mapping[str, float]) -> None:
        self.last_done = 0
        self.clear()
        tell(trainer.world, render_accuracy(metrics))


def render_accuracy(metrics: Mapping[str, float]) -> str:
    return f" * Acc@1 {100 * metrics['accuracy']:.3f} Acc@5 {100 * metrics['top5']:.3f}"


def tell(world: echelon.Group, text: str) -> None:
    if world.is_main:
        print(text, flush=True)


# --- where training starts ----------------------------------------------------------------------


def find_start(named: str, own: Path) -> Path:
    """Return the checkpoint, or the `torch.save` file, that --resume names.

    Raises:
        NotFoundError: it does not exist.
    """
    path = checkpoint_path(own, int(named)) if named.isdecimal() else Path(named)
    if path.is_dir() and step_of(path) is None:
        found = [entry for entry in path.iterdir() if step_of(entry) is not None]
        path = max(found, key=step_of, default=path / "step-…")
    if not path.exists():
        raise NotFoundError(
            f"there is no checkpoint {path}",
            hint="name a folder of checkpoints, one of them, a step, or a torch.save file",
        )
    return path


def begin_at(trainer: echelon.Trainer, epoch: int, wanted: argparse.Namespace) -> None:
    """Start the training at the given epoch."""
    trainer.epoch = trainer.scheduler.last_epoch = epoch
    for group in trainer.optimizer.param_groups:
        group["lr"] = wanted.lr * 0.1 ** (epoch // DECAY_EPOCHS)


def load_others(trainer: echelon.Trainer, path: Path, wanted: argparse.Namespace) -> None:
    """Load a file of another script: a state_dict, or a dictionary that contains one.

    Raises:
        UsageError: it contains something else, or the weights of another network.
    """
    found = load_foreign(path)
    weights = found.get("state_dict", found) if isinstance(found, Mapping) else found
    if not isinstance(weights, Mapping):
        raise UsageError(f"{path} holds a {type(weights).__name__}", hint="save a state_dict()")
    # DDP prefixes names with `module.`.
    load_weights(trainer, {n.removeprefix("module."): w for n, w in weights.items()}, path, wanted)
    if "epoch" in found:
        begin_at(trainer, int(found["epoch"]), wanted)
    if "optimizer" in found:
        trainer.optimizer.load_state_dict(found["optimizer"])
    if "scheduler" in found:
        trainer.scheduler.load_state_dict(found["scheduler"])


def load_weights(
    trainer: echelon.Trainer, weights: Mapping[str, Any], path: Path, wanted: argparse.Namespace
) -> None:
    try:
        trainer.module.load_state_dict(weights)
    except RuntimeError as error:
        raise UsageError(
            f"{path} does not fit -a {wanted.arch}: {shorten(str(error), 200)}",
            hint="select the matching network with -a",
        ) from error


# --- the training -------------------------------------------------------------------------------


def train(local_rank: int | None, wanted: argparse.Namespace) -> None:
    with echelon.init(local_rank=local_rank, backend=wanted.dist_backend) as world:
        tell(world, f"ranks: {world.world_size}, nodes: {world.nodes}, device: {world.device}")
        data, test_data = (load_mnist(wanted.data_dir, train=train) for train in (True, False))
        keeper = None
        if not wanted.evaluate:
            keeper = echelon.Checkpointer(
                wanted.checkpoints, best="accuracy", larger_is_better=True
            )
        torch.manual_seed(wanted.seed)
        trainer = echelon.Trainer(
            world,
            ARCHITECTURES[wanted.arch](),
            loss=nn.functional.cross_entropy,
            metrics=echelon.top_k(1, 5),
            transform=echelon.ImageTransform(mean=[MNIST_MEAN], std=[MNIST_STD]),
            optimizer=lambda parameters: torch.optim.SGD(
                parameters, wanted.lr, momentum=wanted.momentum, weight_decay=wanted.weight_decay
            ),
            scheduler=lambda optimizer: StepLR(optimizer, DECAY_EPOCHS),
            global_batch=wanted.batch_size,
            epochs=wanted.epochs,
            seed=wanted.seed,
            workers=wanted.workers,
            checkpoints=keeper,
            save_every=100,
            log_every=wanted.print_freq,
            quiet=True,
            callbacks=[Meters(len(data), wanted.batch_size)],
        )
        begin_at(trainer, wanted.start_epoch, wanted)
        checkpoint = None
        if wanted.start is not None and wanted.start.is_file():
            load_others(trainer, wanted.start, wanted)
        elif wanted.start is not None:
            place = {"rank": world.rank, "world_size": world.world_size}
            checkpoint = load_checkpoint(wanted.start, **place)
        if wanted.evaluate:
            if checkpoint is not None:
                load_weights(trainer, checkpoint.state["model"], checkpoint.path, wanted)
            tell(world, render_accuracy(trainer.evaluate(test_data)))
            return
        if wanted.start is not None and keeper.steps():
            tell(world, f"{keeper.folder} has checkpoints: resuming from the newest")
        trainer.fit(data, test_data, start=checkpoint)
        tell(world, f"best: {checkpoint_path(keeper.folder, keeper.best_step() or trainer.step)}")


# --- arguments and processes --------------------------------------------------------------------


def parse_arguments() -> argparse.Namespace:
    run = Path(os.environ.get("ECHELON_RUN_DIR", "."))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("-a", "--arch", choices=ARCHITECTURES, default="cnn")
    add("-j", "--workers", type=int, default=4, help="loader processes per rank")
    add("--epochs", type=int, default=90)
    add("--start-epoch", type=int, default=0, help="used without a checkpoint; counted from 0")
    add("-b", "--batch-size", type=int, default=256, help="over all ranks")
    add("--lr", type=float, default=0.1)
    add("--momentum", type=float, default=0.9)
    add("--wd", "--weight-decay", type=float, default=1e-4, dest="weight_decay")
    add("-p", "--print-freq", type=int, default=10, help="steps")
    add("--resume", nargs="?", default="", const="", metavar="PATH",
        help="start from a folder of checkpoints, one of them, a step, or a torch.save file; a "
        "training with checkpoints of its own resumes from its newest")  # fmt: skip
    add("-e", "--evaluate", action="store_true", help="evaluate --resume, or the newest")
    add("--checkpoints", type=Path, default=run / "checkpoints", help="directory of this training")
    add("--data-dir", type=Path, default=HERE.parent / "mnist" / "data")
    add("--seed", type=int, default=0)
    add("--gpu", type=int, help="use only this GPU")
    add("--dist-backend", choices=["nccl", "gloo"], default="", help="automatic if omitted")
    add("--multiprocessing-distributed", action="store_true",
        help="start the ranks of this host: as many as the launcher says, or --world-size, or one "
        "per GPU; 2 without a GPU")  # fmt: skip
    add("--world-size", type=int, help="number of processes, without a launcher")
    add("--rank", type=int, help="rank of this process, without a launcher")
    add("--dist-url", default="env://", help="rendezvous without a launcher: tcp://HOST:PORT")
    add("--dist-file", type=Path, help="rendezvous in a file that all hosts share")
    wanted = parser.parse_args()
    if problem := find_problem(wanted, os.environ):
        parser.error(problem)
    named = wanted.resume or (str(wanted.checkpoints) if wanted.evaluate else "")
    try:
        wanted.start = find_start(named, wanted.checkpoints) if named else None
    except NotFoundError as error:
        parser.error(f"{error}; {error.hint}")
    return wanted


def find_problem(wanted: argparse.Namespace, environ: Mapping[str, str]) -> str:
    """Return what is wrong with the flags, or an empty string."""
    spawn, by_hand = wanted.multiprocessing_distributed, wanted.rank is not None
    meet = wanted.dist_file is not None or urlsplit(wanted.dist_url).scheme == "tcp"
    tasks = 1 if meet or "MASTER_ADDR" in environ else echelon.detect(environ).world_size
    problems = {
        f"--dist-url {wanted.dist_url}: use tcp://HOST:PORT, env://, or --dist-file PATH": (
            not meet and wanted.dist_url != "env://"
        ),
        f"-p {wanted.print_freq}: use 1 or more": wanted.print_freq < 1,
        "a launcher has started this rank: leave out --multiprocessing-distributed and --rank": (
            "RANK" in environ and (spawn or by_hand)
        ),
        "--multiprocessing-distributed counts ranks and GPUs itself: leave out --rank and --gpu": (
            spawn and (by_hand or wanted.gpu is not None)
        ),
        "--rank needs --world-size, and --dist-url or --dist-file": (
            by_hand and (wanted.world_size is None or not meet)
        ),
        "--world-size needs --rank or --multiprocessing-distributed": (
            wanted.world_size is not None and not (by_hand or spawn)
        ),
        f"this is one of {tasks} tasks, and they have nowhere to meet: use --dist-file PATH": (
            spawn and tasks > 1
        ),
    }
    return next((problem for problem, there in problems.items() if there), "")


def tell_ranks(wanted: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the rank flags as the environment variables that echelon.init() reads."""
    told = {}
    if wanted.rank is not None:
        told |= {"RANK": str(wanted.rank), "WORLD_SIZE": str(wanted.world_size)}
    if wanted.gpu is not None:
        told["CUDA_VISIBLE_DEVICES"] = str(wanted.gpu)
    url = urlsplit(wanted.dist_url)
    if url.scheme == "tcp":
        told |= {"MASTER_ADDR": str(url.hostname), "MASTER_PORT": str(url.port)}
    if wanted.dist_file and f"file://{wanted.dist_file}" != environ.get("ECHELON_INIT_METHOD"):
        # Use a new file for each start: an old one still holds the ranks of an earlier start.
        names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
        start = [environ[name] for name in names if name in environ]
        told["ECHELON_INIT_METHOD"] = (
            f"file://{'.'.join([str(wanted.dist_file.absolute()), *start])}"
        )
    return told


def spawn_ranks(wanted: argparse.Namespace) -> None:
    """Start the ranks of this host, and wait for them."""
    count = wanted.world_size or torch.cuda.device_count() or 2
    count = int(os.environ.setdefault("LOCAL_WORLD_SIZE", str(count)))
    if not {"MASTER_ADDR", "ECHELON_INIT_METHOD"} & os.environ.keys():
        # Bind the port here, on loopback: no other process can take it, or reach it from outside.
        listener = socket.create_server(("127.0.0.1", 0))
        host, port = listener.getsockname()
        descriptor = listener.detach()
        store = dist.TCPStore(
            host, port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor
        )
        os.environ |= {"MASTER_ADDR": store.host, "MASTER_PORT": str(store.port)}
        os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True"}
        os.environ |= {"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}
    try:
        mp.spawn(run_rank, args=(wanted,), nprocs=count)
    except mp.ProcessExitedException as error:  # the rank has printed the reason
        sys.exit(error.exit_code)


def run_rank(local_rank: int | None, wanted: argparse.Namespace) -> None:
    if local_rank is not None:
        # Otherwise loaders would be spawned too, and each would import torch in every epoch.
        mp.set_start_method("fork", force=True)
    try:
        train(local_rank, wanted)
    except echelon.EchelonError as error:
        print(f"error: {error}\nhint: {error.hint}", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)


def main() -> None:
    wanted = parse_arguments()
    os.environ |= tell_ranks(wanted, os.environ)
    if wanted.multiprocessing_distributed:
        spawn_ranks(wanted)
    else:
        run_rank(None, wanted)


if __name__ == "__main__":
    main()
