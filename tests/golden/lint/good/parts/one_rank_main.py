"""Downloads, saves and loads as a single rank may."""

import os

import torch
import torch.distributed as dist
from torchvision.datasets import MNIST

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
data = MNIST("data", download=True)
model = torch.nn.Linear(1, 1).cuda()
model.load_state_dict(torch.load("start.pt"))
torch.save(model.state_dict(), "end.pt")
dist.destroy_process_group()
