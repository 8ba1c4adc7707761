"""What first.py does, as a Ray Train program: `ray_first.py WORKERS`."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def first():
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == dist.get_world_size()


workers = int(sys.argv[1])
TorchTrainer(
    first,
    torch_config=TorchConfig(backend="gloo"),
    # A fraction of a core each: four workers have to fit on any machine.
    scaling_config=ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 0.1}),
    run_config=RunConfig(storage_path=str(Path.cwd())),
).fit()
