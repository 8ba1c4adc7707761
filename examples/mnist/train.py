"""Train the well-known MNIST CNN on any number of ranks.

laptop:  echelon run --procs 4 examples/mnist/train.py --epochs 2
Slurm:   echelon submit --nodes 2 --gpus 4 examples/mnist/train.py --epochs 14
"""

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.multiprocessing as mp
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset

import echelon
from echelon.train.data import MNIST_MEAN, MNIST_STD, load_mnist

HERE = Path(__file__).parent


class Net(nn.Module):
    """Two convolutions, two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.classifier = nn.Sequential(
            nn.Dropout(0.25), nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5),
            nn.Linear(128, 10), nn.LogSoftmax(dim=1),
        )  # fmt: skip

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.convolutions(images))


class Crash:
    """Kills the last rank once, to show a restart."""

    def __init__(self, step: int) -> None:
        self.step = step

    def step_ended(self, trainer: echelon.Trainer) -> None:
        world = trainer.world
        first_time = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        if first_time and trainer.step == self.step and world.rank == world.world_size - 1:
            print(f"rank {world.rank} kills itself at step {self.step}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=64, help="per rank")
    parser.add_argument("--test-batch-size", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7, help="learning rate decay per epoch")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=10, help="steps")
    parser.add_argument("--dry-run", action="store_true", help="run a single step")
    parser.add_argument("--save-model", action="store_true", help="write mnist_cnn.safetensors")
    parser.add_argument("--no-cuda", action="store_true")
    parser.add_argument("--crash-at", type=int, default=0, help="kill a rank once, at this step")
    parser.add_argument("--samples", type=int, help="train on this many images (default: all)")
    parser.add_argument("--data-dir", type=Path, default=HERE / "data")
    parser.add_argument("--spawn", action="store_true", help="spawn the ranks of this node")
    wanted = parser.parse_args()
    if wanted.spawn and "LOCAL_WORLD_SIZE" not in os.environ:
        parser.error("--spawn needs LOCAL_WORLD_SIZE, which --style spawn sets")
    return wanted


def train(local_rank: int | None, wanted: argparse.Namespace) -> None:
    if wanted.no_cuda:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    with echelon.init(local_rank=local_rank) as world:
        torch.manual_seed(wanted.seed)
        trainer = echelon.Trainer(
            world,
            Net(),
            loss=nn.functional.nll_loss,
            transform=echelon.ImageTransform(mean=[MNIST_MEAN], std=[MNIST_STD]),
            optimizer=lambda parameters: torch.optim.Adadelta(parameters, lr=wanted.lr),
            scheduler=lambda optimizer: StepLR(optimizer, step_size=1, gamma=wanted.gamma),
            global_batch=wanted.batch_size * world.world_size,
            epochs=wanted.epochs,
            max_steps=1 if wanted.dry_run else None,
            seed=wanted.seed,
            eval_batch=wanted.test_batch_size,
            save_every=100,
            log_every=wanted.log_interval,
            callbacks=[Crash(wanted.crash_at)] if wanted.crash_at else [],
        )
        data, test_data = (load_mnist(wanted.data_dir, train=train) for train in (True, False))
        data = TensorDataset(*data[: wanted.samples])
        result = trainer.fit(data, test_data)
        if world.is_main and "accuracy" in result.metrics:  # a dry run does not validate
            print(
                f"test accuracy {result.metrics['accuracy']:.2%} after {result.step} steps "
                f"on {world.world_size} ranks, {result.train_s:.1f} s"
            )
        if wanted.save_model and world.is_main:
            from safetensors.torch import save_file

            save_file(trainer.module.state_dict(), "mnist_cnn.safetensors")


def main() -> None:
    wanted = parse_arguments()
    if wanted.spawn:
        mp.spawn(train, args=(wanted,), nprocs=int(os.environ["LOCAL_WORLD_SIZE"]))
    else:
        train(None, wanted)


if __name__ == "__main__":
    main()
