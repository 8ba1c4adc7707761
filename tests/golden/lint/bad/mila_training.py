import os

import torch
import torch.distributed as dist


class Trainer:
    def initialize(self):
        self.local_rank = int(os.environ.get("LOCAL_RANK", -1))
        dist.init_process_group(backend="gloo|nccl")

    def train(self, model):
        return torch.nn.parallel.DistributedDataParallel(model, device_ids=[self.local_rank])


def main():
    trainer = Trainer()
    tainer.initialize()  # expect: E626
    trainer.train(torch.nn.Linear(1, 1))


main()
