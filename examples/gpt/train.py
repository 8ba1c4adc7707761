"""Train a GPT on source code, with DDP or sharded, on any number of ranks.

laptop:  echelon run --procs 2 examples/gpt/train.py --size tiny --steps 200 --shard fsdp
Slurm:   echelon submit --nodes 2 --gpus 4 examples/gpt/train.py --shard hsdp
"""

import argparse
import math
import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from model import SIZES, Gpt, loss, write_text
from text import Windows, pack_text
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

import echelon


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="124m")
    parser.add_argument("--shard", choices=["none", "fsdp", "hsdp"], default="none")
    parser.add_argument("--recompute", action="store_true", help="save memory of activations")
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--batch-size", type=int, default=32, help="over all ranks")
    parser.add_argument("--accumulate", type=int, default=1, help="parts of a rank's batch")
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--warm-up", type=int, default=100, help="steps")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save-every", type=int, default=500, help="steps")
    parser.add_argument("--text", type=Path, help="folder (default: Python's standard library)")
    parser.add_argument(
        "--packed", type=Path, default=Path("text.packed"), help="on shared storage"
    )
    parser.add_argument("--max-windows", type=int, help="use only so many (default: all)")
    parser.add_argument("--begin", default="def main(", help="what the sample begins with")
    parser.add_argument("--sample", type=int, default=200, help="bytes to write at the end")
    parser.add_argument("--spawn", action="store_true", help="spawn the ranks of this node")
    wanted = parser.parse_args()
    if wanted.spawn and "LOCAL_WORLD_SIZE" not in os.environ:
        parser.error("--spawn needs LOCAL_WORLD_SIZE, which --style spawn sets")
    return wanted


def make_optimizer(parameters: Iterable[nn.Parameter], *, lr: float) -> torch.optim.Optimizer:
    """Create AdamW, with weight decay for matrices only."""
    every = list(parameters)
    groups = [
        {"params": [one for one in every if one.ndim > 1], "weight_decay": 0.1},
        {"params": [one for one in every if one.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))


def rate_at(step: int, *, warm_up: int, steps: int) -> float:
    """Return the learning rate's factor: a linear rise, then half a cosine down to a tenth."""
    if step < warm_up:
        return (step + 1) / warm_up
    progress = min(1.0, (step - warm_up) / max(1, steps - warm_up))
    return 0.55 + 0.45 * math.cos(math.pi * progress)


def train(local_rank: int | None, wanted: argparse.Namespace) -> None:
    size = SIZES[wanted.size]
    with echelon.init(local_rank=local_rank) as world:
        if world.is_main:
            pack_text(wanted.text, wanted.packed)
        if dist.is_initialized():
            dist.barrier()
        torch.manual_seed(wanted.seed)
        model = Gpt(size)
        rate = partial(rate_at, warm_up=wanted.warm_up, steps=wanted.steps)
        data, test_data = (
            Windows(wanted.packed, size.length, train=train, limit=wanted.max_windows)
            for train in (True, False)
        )
        trainer = echelon.Trainer(
            world,
            model,
            loss=loss,
            optimizer=partial(make_optimizer, lr=wanted.lr),
            scheduler=lambda optimizer: LambdaLR(optimizer, rate),
            schedule_steps=True,
            global_batch=wanted.batch_size,
            drop_last=True,
            epochs=-(-wanted.steps // max(1, len(data) // wanted.batch_size)),
            max_steps=wanted.steps,
            clip_norm=1.0,
            accumulate=wanted.accumulate,
            seed=wanted.seed,
            eval_batch=max(1, wanted.batch_size // world.world_size),
            shard=wanted.shard,
            recompute=wanted.recompute,
            compiled=wanted.compile or None,
            save_every=wanted.save_every,
        )
        result = trainer.fit(data, test_data)
        found = trainer.evaluate(test_data)
        said = write_text(trainer.module, wanted.begin, wanted.sample, length=size.length)
        if world.is_main:
            millions = sum(one.numel() for one in model.parameters()) / 1e6
            print(
                f"{millions:.2f} million parameters, {wanted.shard}, {world.world_size} ranks: "
                f"validation loss {found['loss']:.4f} after {result.step} steps, "
                f"at most {result.peak_memory_mib} MiB of memory"
            )
            print(said)


def main() -> None:
    wanted = parse_arguments()
    if wanted.spawn:
        mp.spawn(train, args=(wanted,), nprocs=int(os.environ["LOCAL_WORLD_SIZE"]))
    else:
        train(None, wanted)


if __name__ == "__main__":
    main()
