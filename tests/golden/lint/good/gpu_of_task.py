"""Each task sees its own GPU, so every rank uses device 0."""

import os

import torch
import torch.distributed as dist

device = int(os.environ["SLURM_LOCALID"])
if torch.cuda.device_count() == 1:
    device = 0
torch.cuda.set_device(device)
dist.init_process_group("nccl")
dist.destroy_process_group()
