"""A group's thread outlives the group: nobody waits for it."""

import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[4] / "src"
SCRIPT = """\
import gc, sys, torch
from pathlib import Path
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from echelon.launch.zygote.rank import keep_gloo_groups

def threads():
    gc.collect()
    names = (path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm"))
    return sum(name.startswith("pt_gloo") for name in names)

def train():
    store = dist.TCPStore("127.0.0.1", 0, 1, True)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    DistributedDataParallel(torch.nn.Linear(2, 2))(torch.ones(1, 2)).sum().backward()
    dist.destroy_process_group()

if "keep" in sys.argv:
    keep_gloo_groups()
train()
here = threads()
train()
print(threads() > here, dist.is_initialized())  # torch itself holds the last one
"""


@pytest.mark.parametrize("keep", [True, False])
def test_a_destroyed_group_is_waited_for_by_nobody(tmp_path, keep):
    (tmp_path / "train.py").write_text(SCRIPT)
    argv = [sys.executable, "train.py", *["keep"] * keep]
    shown = subprocess.run(
        argv,
        cwd=tmp_path,
        env={"PYTHONPATH": str(SOURCE), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert shown.stdout.split() == [str(keep), "False"], shown.stderr
