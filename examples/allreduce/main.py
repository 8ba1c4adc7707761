"""Sum random numbers over all ranks: the smallest test that ranks can communicate.

laptop:  echelon run --procs 4 examples/allreduce/main.py
Slurm:   echelon submit --nodes 2 --gpus 4 examples/allreduce/main.py --size 100000000
"""

import argparse
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import echelon


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=1_000_000, help="numbers per rank")
    parser.add_argument("--repeat", type=int, default=10, help="number of timed all-reduces")
    parser.add_argument("--spawn", action="store_true", help="spawn the ranks of this node")
    wanted = parser.parse_args()
    for name in ("size", "repeat"):
        if getattr(wanted, name) < 1:
            parser.error(f"--{name} {getattr(wanted, name)}: use 1 or more")
    if wanted.spawn and "LOCAL_WORLD_SIZE" not in os.environ:
        parser.error("--spawn needs LOCAL_WORLD_SIZE, which --style spawn sets")
    return wanted


def sum_over_ranks(numbers: torch.Tensor) -> torch.Tensor:
    total = numbers.clone()
    if dist.is_initialized():  # without a launcher there is one rank and no process group
        dist.all_reduce(total)
    return total


def gather(numbers: torch.Tensor) -> list[torch.Tensor]:
    if not dist.is_initialized():
        return [numbers]
    found = [torch.empty_like(numbers) for _ in range(dist.get_world_size())]
    dist.all_gather(found, numbers)
    return found


def measure_gbps(numbers: torch.Tensor, repeat: int) -> float:
    """Return how many gigabytes per rank are summed in a second."""
    total, took_s = numbers.clone(), 0.0
    for _ in range(repeat):
        began_s = time.perf_counter()
        dist.all_reduce(total)
        if total.is_cuda:  # the call returns before the GPU is done
            torch.cuda.synchronize()
        took_s += time.perf_counter() - began_s
        total.copy_(numbers)
    return repeat * numbers.nbytes / took_s / 1e9


def work(local_rank: int | None, wanted: argparse.Namespace) -> None:
    with echelon.init(local_rank=local_rank) as world:
        # If ranks share a GPU or have none, gloo sums on the CPU.
        device = world.device if world.backend == "nccl" else torch.device("cpu")
        numbers = torch.rand(wanted.size, device=device)
        total = sum_over_ranks(numbers)
        right = torch.allclose(total, torch.stack(gather(numbers)).sum(0))
        print(
            f"rank {world.rank} of {world.world_size} on {socket.gethostname()}, {device}: "
            f"the sum is {'verified' if right else 'WRONG'}, it begins with {total[0].item():.4f}",
            flush=True,
        )
        if world.world_size > 1:
            gbps = measure_gbps(numbers, wanted.repeat)
        if world.world_size > 1 and world.is_main:
            over_bus = 2 * (world.world_size - 1) / world.world_size  # traffic of a ring all-reduce
            print(
                f"{numbers.nbytes / 1e6:g} MB per rank in {numbers.nbytes / gbps / 1e6:.3f} ms: "
                f"{gbps:.3f} GB/s, bus {gbps * over_bus:.3f} GB/s ({world.backend})"
            )
    if not right:
        sys.exit(1)


def main() -> None:
    wanted = parse_arguments()
    if wanted.spawn:
        mp.spawn(work, args=(wanted,), nprocs=int(os.environ["LOCAL_WORLD_SIZE"]))
    else:
        work(None, wanted)


if __name__ == "__main__":
    main()
