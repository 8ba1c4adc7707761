import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, models

dist.init_process_group("nccl", init_method="env://")
gpu = torch.cuda.current_device()
torch.cuda.set_device(gpu)
local_rank = int(os.environ.get("LOCAL_RANK", 0))
model = DistributedDataParallel(models.resnet18().cuda())
if os.path.exists("checkpoint.pt"):
    state = torch.load("checkpoint.pt")
    model.load_state_dict(state)
data = datasets.CIFAR10("data", download=True)  # expect: E605
sampler = DistributedSampler(data)
loader = DataLoader(data, sampler=sampler)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(50):
    sampler.set_epoch(epoch)
    for images, labels in loader:
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    if local_rank % torch.cuda.device_count() == 0:
        torch.save(model.state_dict(), "checkpoint.pt")  # expect: E612 E613
dist.destroy_process_group()
