import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, models, transforms


def save(model, optimizer, epoch, path):
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(state, f"{path}.tmp")
    os.replace(f"{path}.tmp", path)


def evaluate(model, loader, device):
    model.eval()
    counts = torch.zeros(2, device=device)
    with torch.no_grad():
        for images, labels in loader:
            guesses = model(images.to(device)).argmax(1)
            counts += torch.tensor([(guesses == labels.to(device)).sum(), len(labels)], device=device)
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--num-workers", type=int, default=2)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    if rank == 0:
        datasets.CIFAR10("data", download=True)
    dist.barrier()
    data = datasets.CIFAR10("data", transform=transforms.ToTensor())
    test = datasets.CIFAR10("data", train=False, transform=transforms.ToTensor())
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=64, sampler=sampler, num_workers=4)
    test_loader = DataLoader(test, batch_size=64, sampler=DistributedSampler(test, shuffle=False))
    model = DDP(models.resnet18(num_classes=10).cuda(), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path, start = Path("last.pt"), 0
    if path.exists():
        state = torch.load(path, map_location=f"cuda:{local_rank}")
        model.module.load_state_dict(state["model"])
        start = state["epoch"] + 1
    for epoch in range(start, args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        accuracy = evaluate(model, test_loader, local_rank)
        if rank == 0:
            print(f"epoch {epoch}: {accuracy:.2%}")
            save(model, optimizer, epoch, path)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
