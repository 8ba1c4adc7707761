import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, models


def validate(model, loader):
    right = 0
    for images, labels in loader:
        right += (model(images).argmax(1) == labels).sum().item()
    return right / len(loader.dataset)  # expect: E606


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", rank=int(os.environ["LOCAL_RANK"]))  # expect: E604
    data = datasets.FakeData()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, shuffle=True, sampler=sampler)  # expect: E601
    model = DDP(models.resnet18().cuda())
    for epoch in range(3):
        sampler.set_epoch(epoch)
        if dist.get_rank() == 0:
            print(validate(model, loader))  # expect: E615
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
