import torch
import torch.multiprocessing as mp


def work(rank):
    torch.cuda.set_device(rank)
    print("working", rank)


if __name__ == "__main__":
    mp.spawn(work, nprocs=2)  # expect: E202
