import torch
import torch.distributed as dist

dist.init_process_group("nccl")  # expect: E623
model = torch.nn.Linear(1, 1).cuda()  # expect: E621
