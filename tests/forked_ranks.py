"""Ranks with a process group, forked from the test: none has to import torch again."""

import os
import pickle
import select
import signal
import time
import traceback
import warnings

import torch
import torch.distributed as dist


def run_ranks(count, folder, task, *, within_s=120):
    """Call `task(rank)` on each rank of a gloo group; return what they returned, by rank."""
    store = folder / f".store-{time.monotonic_ns()}"
    pipes, pids = [], []
    for rank in range(count):
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read_end)
            _run_rank(rank, count, store, task, write_end)
        os.close(write_end)
        pipes.append(read_end)
        pids.append(pid)
    try:
        found = [_read(pipe, time.monotonic() + within_s) for pipe in pipes]
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for pipe in pipes:
            os.close(pipe)
    failed = [f"rank {rank}: {text}" for rank, (well, text) in enumerate(found) if not well]
    assert not failed, "\n".join(failed)
    return [value for _, value in found]


def _read(pipe, deadline):
    content = b""
    while True:
        if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return False, "takes too long"
        if not (piece := os.read(pipe, 1 << 16)):
            return pickle.loads(content) if content else (False, "ended")
        content += piece


def _run_rank(rank, count, store, task, pipe):
    answer = (False, "ended")
    try:
        torch.set_num_threads(1)
        warnings.simplefilter("default")
        dist.init_process_group(
            "gloo", store=dist.FileStore(str(store), count), rank=rank, world_size=count
        )
        answer = (True, task(rank))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:  # noqa: BLE001  told to the test
        answer = (False, traceback.format_exc())
    finally:
        with os.fdopen(pipe, "wb") as file:
            file.write(pickle.dumps(answer))
        os._exit(0)
