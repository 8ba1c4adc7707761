import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, models

local_rank = int(os.environ["LOCAL_RANK"])
dist.init_process_group(backend="nccl")
torch.cuda.set_device(local_rank)
data = datasets.ImageFolder("train")
sampler = DistributedSampler(data, num_replicas=dist.get_world_size(), rank=local_rank, shuffle=False)
loader = DataLoader(data, batch_size=64, sampler=sampler, shuffle=False)
model = DDP(models.resnet50().cuda(), device_ids=[local_rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for epoch in range(10):
    for images, labels in loader:
        torch.nn.functional.cross_entropy(model(images.cuda()), labels.cuda()).backward()
        optimizer.step()
    if dist.get_rank() == 0 and epoch % 10 == 0:
        torch.save(model.state_dict(), f"epoch-{epoch}.pt")
dist.destroy_process_group()
