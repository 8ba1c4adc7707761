import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(local_rank, gpus):
    node, nodes = int(os.environ["SLURM_NODEID"]), int(os.environ["SLURM_NNODES"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl", rank=node * gpus + local_rank, world_size=nodes * gpus)
    total = torch.ones(1, device="cuda")
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(total.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "29500")
    mp.spawn(work, args=(torch.cuda.device_count(),), nprocs=torch.cuda.device_count())
