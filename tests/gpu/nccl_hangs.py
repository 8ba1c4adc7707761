"""Hangs of ranks with NCCL, as data: what the ranks do, and what the verdict has to say of it.

`test_hangs.py` tries each of them; `benchmarks/hangs.py` tries them several times and counts.
Without a GPU the ranks use gloo, to try the scripts themselves.
"""

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass

TIMEOUT_S = 8
PREAMBLE = """\
import ctypes, os, time
from pathlib import Path
import torch
import torch.distributed as dist

gpu = torch.cuda.is_available()
device = "cuda:0" if gpu else "cpu"
if gpu: torch.cuda.set_device(0)
dist.init_process_group("nccl" if gpu else "gloo")
rank, last = dist.get_rank(), dist.get_world_size() - 1
finish = torch.cuda.synchronize if gpu else lambda: None
x = torch.ones(1024, device=device)


def reduce(tensor=x, **options):
    dist.all_reduce(tensor, **options)
    finish()


def pause():
    "Do nothing for ever; this is where the hang begins."
    Path("began").write_text(str(time.time()))
    while True: time.sleep(1)


for _ in range(3): reduce()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """One way to hang."""

    name: str
    script: str
    """Comes after PREAMBLE."""
    says: str
    rank: int = 1
    """The cause."""
    ranks: int = 2


HANGS = [
    Hang(
        name="a rank sleeps",
        script="if rank == 1: pause()\nreduce()",
        says="has not called all_reduce no. 4 of the default group, in which rank 0 waits",
    ),
    Hang(
        name="a rank computes for ever",
        script="Path('began').write_text(str(time.time()))\nwhile rank == 1: pass\nreduce()",
        says="has not called all_reduce no. 4",
    ),
    Hang(
        name="a rank computes on its GPU for ever",
        script="""\
Path("began").write_text(str(time.time()))
while rank == 1:
    torch.ones(1000, 1000, device=device).sum().item()
reduce()
""",
        says="has not called all_reduce no. 4",
    ),
    Hang(
        name="a rank is in another collective",
        script="""\
Path("began").write_text(str(time.time()))
dist.broadcast(x, 0) if rank == 1 else dist.all_reduce(x)
finish()
""",
        says="calls broadcast as no. 4 of the default group, where rank 0 calls all_reduce",
    ),
    Hang(
        name="a rank has another shape",
        script="""\
Path("began").write_text(str(time.time()))
reduce(torch.ones(1 << 22 if rank == 1 else 64, device=device))
""",
        says="calls all_reduce no. 4 of the default group with 4194304 float",
    ),
    Hang(
        name="groups are called in another order",
        script="""\
groups = [dist.new_group(), dist.new_group()]
for group in groups: reduce(group=group)
Path("began").write_text(str(time.time()))
for group in reversed(groups) if rank == 1 else groups: reduce(group=group)
""",
        says="the order differs",
    ),
    Hang(
        name="a rank holds the interpreter's lock",
        script="""\
if rank == 1:
    Path("began").write_text(str(time.time()))
    ctypes.PyDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)
reduce()
""",
        says="but NCCL in its process does: a thread may hold the interpreter lock",
    ),
    Hang(
        name="a rank was stopped",
        script="""\
if rank == 1:
    Path("began").write_text(str(time.time()))
    os.kill(os.getpid(), 19)
reduce()
""",
        says="suspended (SIGSTOP)",
    ),
    Hang(
        name="a rank has exited",
        script="""\
if rank == 1:
    Path("began").write_text(str(time.time()))
    os._exit(0)
reduce()
""",
        says="has exited; rank 0 waits in all_reduce no. 4 of the default group",
    ),
    Hang(
        name="a rank has called fewer in advance",
        script="""\
for _ in range(2 if rank == 1 else 5): dist.all_reduce(x)
if rank == 1: pause()
finish()
""",
        says="has not called all_reduce no. 6",
    ),
    Hang(
        name="a rank does not come to a barrier",
        script="if rank == 1: pause()\ndist.barrier()",
        says="barrier no. 4 of the default group, in which rank 0 waits",
    ),
    Hang(
        name="a rank's loader stands still under DDP",
        script="""\
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).to(device))
for step in range(1000):
    if rank == 1 and step == 20: pause()
    model(torch.ones(8, 64, device=device)).sum().backward()
    finish()
""",
        says="has not called all_reduce no. ",
    ),
    Hang(
        name="a rank has one batch less, then validates",
        script="""\
for _ in range(9 if rank == 1 else 10): reduce()
Path("began").write_text(str(time.time()))
dist.barrier()
if rank == 1: pause()  # NCCL pairs its barrier with the all_reduce of the other
""",
        says="barrier as no. 13 of the default group, where rank 0 calls all_reduce",
    ),
    Hang(
        name="a rank of a smaller group sleeps",
        ranks=3,
        rank=2,
        script="""\
pair = dist.new_group([1, 2], group_desc="pair")
if rank: reduce(group=pair)
if rank == 2: pause()
if rank == 1: reduce(group=pair)
reduce()
""",
        says="has not called all_reduce no. 2 of group 1 (pair",
    ),
    Hang(
        name="a rank does not send",
        script="if rank == 1: pause()\ndist.recv(x, 1)\nfinish()",
        says="the others in the collective recv",
    ),
]


def share_gpu():
    """Return the variables with which ranks share one GPU."""
    preload = os.environ.get("ECHELON_TEST_NCCL", "")
    own = {"LD_PRELOAD": preload} if preload else {}
    return {**os.environ, "NCCL_MULTI_RANK_GPU_ENABLE": "1", **own}


def _free_port():
    """Return a port for NCCL's own answers: of runs side by side, only one gets the usual one."""
    with socket.create_server(("localhost", 0)) as server:
        return server.getsockname()[1]


def try_hang(hang, folder):
    """Return what is wrong with the verdict, and the seconds from the hang to its detection."""
    (folder / "train.py").write_text(PREAMBLE + hang.script)
    options = [f"--procs={hang.ranks}", f"--hang-timeout={TIMEOUT_S}", "--on-hang=stop"]
    done = subprocess.run(
        [sys.executable, "-m", "echelon", "run", *options, "--restarts=0", "train.py"],
        cwd=folder,
        env={**share_gpu(), "NCCL_RAS_ADDR": f"localhost:{_free_port()}"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    (run,) = (folder / "runs").glob("train-*")
    lines = [line for log in (run / "events").iterdir() for line in log.read_text().splitlines()]
    found = [event for event in map(json.loads, lines) if event["kind"] == "hang"]
    if not found:
        return [f"not noticed: {done.stdout[-500:]}{done.stderr[-500:]}"], None
    failure = json.loads((run / "verdict.json").read_text())["failure"]
    wrong = []
    if failure["rank"] != hang.rank:
        wrong.append(f"rank {failure['rank']} is blamed: {failure['message']}")
    if hang.says not in failure["message"]:
        wrong.append(f"it says: {failure['message']}")
    delay_s = found[0]["time"] - float((folder / "began").read_text())
    return wrong, delay_s
