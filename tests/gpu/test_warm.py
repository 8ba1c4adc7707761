"""Warm ranks on a real GPU: CUDA works in a process forked from the zygote, and again after a
restart; a full GPU is called by its name.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

TRAIN = """\
import os, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
model = DDP(torch.nn.Linear(64, 64).cuda())
for step in range(20):
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    if step == 10 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and "--die" in sys.argv:
        os.kill(os.getpid(), 9)
if "--fill" in sys.argv:
    hoard = [torch.empty(2**33, dtype=torch.uint8, device="cuda") for _ in range(64)]
torch.cuda.synchronize()
print("trained on", torch.cuda.get_device_name(), "in generation",
      os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.destroy_process_group()
"""

LIBRARY = """\
import os
import torch
from torch import nn
import echelon

class Harm:
    def step_ended(self, trainer):
        if trainer.step == 13 and os.environ["ECHELON_GENERATION"] == "0":
            trainer.checkpointer.wait()
            os.kill(os.getpid(), 9)

with echelon.init() as world:
    trainer = echelon.Trainer(
        world, nn.Linear(64, 8), loss=nn.functional.cross_entropy, epochs=2, global_batch=16,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1), save_every=10, callbacks=[Harm()])
    data = torch.utils.data.TensorDataset(torch.rand(320, 64), torch.zeros(320, dtype=torch.long))
    assert trainer.fit(data).step == 40
    assert trainer.graphs
"""


SHARED = """\
import ctypes, os, time
active, flags, driver = ctypes.c_int(), ctypes.c_uint(), ctypes.CDLL("libcuda.so.1")
driver.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active))
import torch, torch.distributed as dist
if "--choose" in __import__("sys").argv:
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
generation = os.environ["TORCHELASTIC_RESTART_COUNT"]
print(f"generation {generation} began with {active.value} contexts")
torch.cuda.set_device(0)
dist.init_process_group("gloo")
total = torch.ones(1)
for step in range(20):
    assert (torch.ones(4, 4, device="cuda") @ torch.ones(4, 4, device="cuda")).sum() == 64
    dist.all_reduce(total)
    time.sleep(0.02)
if generation == "0" and dist.get_rank() == 1:
    os.kill(os.getpid(), 9)
dist.barrier()
"""


def echelon(folder, *arguments, script=TRAIN):
    (folder / "train.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "-m", "echelon", "run", "--procs=1", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    (run,) = (folder / "runs").iterdir()
    lines = (run / "events" / "controller-1.jsonl").read_text().splitlines()
    return done, run, [json.loads(line) for line in lines]


def test_a_warm_rank_trains_on_its_gpu(tmp_path):
    done, _, events = echelon(tmp_path, "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0: trained on" in done.stdout
    assert [event["warm"] for event in events if event["kind"] == "rank"] == [True]


def test_a_killed_rank_has_its_gpu_again(tmp_path):
    done, _, events = echelon(tmp_path, "--restarts=1", "train.py", "--die")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "in generation 1" in done.stdout
    assert [event["warm"] for event in events if event["kind"] == "rank"] == [True, True]


@pytest.mark.parametrize(("arguments", "contexts"), [((), 1), (("--choose",), 0)])
def test_contexts_of_ranks_that_restart_are_created_ahead(tmp_path, arguments, contexts):
    """Not if the script itself chooses its GPU by a variable, which a context would precede."""
    done, _, _ = echelon(
        tmp_path, "--procs=2", "--restarts=1", "train.py", *arguments, script=SHARED
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("generation 0 began with 0 contexts") == 2
    assert done.stdout.count(f"generation 1 began with {contexts} contexts") == 2


def test_captured_steps_are_counted_and_their_time_is_accounted_for(tmp_path):
    done, _, events = echelon(tmp_path, "train.py", script=LIBRARY)
    assert done.returncode == 0, done.stdout + done.stderr
    failed, well = (event for event in events if event["kind"] == "spent")
    assert (failed["again"], failed["first"], failed["last"]) == (True, 0, 13)
    assert (well["again"], well["first"], well["last"]) == (False, 10, 40)
    for spent in (failed, well):
        for phase in ("productive", "warm-up", "checkpoint stall"):
            assert spent["seconds"][phase] > 0, phase


def test_a_full_gpu_is_called_by_its_name(tmp_path):
    done, run, _ = echelon(tmp_path, "--restarts=0", "train.py", "--fill")
    assert done.returncode == 1
    failure = json.loads((run / "verdict.json").read_text())["failure"]
    assert (failure["cause"], failure["rank"]) == ("cuda out of memory", 0)
