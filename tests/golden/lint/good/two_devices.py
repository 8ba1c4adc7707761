"""Each rank holds its half of the layers on each of two GPUs."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

local_rank = int(os.environ["LOCAL_RANK"])
first, second = local_rank * 2, local_rank * 2 + 1
torch.cuda.set_device(first)
dist.init_process_group("nccl")


class Halves(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lower = torch.nn.Linear(8, 8).to(first)
        self.upper = torch.nn.Linear(8, 1).to(second)

    def forward(self, inputs):
        return self.upper(self.lower(inputs.to(first)).to(second))


model = DistributedDataParallel(Halves())
model(torch.ones(4, 8)).sum().backward()
dist.destroy_process_group()
