"""Training speed of several ranks that share one GPU: DDP, Accelerate, Lightning and Echelon.

    PYTHONPATH=src python benchmarks/gpuranks.py

Peers are started by torchrun, Echelon by `echelon run`; each rank has batches of 64. It compares
the loops, and says nothing about ranks with a GPU each. NCCL lets ranks share a GPU since 2.30;
where torch has an older one, ECHELON_TEST_NCCL names a libnccl.so.2 to preload. Writes
benchmarks/results/gpuranks.json.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import measuring
import torch
import torch.distributed as dist

import echelon
import gpu

PEERS = {
    "raw DDP": gpu.train_raw,
    "Accelerate": gpu.train_accelerate,
    "Lightning": gpu.train_lightning,
}
OURS = {
    "Echelon, eager": {"capture": "never"},
    "Echelon": {"compiled": False},
}
MARK = "measured: "


def make_work(name, folder):
    work = gpu.mnist() if name == "mnist" else gpu.resnet(name, 64, Path(folder))
    work.epochs = 2
    return work


def be_rank(way, name, folder):
    """Train on this rank; rank 0 prints what was measured."""
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    work = make_work(name, folder)
    began_s = time.perf_counter()
    if way in OURS:
        with echelon.init() as world:
            work.batch *= world.world_size
            found = gpu.train_echelon(work, world=world, **OURS[way])
        is_main = world.is_main
    else:
        os.environ["LOCAL_RANK"] = "0"  # peers choose the GPU of that number
        torch.cuda.set_device(gpu.GPU)
        dist.init_process_group("nccl")
        nodes = {"nodes": dist.get_world_size()} if way == "Lightning" else {}
        found = PEERS[way](work, **nodes)
        is_main = dist.get_rank() == 0
    if is_main:
        epoch_s, (loss, accuracy) = found
        measured = {
            "samples_per_s": round(len(work.data) / epoch_s),
            "loss": loss,
            "accuracy": accuracy,
            "whole_s": round(time.perf_counter() - began_s, 1),
        }
        print(f"{MARK}{json.dumps(measured)}", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


def start(way, name, ranks, folder):
    """Return what one way of training has measured; None if it failed."""
    launcher = (
        ["echelon", "run", f"--procs={ranks}", "--restarts=0"]
        if way in OURS
        else ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    )
    preload = os.environ.get("ECHELON_TEST_NCCL", "")
    shared = {"ECHELON_SHARE_GPU": "1", "NCCL_MULTI_RANK_GPU_ENABLE": "1", "LD_PRELOAD": preload}
    argv = [sys.executable, "-m", *launcher, __file__, "--way", way, "--name", name, "--folder"]
    with tempfile.TemporaryDirectory() as place:
        done = subprocess.run(
            [*argv, str(folder)],
            cwd=place,
            env={**os.environ, **shared},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    for line in done.stdout.splitlines():
        if MARK in line:
            return json.loads(line.partition(MARK)[2])
    print(f"{name} on {ranks} ranks: {way}: {done.stdout[-600:]}{done.stderr[-600:]}", flush=True)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.way:
        be_rank(asked.way, asked.name, asked.folder)
        return
    rows, slower = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        gpu.make_pictures(Path(folder))
        for ranks in (2, 4):
            for name in ("mnist", "resnet18"):
                for way in (*PEERS, *OURS):
                    if found := start(way, name, ranks, folder):
                        rows[f"{name} on {ranks} ranks, {way}"] = found
                        print(f"{name} on {ranks} ranks, {way}: {found}", flush=True)
                speeds = [
                    rows.get(f"{name} on {ranks} ranks, {way}", {}).get("samples_per_s")
                    for way in ("raw DDP", "Echelon")
                ]
                ratio = round(speeds[0] / speeds[1], 3) if all(speeds) else None
                slower[f"{name} on {ranks} ranks, raw DDP / Echelon"] = (ratio, 1.0)
                more = {"gpu": f"{torch.cuda.get_device_name()}, shared by the ranks"}
                measuring.write_results(Path(__file__).stem, rows, slower, **more)


if __name__ == "__main__":
    main()
