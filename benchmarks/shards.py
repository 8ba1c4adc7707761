"""Cost of a checkpoint of an FSDP2 model on several ranks, compared with torch's own.

    .venv/bin/python benchmarks/shards.py [--saves N] [--layers N] [--ranks N]
    PYTHONPATH=src python benchmarks/shards.py --gpu

Saves the state of a model and its Adam (1 GB with the default of 20 layers) from 4 ranks with gloo,
in turns with Echelon's Checkpointer and torch.distributed.checkpoint's async_save: how long the
loop is blocked, how long until the checkpoint is durable, and how long a load takes. Then counts
which bytes other numbers of ranks read, and times what one of 4,096 simulated ranks does to plan a
save and a load. Writes benchmarks/results/shards.json.

With --gpu, 2 and 4 ranks with NCCL share one GPU and save 2 GB; a stall lasts until the GPU can
change the weights again. See benchmarks/hangs.py about NCCL. Writes shards-gpu.json.
"""

import argparse
import os
import time
import warnings
from multiprocessing import get_context
from pathlib import Path

import measuring
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from measuring import ratio, summary, workshop
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import echelon
from echelon.train.checkpoint_files import Part
from echelon.train.checkpoints.layout import Layout
from echelon.train.checkpoints.manifest import Manifest, checkpoint_path, part_path
from echelon.train.checkpoints.reading import Reader
from echelon.train.sharding import find_targets, plan_save
from echelon.train.tensor_block import TensorBlock

WIDTH = 2048
OURS, DCP = "Echelon's Checkpointer", "torch.distributed.checkpoint, async_save"
COPY = "a copy in memory, for comparison"
SIMULATED = 4096
TENSORS = 3000
"""Sharded tensors of a simulated state: 1,000 parameters with Adam."""


# --- real ranks -----------------------------------------------------------------------------------


def make(layers, mesh):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers))).to(mesh.device_type)
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, WIDTH, device=mesh.device_type)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


class Ours:
    def __init__(self, folder, model, optimizer):
        self._checkpointer = echelon.Checkpointer(folder, keep=100)
        self._model, self._optimizer, self._step = model, optimizer, 0
        self._checkpointer.reserve(self.state())
        self._checkpointer.wait()

    def state(self):
        return {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}

    def save(self, state):
        self._step += 1
        self._checkpointer.save(state, step=self._step)

    def wait(self):
        self._checkpointer.wait()

    def load(self):
        like = {"model": self._model, "optimizer": self._optimizer}
        found = self._checkpointer.load(like=like)
        self._model.load_state_dict(found.state["model"])
        self._optimizer.load_state_dict(found.state["optimizer"])


class Copy:
    """Copies the same tensors into memory that is kept, and does nothing else."""

    def __init__(self, _folder, model, optimizer):
        self._model, self._optimizer = model, optimizer
        self._kept = [torch.zeros_like(one) for one in self.state()]

    def state(self):
        values = list(self._model.parameters())
        for entry in self._optimizer.state.values():
            values += entry.values()
        return [one.detach().to_local() if isinstance(one, DTensor) else one for one in values]

    def save(self, state):
        torch._foreach_copy_(self._kept, state)

    def wait(self):
        pass

    load = wait


class Theirs:
    def __init__(self, folder, model, optimizer):
        self._folder, self._model, self._optimizer = folder, model, optimizer
        self._step = 0

    def state(self):
        model, optimizer = get_state_dict(self._model, self._optimizer)
        return {"model": model, "optimizer": optimizer}

    def save(self, state):
        self._step += 1
        self._future = dcp.async_save(state, checkpoint_id=self._folder / str(self._step))

    def wait(self):
        self._future.result()

    def load(self):
        state = self.state()
        dcp.load(state, checkpoint_id=self._folder / str(self._step))
        set_state_dict(
            self._model,
            self._optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


def run_rank(rank, options, folder, answers):
    count, layers, saves = options.ranks, options.layers, options.saves
    warnings.simplefilter("ignore")
    torch.set_num_threads(max(1, os.cpu_count() // count))
    store = dist.FileStore(str(folder / "store"), count)
    if options.gpu:
        torch.cuda.set_device(0)
    backend = "cpu:gloo,cuda:nccl" if options.gpu else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=count)
    model, optimizer = make(layers, init_device_mesh("cuda" if options.gpu else "cpu", (count,)))
    own = next(model.parameters()).to_local()
    kinds = {OURS: Ours, DCP: Theirs, COPY: Copy}
    ways = {
        name: make_way(folder / f"way-{number}", model, optimizer)
        for number, (name, make_way) in enumerate(kinds.items())
    }
    found = {name: {"stall": [], "durable": [], "load": []} for name in ways}
    for _ in range(saves + 1):
        for name, way in ways.items():
            state = way.state()
            dist.barrier()
            began = time.perf_counter()
            way.save(state)
            if options.gpu:
                own.data.mul_(1)
                torch.cuda.current_stream().synchronize()
            found[name]["stall"].append(time.perf_counter() - began)
            way.wait()
            dist.barrier()
            found[name]["durable"].append(time.perf_counter() - began)
    for _ in range(saves):
        for name, way in ways.items():
            dist.barrier()
            began = time.perf_counter()
            way.load()
            dist.barrier()
            found[name]["load"].append(time.perf_counter() - began)
    answers.put((rank, found))
    dist.barrier()
    dist.destroy_process_group()


def measure_ranks(options, folder):
    context = get_context("spawn")
    answers = context.SimpleQueue()
    ranks = [
        context.Process(target=run_rank, args=(rank, options, folder, answers))
        for rank in range(options.ranks)
    ]
    for rank in ranks:
        rank.start()
    found = dict(answers.get() for _ in ranks)
    for rank in ranks:
        rank.join()
    rows = {}
    for name in (OURS, DCP):
        # The loop waits for its slowest rank.
        slowest = {
            figure: [
                max(times)
                for times in zip(*(one[name][figure] for one in found.values()), strict=True)
            ]
            for figure in ("stall", "durable", "load")
        }
        first, *stalls = (1e3 * one for one in slowest["stall"])
        rows[f"stall, {name}"] = {**summary(stalls, "ms", 1), "first_ms": round(first, 1)}
        rows[f"durable, {name}"] = summary(slowest["durable"][1:])
        rows[f"load, {name}"] = summary(slowest["load"])
    copies = [
        max(times) for times in zip(*(one[COPY]["stall"] for one in found.values()), strict=True)
    ]
    rows[f"stall, {COPY}"] = summary([1e3 * one for one in copies[1:]], "ms", 1)
    return rows


def measure_bytes(path):
    """Return how many bytes the ranks of other meshes read, in terms of what they need."""
    rows = {}
    for count in (1, 2, 3, 8):
        layout = Layout((count,), tuple(range(count)), ("S(0)",))
        read = needed = 0
        for rank in range(count):
            reader = Reader(path)
            wanted = {}
            for name, laid in reader.manifest.tensors.items():
                kind = laid.type
                box = layout.find_piece(kind.shape, rank)[1] if kind.shape else None
                if box is not None:
                    size = 4 * box.size
                    wanted[name] = box, memoryview(bytearray(size))
                    needed += size
            reader.read(wanted)
            read += reader.bytes_read
        rows[f"bytes read by {count} of those needed"] = {"ratio": round(read / needed, 3)}
    return rows


# --- simulated ranks ------------------------------------------------------------------------------


def plan(rank, shape, placements):
    """Return how long a simulated rank plans a save, completes it, and plans a load."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=SIMULATED)
    mesh = init_device_mesh("cpu", shape)
    rows = 8192
    local = torch.empty(rows // shape[-1], 4)
    size, stride = torch.Size((rows, 4)), (4, 1)
    state = {
        f"state/{number}": DTensor.from_local(
            local, mesh, placements, run_check=False, shape=size, stride=stride
        )
        for number in range(TENSORS)
    }
    state |= {f"state/step/{number}": torch.tensor(1.0) for number in range(TENSORS // 3)}
    began = time.perf_counter()
    made = plan_save(state, rank=rank, world_size=SIMULATED)
    saving_s = time.perf_counter() - began
    manifest = Manifest(step=1, world_size=SIMULATED, metrics={}, state={}, tensors=made.tensors)
    tree = {name.removeprefix("state/"): tensor for name, tensor in state.items()}
    began = time.perf_counter()
    targets = find_targets(Path(), manifest, tree, rank=rank)
    for name, laid in manifest.tensors.items():
        list(laid.layout.find_holders(laid.type.shape, targets[name].box, copy=laid.copy))
    loading_s = time.perf_counter() - began
    dist.destroy_process_group()
    return saving_s, loading_s, manifest


def measure_planning(folder):
    rows = {}
    ways = {"FSDP": ((SIMULATED,), [Shard(0)]), "HSDP": ((8, 512), [Replicate(), Shard(0)])}
    for name, (shape, placements) in ways.items():
        ranks = (0, 1, 2047, 4095)
        plans = [plan(rank, shape, placements) for rank in ranks]
        rows[f"plan a save, {name}"] = summary([one[0] for one in plans])
        rows[f"plan a load, {name}"] = summary([one[1] for one in plans])
    manifest = plans[0][2]
    temporary = folder / "complete"
    temporary.mkdir()
    for rank in range(SIMULATED):
        part_path(temporary, rank).touch()
        part_path(temporary, rank).with_suffix(".json").touch()
    part = Part(
        folder=folder,
        temporary=temporary,
        rank=0,
        block=TensorBlock({}),
        offsets={},
        own=None,
        manifest=manifest,
    )
    began = time.perf_counter()
    part.complete()
    rows["complete a checkpoint whose parts are there, rank 0"] = summary(
        [time.perf_counter() - began]
    )
    return rows


def judge(rows):
    """Return the ratios to torch's figures, and the goals."""
    figures = {"stall": "median_ms", "durable": "median_s", "load": "median_s"}
    ratios = {
        name: ratio(rows[f"{name}, {OURS}"], rows[f"{name}, {DCP}"], figure)
        for name, figure in figures.items()
    }
    return ratios, {
        "stall, of torch's": (ratios["stall"], 0.2),
        "time to durable, of torch's": (ratios["durable"], 0.5),
        "time to load, of torch's": (ratios["load"], 0.5),
    }


def measure_gpu(options):
    """Measure 2 and 4 ranks that share a GPU."""
    os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    if preload := os.environ.get("ECHELON_TEST_NCCL"):
        os.environ["LD_PRELOAD"] = preload
    rows, goals = {}, {}
    for options.ranks in (2, 4):
        with workshop() as folder:
            found = measure_ranks(options, folder)
        rows |= {f"{options.ranks} ranks: {what}": figures for what, figures in found.items()}
        goals |= {f"{options.ranks} ranks: {what}": one for what, one in judge(found)[1].items()}
    measuring.write_results(
        "shards-gpu",
        rows,
        goals,
        gpu=f"{torch.cuda.get_device_name()}, shared by the ranks",
        state={"mb": round(options.layers * (WIDTH + 1) * WIDTH * 12 / 1e6)},
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--gpu", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    options.layers = options.layers or (40 if options.gpu else 20)
    if options.gpu:
        measure_gpu(options)
        return
    with workshop() as folder:
        rows = measure_ranks(options, folder)
        rows |= measure_bytes(checkpoint_path(folder / "way-0", options.saves + 1))
        rows |= measure_planning(folder)
    ratios, goals = judge(rows)
    planning = [rows[name]["max_s"] for name in rows if name.startswith(("plan", "complete"))]
    reading = [rows[f"bytes read by {count} of those needed"]["ratio"] for count in (2, 3, 8)]
    goals |= {
        "bytes read on other numbers of ranks, of those needed": (max(reading), 1.1),
        "planning at 4,096 ranks, s": (max(planning), 1.0),
    }
    measuring.write_results(
        "shards",
        rows,
        goals,
        state={
            "mb": round(options.layers * (WIDTH + 1) * WIDTH * 12 / 1e6),
            "ranks": options.ranks,
        },
        ratio_to=ratios,
        load_average=os.getloadavg(),
    )


if __name__ == "__main__":
    main()
