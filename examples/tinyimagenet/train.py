"""Train a ResNet on TinyImageNet, from JPEG folders or, far faster, from packed files.

laptop:  python examples/tinyimagenet/make_synthetic.py tiny && echelon pack tiny
         DATA_DIR=tiny echelon run --procs 2 examples/tinyimagenet/train.py --model resnet18
Slurm:   DATA_DIR=/data/tiny-imagenet-200 echelon submit --nodes 2 --gpus 4 \
             examples/tinyimagenet/train.py --epochs 10 --lr 0.001 --batch-size 64
"""

import argparse
import os
from pathlib import Path

import numpy as np
import torch
import torch.multiprocessing as mp
from resnet import resnet18, resnet50
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import Dataset

import echelon
from echelon.train.images.decoding import load
from echelon.train.images.folders import list_split
from echelon.train.images.packed import PackedImages

MODELS = {"resnet18": resnet18, "resnet50": resnet50}


class Jpegs(Dataset):
    """One split of the JPEG folders. Images are decoded in every epoch."""

    def __init__(self, folder: Path, split: str) -> None:
        self.listing = list_split(folder, split)
        self.classes = self.listing.classes

    def __len__(self) -> int:
        return len(self.listing.entries)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        pixels = torch.from_numpy(np.array(load(self.listing.path(index))))
        return pixels.permute(2, 0, 1), self.listing.entries[index].label


def open_split(folder: Path, split: str) -> Dataset:
    packed = folder / f"{split}.packed"
    return PackedImages(packed) if packed.exists() else Jpegs(folder, split)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="resnet50")
    parser.add_argument("--num-workers", type=int, default=10, help="per rank, for JPEGs")
    parser.add_argument("--batch-size", type=int, default=256, help="per rank")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--print-interval", type=int, default=10, help="steps")
    parser.add_argument("--max-steps", type=int, help="stop after this many steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--spawn", action="store_true", help="spawn the ranks of this node")
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("DATA_DIR"))
    wanted = parser.parse_args()
    if wanted.data_dir is None:
        parser.error("no data directory: set DATA_DIR or pass --data-dir")
    if wanted.spawn and "LOCAL_WORLD_SIZE" not in os.environ:
        parser.error("--spawn needs LOCAL_WORLD_SIZE, which --style spawn sets")
    return wanted


def train(local_rank: int | None, wanted: argparse.Namespace) -> None:
    data, test_data = (open_split(Path(wanted.data_dir), split) for split in ("train", "val"))
    packed = isinstance(data, PackedImages)
    with echelon.init(local_rank=local_rank) as world:
        torch.manual_seed(wanted.seed)
        trainer = echelon.Trainer(
            world,
            MODELS[wanted.model](len(data.classes)),
            loss=nn.functional.cross_entropy,
            metrics=echelon.top_k(1, 5),
            transform=echelon.ImageTransform(shift=4, flip=True),
            optimizer=lambda parameters: torch.optim.SGD(
                parameters,
                lr=wanted.lr,
                momentum=wanted.momentum,
                weight_decay=wanted.weight_decay,
            ),
            scheduler=lambda optimizer: StepLR(optimizer, step_size=30, gamma=0.1),
            global_batch=wanted.batch_size * world.world_size,
            epochs=wanted.epochs,
            max_steps=wanted.max_steps,
            seed=wanted.seed,
            workers=0 if packed else wanted.num_workers,
            log_every=wanted.print_interval,
        )
        result = trainer.fit(data, test_data)
        if world.is_main:
            shown = "  ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
            print(f"{shown}  after {result.step} steps, {result.train_s:.1f} s in all")
            rate = result.samples / result.train_s
            print(f"{rate:,.1f} img/s, at most {result.peak_memory_mib} MiB of memory")


def main() -> None:
    wanted = parse_arguments()
    if wanted.spawn:
        mp.spawn(train, args=(wanted,), nprocs=int(os.environ["LOCAL_WORLD_SIZE"]))
    else:
        train(None, wanted)


if __name__ == "__main__":
    main()
