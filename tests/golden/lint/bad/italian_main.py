import argparse
import os

import torch
import torch.distributed
import torch.multiprocessing


def main():
    args = argparse.ArgumentParser().parse_args()
    args.gpus = torch.cuda.device_count()
    args.rank = int(os.getenv("SLURM_NODEID")) * args.gpus
    args.world_size = int(os.getenv("SLURM_NNODES")) * args.gpus
    torch.multiprocessing.spawn(work, (args,), args.gpus)


def work(device, args):
    args.rank += device
    torch.distributed.init_process_group("nccl", init_method="env://", world_size=args.world_size, rank=args.rank)  # expect: E622 E623
    numbers = torch.rand(10, device=device)
    torch.distributed.all_reduce(numbers)


if __name__ == "__main__":
    main()
