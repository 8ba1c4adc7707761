import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
node = os.environ["GROUP_RANK"]
if int(os.environ["LOCAL_RANK"]) == 0:
    torch.save({"node": node}, f"state-of-node-{node}.pt")
torch.save({}, f"own-{dist.get_rank()}.pt")
dist.destroy_process_group()
