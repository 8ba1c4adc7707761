"""Step time and memory of a sharded GPT: a plain loop with FSDP2, and Echelon's Trainer.

    PYTHONPATH=src python benchmarks/shardsteps.py

124 million parameters, sequences of 1,024 tokens, batches of 8 per rank, bf16 with weights in fp32,
AdamW, layers compiled one by one. Two ranks with NCCL share one GPU: it compares the loops, and
says nothing about ranks with a GPU each. Then the plain loop goes on while the Checkpointer writes
a checkpoint in the background. See benchmarks/hangs.py about NCCL. Writes
benchmarks/results/shardsteps.json.
"""

import gc
import os
import statistics
import time
import warnings
from multiprocessing import get_context
from pathlib import Path

import gpt
import measuring
import torch
import torch.distributed as dist
from measuring import workshop
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import echelon

RANKS, BATCH, STEPS, TURNS = 2, 8, 30, 3
RAW, OURS = "FSDP2 in a plain loop", "Echelon's Trainer"
QUIET, SAVING = "the plain loop, nothing is saved", "the plain loop, a checkpoint is written"


class Times:
    """Times of the steps, from the device's end of one to that of the next."""

    def __init__(self):
        self.ends_s = []

    def end(self):
        torch.cuda.synchronize()
        self.ends_s.append(time.perf_counter())

    def step_ended(self, *_):
        self.end()

    def median_ms(self):
        """Return the median without the first ten, which compile."""
        spent = [b - a for a, b in zip(self.ends_s[10:], self.ends_s[11:], strict=False)]
        return 1e3 * statistics.median(spent)


def make_raw(mesh):
    model = gpt.make_model().to(gpt.GPU)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.blocks:
        layer.compile()
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model, gpt.make_optimizer(model.parameters())


def make_step(model, optimizer, data):
    """Return a function that makes the step of a number."""
    inputs, targets = (one.to(gpt.GPU) for one in data.tensors)
    first = dist.get_rank() * BATCH

    def step(number):
        begin = first + number * BATCH * RANKS
        optimizer.zero_grad()
        rows = slice(begin, begin + BATCH)
        # The loss in fp32, as under autocast.
        gpt.judge(model(inputs[rows]).float(), targets[rows]).backward()
        optimizer.step()

    return step


def train_raw(mesh, data):
    step, times = make_step(*make_raw(mesh), data), Times()
    for number in range(STEPS):
        step(number)
        times.end()
    return times.median_ms()


def train_echelon(_mesh, data):
    times = Times()
    echelon.Trainer(
        echelon.Group(
            rank=dist.get_rank(), world_size=RANKS, device=gpt.GPU, backend="cpu:gloo,cuda:nccl"
        ),
        gpt.make_model(),
        loss=gpt.judge,
        optimizer=gpt.make_optimizer,
        global_batch=BATCH * RANKS,
        epochs=1,
        shard="fsdp",
        compiled=True,
        log_every=STEPS,
        quiet=True,
        callbacks=[times],
    ).fit(data)
    return times.median_ms()


def measure_saving(mesh, data, folder):
    """Return the medians of steps without and with a checkpoint being written."""
    model, optimizer = make_raw(mesh)
    step = make_step(model, optimizer, data)
    checkpointer = echelon.Checkpointer(folder / "saved", keep=1)
    for number in range(10):
        step(number)
    found = {QUIET: [], SAVING: []}
    for turn in range(TURNS):
        for what, times in found.items():
            if what == SAVING:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                checkpointer.save(state, step=turn + 1)
            torch.cuda.synchronize()
            for number in range(10):
                began_s = time.perf_counter()
                step(number)
                torch.cuda.synchronize()
                times.append(1e3 * (time.perf_counter() - began_s))
            checkpointer.wait()
            dist.barrier()
    return {what: statistics.median(times) for what, times in found.items()}


def run_rank(rank, folder, answers):
    warnings.simplefilter("ignore")
    torch.cuda.set_device(gpt.GPU)
    store = dist.FileStore(str(folder / "store"), RANKS)
    dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cuda", (RANKS,))
    gpt.BATCH, gpt.STEPS = BATCH * RANKS, STEPS
    data, found = gpt.make_data(), []
    for _ in range(TURNS):
        for name, train in ((RAW, train_raw), (OURS, train_echelon)):
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            median_ms = train(mesh, data)
            found.append((name, median_ms, torch.cuda.max_memory_allocated() / 2**20))
            if rank == 0:
                print(*found[-1], flush=True)
    answers.put((rank, found, measure_saving(mesh, data, folder)))
    dist.barrier()
    dist.destroy_process_group()


def main():
    os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    if preload := os.environ.get("ECHELON_TEST_NCCL"):
        os.environ["LD_PRELOAD"] = preload
    context = get_context("spawn")
    answers = context.SimpleQueue()
    with workshop() as folder:
        ranks = [
            context.Process(target=run_rank, args=(rank, folder, answers)) for rank in range(RANKS)
        ]
        for rank in ranks:
            rank.start()
        answered = [answers.get() for _ in ranks]
        for rank in ranks:
            rank.join()
    rows = {}
    for name in (RAW, OURS):
        turns = [one for _, found, _ in answered for one in found if one[0] == name]
        rows[name] = {
            "median_step_ms": round(statistics.median(one[1] for one in turns), 2),
            "peak_memory_mib": round(max(one[2] for one in turns)),
        }
    for name in (QUIET, SAVING):
        slowest = max(saved[name] for *_, saved in answered)
        rows[name] = {"median_step_ms": round(slowest, 2)}
    pairs = {
        "step time, of the plain loop's": (OURS, RAW, "median_step_ms", 1.02),
        "memory, of the plain loop's": (OURS, RAW, "peak_memory_mib", 1.02),
        "a step while a checkpoint is written, of one without": (
            *(SAVING, QUIET, "median_step_ms"),
            1.01,
        ),
    }
    goals = {
        what: (round(rows[a][figure] / rows[b][figure], 3), goal)
        for what, (a, b, figure, goal) in pairs.items()
    }
    more = {"gpu": f"{torch.cuda.get_device_name()}, shared by the ranks", "ranks": RANKS}
    measuring.write_results(Path(__file__).stem, rows, goals, **more)


if __name__ == "__main__":
    main()
