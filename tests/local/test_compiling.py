"""Ranks that wait for one that compiles do not hang; real stacks show that it does."""

from local.liverun import live_run

SCRIPT = """\
import sys, time
from pathlib import Path
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path("torch/_dynamo").resolve()))
from convert_frame import compile_slowly

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    compile_slowly(12)
dist.all_reduce(torch.ones(1))
print("done", flush=True)
"""
COMPILER = """\
import time

def compile_slowly(seconds):
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s:
        time.sleep(0.05)
"""


def test_a_rank_that_compiles_for_longer_than_the_timeout_is_no_hang(tmp_path):
    folder = tmp_path / "torch" / "_dynamo"
    folder.mkdir(parents=True)
    (folder / "convert_frame.py").write_text(COMPILER)
    options = ["--nodes=1", "--procs=2", "--hang-timeout=3", "--on-hang=stop"]
    with live_run(tmp_path, SCRIPT, options) as run:
        assert run.wait() == 0, run.output
        assert run.output.count("done") == 2
        assert not run.events("hang")
