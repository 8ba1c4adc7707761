"""The training of the storm test in plain PyTorch: DDP, periodic torch.save, and resume.

    torchrun … soak_peer.py PACE SAVE_EVERY

It writes the same records as Echelon's side (tests/slurm/survivor.py): the place of each rank, and
the time of each step. It runs until it is killed.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH, SAMPLES = 12, 6000
SAVED = Path("checkpoint.pt")


def main():
    pace_s, save_every = float(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = 0
    if SAVED.exists():
        saved = torch.load(SAVED)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    draw = torch.Generator().manual_seed(5)
    x = torch.randn(SAMPLES, 8, generator=draw)
    y = torch.randint(3, (SAMPLES,), generator=draw)
    turn = _turn()
    where = {"turn": turn, "host": os.uname().nodename, "pid": os.getpid()}
    Path(f"where-{rank}").write_text(json.dumps(where))
    with Path(f"consumed-{rank}").open("a", buffering=1) as consumed:
        while True:
            step += 1
            print(json.dumps([time.time(), turn, step, []]), file=consumed)
            first = (step - 1) * BATCH % SAMPLES
            mine = slice(first + rank * BATCH // size, first + (rank + 1) * BATCH // size)
            optimizer.zero_grad()
            nn.functional.cross_entropy(wrapped(x[mine]), y[mine]).backward()
            optimizer.step()
            time.sleep(pace_s)
            if rank == 0 and step % save_every == 0:
                _save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step)


def _save(state, step):
    part = SAVED.with_suffix(".part")
    torch.save({**state, "step": step}, part)
    part.rename(SAVED)


def _turn():
    """Return a value unique to this set of ranks; torchrun does not count membership changes."""
    names = ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT")
    return ".".join(os.environ.get(name, "0") for name in names)


if __name__ == "__main__":
    main()
