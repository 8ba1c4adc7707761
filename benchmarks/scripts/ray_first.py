"""Equivalent of first.py as a Ray Train program: `ray_first.py WORKERS [MARK]`.

The first worker writes the time of its all-reduce to a file if one is given.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def first(asked):
    total = torch.ones(1)
    dist.all_reduce(total)
    now_s = time.monotonic()
    assert total.item() == dist.get_world_size()
    if asked["mark"] and dist.get_rank() == 0:
        Path(asked["mark"]).write_text(f"{now_s}\n")


workers, mark = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
TorchTrainer(
    first,
    train_loop_config={"mark": mark},
    torch_config=TorchConfig(backend="gloo"),
    # A fraction of a core each, so that four workers fit on any machine.
    scaling_config=ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 0.1}),
    run_config=RunConfig(storage_path=str(Path.cwd())),
).fit()
