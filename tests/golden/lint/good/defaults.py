import io
import os

import torch
import torch.distributed as dist

if "MASTER_PORT" not in os.environ:
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "29500"


def broadcast_state(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer)


def main():
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
    dist.init_process_group(backend)
    print(broadcast_state({"rank": dist.get_rank()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
