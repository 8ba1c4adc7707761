import os

import torch.multiprocessing as mp


def work(rank):
    print("working", rank)


if __name__ == "__main__":
    if "LOCAL_RANK" in os.environ:
        work(int(os.environ["LOCAL_RANK"]))
    else:
        mp.spawn(work, nprocs=2)
