"""Train on MNIST with a hand-written loop: what the Trainer does, step by step.

laptop:  echelon run --procs 2 examples/plain_loop/train.py --crash-at 250
Slurm:   echelon submit --nodes 2 --gpus 4 examples/plain_loop/train.py
"""

import argparse
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import echelon
from echelon.train.data import load_mnist
from echelon.train.randomness import random_states, restore_random_states

HERE = Path(__file__).parent


def train(local_rank: int | None, wanted: argparse.Namespace) -> None:
    with echelon.init(local_rank=local_rank) as world, echelon.StopBarrier() as stop_barrier:
        net, model = make_model(wanted, world)
        optimizer = torch.optim.SGD(net.parameters(), lr=wanted.lr, momentum=0.9)

        # The same order of samples on any number of ranks. `batches` counts the trained samples.
        data, test_data = (load_mnist(wanted.data_dir, train=train) for train in (True, False))
        place = {"rank": world.rank, "world_size": world.world_size, "seed": wanted.seed}
        # By default a loader draws from the same generator as dropout. Give it its own.
        plain = {"num_workers": wanted.workers, "generator": torch.Generator()}
        if wanted.plain_sampler:
            sampler = echelon.ElasticIndexSampler(data, batch_size=wanted.batch_size, **place)
            loader = DataLoader(data, batch_size=wanted.batch_size, sampler=sampler, **plain)
            batches = sampler.batches
        else:
            together = wanted.batch_size * world.world_size
            batches = echelon.ElasticSampler(data, global_batch=together, **place)
            loader = DataLoader(data, batch_sampler=batches, **plain)

        # After a restart, resume from the newest checkpoint of the run.
        checkpoints = echelon.Checkpointer(wanted.checkpoints)
        step = 0
        if (found := checkpoints.load()) is not None:
            net.load_state_dict(found.state["model"])
            optimizer.load_state_dict(found.state["optimizer"])
            batches.load_state_dict(found.state["batches"])
            step = found.step
            if found.own is not None:  # saved by the same number of ranks
                restore_random_states(found.own, world.device)
            if world.is_main:
                print(f"resumed at step {step}, at sample {batches.cursor} of its epoch")

        for epoch in range(batches.epoch, wanted.epochs):
            batches.set_epoch(epoch)
            for images, labels in loader:
                # DDP averages over ranks, but shares are uneven at the end of an epoch. To get the
                # mean over samples, each rank divides its sum by total/ranks. A rank without
                # samples has weight 0.
                share = batches.share()
                outputs = model(images.to(world.device).float() / 255)
                loss = cross_entropy(outputs, labels.to(world.device), reduction="sum")
                weight = world.world_size / share.total if share.size else 0.0
                optimizer.zero_grad()
                (loss * weight).backward()
                optimizer.step()
                batches.advance()
                step += 1
                stop = stop_barrier.reached(step)  # true on all ranks at the same step
                if stop or step % wanted.save_every == 0 or batches.over:
                    state = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
                    state["batches"] = batches.state_dict()
                    checkpoints.save(state, step=step, own=random_states(world.device))
                if stop:
                    checkpoints.wait()
                    sys.exit()
                crash(step, wanted, world)
            accuracy = measure(net, test_data, world)
            if world.is_main:
                print(f"epoch {epoch + 1}: test accuracy {accuracy:.2%} after {step} steps")
        checkpoints.wait()


def make_model(wanted: argparse.Namespace, world: echelon.Group) -> tuple[nn.Module, nn.Module]:
    """Return the model, and its DDP wrapper if there are several ranks."""
    torch.manual_seed(wanted.seed)
    net = nn.Sequential(
        *(nn.Flatten(), nn.Linear(784, 128), nn.ReLU()),
        *(nn.Dropout(wanted.dropout), nn.Linear(128, 10)),
    ).to(world.device)
    if world.world_size == 1:
        return net, net
    model = DistributedDataParallel(net)
    # DDP reorders its gradient buckets after the first pass, and sums in a different order differ
    # in the last bit. This extra pass makes it reorder before training, also after a restart.
    model(torch.zeros(1, 784, device=world.device)).sum().backward()
    return net, model


@torch.no_grad()
def measure(net: nn.Module, data: Dataset, world: echelon.Group) -> float:
    """Return the accuracy on all data. Each rank measures its part."""
    net.eval()
    mine = range(world.rank, len(data), world.world_size)
    hits = torch.zeros(1, device=world.device)
    for images, labels in DataLoader(torch.utils.data.Subset(data, mine), batch_size=1000):
        guesses = net(images.to(world.device).float() / 255).argmax(dim=1)
        hits += (guesses == labels.to(world.device)).sum()
    net.train()
    if world.world_size > 1:
        dist.all_reduce(hits)
    return hits.item() / len(data)


def crash(step: int, wanted: argparse.Namespace, world: echelon.Group) -> None:
    """Kill the last rank once, to show a restart."""
    first_time = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    if first_time and step == wanted.crash_at and world.rank == world.world_size - 1:
        print(f"rank {world.rank} kills itself at step {step}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def parse_arguments() -> argparse.Namespace:
    run = Path(os.environ.get("ECHELON_RUN_DIR", "."))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=64, help="per rank")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0, help="loader processes per rank")
    parser.add_argument("--save-every", type=int, default=100, help="steps")
    parser.add_argument("--checkpoints", type=Path, default=run / "checkpoints")
    parser.add_argument("--data-dir", type=Path, default=HERE.parent / "mnist" / "data")
    parser.add_argument("--plain-sampler", action="store_true", help="DataLoader(…, sampler=…)")
    parser.add_argument("--crash-at", type=int, default=0, help="kill a rank once, at this step")
    parser.add_argument("--spawn", action="store_true", help="spawn the ranks of this node")
    wanted = parser.parse_args()
    if wanted.spawn and "LOCAL_WORLD_SIZE" not in os.environ:
        parser.error("--spawn needs LOCAL_WORLD_SIZE, which --style spawn sets")
    return wanted


def main() -> None:
    wanted = parse_arguments()
    if wanted.spawn:
        mp.spawn(train, args=(wanted,), nprocs=int(os.environ["LOCAL_WORLD_SIZE"]))
    else:
        train(None, wanted)


if __name__ == "__main__":
    main()
