import argparse
import os

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--dist-file")
parser.add_argument("--dist-backend")
args = parser.parse_args()
url = "file://{}.{}".format(os.path.realpath(args.dist_file), os.environ["SLURM_JOBID"])
torch.cuda.set_device(int(os.environ["SLURM_LOCALID"]))
dist.init_process_group(args.dist_backend, init_method=url, rank=int(os.environ["SLURM_PROCID"]), world_size=4)  # expect: E311
torch.save({}, "checkpoint.pth.tar")  # expect: E611
dist.destroy_process_group()
