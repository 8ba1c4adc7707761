import os

import torch
import torch.distributed as dist

local_rank = int(os.environ["SLURM_LOCALID"])
torch.cuda.set_device(local_rank)  # expect: E206
dist.init_process_group("nccl")
dist.destroy_process_group()
