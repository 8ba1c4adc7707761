"""Join, all-reduce once, and leave; rank 0 writes the time to a file if one is given."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
now_s = time.monotonic()
assert total.item() == dist.get_world_size()
if len(sys.argv) > 1 and dist.get_rank() == 0:
    Path(sys.argv[1]).write_text(f"{now_s}\n")
dist.destroy_process_group()
