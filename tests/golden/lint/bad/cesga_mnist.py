import argparse
import os

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, transforms


def train(args, model, device, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = functional.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print("epoch {} [{}/{}] loss {:.6f}".format(epoch, batch_idx * len(data), len(train_loader.dataset), loss.item()))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--log-interval", type=int, default=10)
    args = parser.parse_args()
    rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["WORLD_SIZE"])
    gpus = int(os.environ["SLURM_GPUS_ON_NODE"])
    dist.init_process_group("nccl", rank=rank, world_size=size)
    local_rank = rank - gpus * (rank // gpus)
    torch.cuda.set_device(local_rank)
    data = datasets.MNIST("data", transform=transforms.ToTensor())
    sampler = DistributedSampler(data, num_replicas=size, rank=rank)  # expect: E602
    loader = DataLoader(data, batch_size=64, sampler=sampler)
    model = DDP(nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).to(local_rank), device_ids=[local_rank])
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    for epoch in range(1, args.epochs + 1):
        train(args, model, local_rank, loader, optimizer, epoch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
