"""Cost of a checkpoint: how long `save` blocks the training loop, and how much writing slows it.

    .venv/bin/python benchmarks/checkpoint.py [--saves N]

Saves 300 MB of state in 800 tensors (a model and its Adam state) in one process. Compares Echelon's
Checkpointer with torch.save and torch.distributed.checkpoint's async_save on the same file system.
Then times a small single-threaded training loop with and without a checkpoint being written, which
needs one core for the loop and one for the writer. Writes benchmarks/results/checkpoint.json.
"""

import argparse
import ctypes
import os
import re
import shutil
import statistics
import threading
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import measuring
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from measuring import ratio, summary, workshop
from torch import nn
from torch.nn.functional import cross_entropy

import echelon

LAYERS, WIDTH = 100, 500
MB = 1e6
CONTROL = "nothing, for comparison"
OURS = "Echelon's Checkpointer"
OURS_ALONE = "Echelon's Checkpointer, one thread"
COPY = "a copy in memory, for comparison"
TORCH = "torch.save"
DCP = "torch.distributed.checkpoint, async_save"
STALL_MS = 30.0
SLOWDOWN_PERCENT = 1.0
CALM_STEPS = 300
"""Steps between two checkpoints of the training loop."""


def make_state():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(1, WIDTH)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def tensors_of(state):
    moments = [value for entry in state["optimizer"]["state"].values() for value in entry.values()]
    return [*state["model"].values(), *moments]


# --- ways to save -------------------------------------------------------------------------------


class Ours:
    def __init__(self, folder):
        self._checkpointer = echelon.Checkpointer(folder, keep=2)
        self._step = 0

    def reserve(self, state):
        self._checkpointer.reserve(state)
        self._checkpointer.wait()

    def save(self, state):
        self._step += 1
        self._checkpointer.save(state, step=self._step)

    def writing(self):
        return any(thread.name == "checkpoint" for thread in threading.enumerate())

    def wait(self):
        self._checkpointer.wait()

    def load(self):
        assert self._checkpointer.load().step == self._step


class OursAlone(Ours):
    """Copies with one thread, as on a node with one rank per core."""

    def save(self, state):
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        super().save(state)
        torch.set_num_threads(threads)


class TorchSave:
    def __init__(self, folder):
        self._path = folder / "state.pt"
        folder.mkdir()

    def save(self, state):
        torch.save(state, self._path)

    def wait(self):
        pass

    def load(self):
        torch.load(self._path, weights_only=True)


class DcpAsync:
    def __init__(self, folder):
        self._folder, self._future = folder, None
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def save(self, state):
        shutil.rmtree(self._folder, ignore_errors=True)
        self._future = dcp.async_save(state, checkpoint_id=self._folder)

    def writing(self):
        return not self._future.done()

    def wait(self):
        self._future.result()


class Copy:
    """Copies into memory that is kept, and writes nothing: no save can be shorter."""

    def __init__(self, _folder):
        self._copies = None

    def save(self, state):
        sources = tensors_of(state)
        if self._copies is None:
            self._copies = [torch.empty_like(tensor) for tensor in sources]
        torch._foreach_copy_(self._copies, sources)

    def wait(self):
        pass


class Nothing:
    """A writer that only sleeps: its apparent cost is the machine's noise."""

    def __init__(self, _folder):
        self._until = 0.0

    def save(self, _state):
        self._until = time.perf_counter() + 0.7

    def writing(self):
        return time.perf_counter() < self._until

    def wait(self):
        pass


WAYS = {OURS: Ours, OURS_ALONE: OursAlone, COPY: Copy, TORCH: TorchSave, DCP: DcpAsync}


def measure_stalls(state, folder, saves):
    """Return how long each `save` took, and how long until it was written; methods alternate."""
    ways = {name: make(folder / str(number)) for number, (name, make) in enumerate(WAYS.items())}
    ways[OURS].reserve(state)
    stalls, whole = {name: [] for name in ways}, {name: [] for name in ways}
    for _ in range(saves + 1):
        for name, way in ways.items():
            began = time.perf_counter()
            way.save(state)
            stalls[name].append(time.perf_counter() - began)
            way.wait()
            whole[name].append(time.perf_counter() - began)
    rows = {}
    for name in ways:
        first, *rest = (1e3 * stall for stall in stalls[name])
        written_s = statistics.median(whole[name][1:])
        rows[f"stall, {name}"] = {
            **summary(rest, "ms", 1),
            "first_ms": round(first, 1),
            "written_after_s": round(written_s, 2),
        }
    for name in (OURS, TORCH):
        rows[f"load, {name}"] = summary([measure_load(ways[name]) for _ in range(5)])
    return rows


def measure_load(way):
    began = time.perf_counter()
    way.load()
    return time.perf_counter() - began


# --- memory -------------------------------------------------------------------------------------


def resident_mb(field):
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 / MB


def measure_memory(name, folder):
    """Return the peak memory of saving three times, in addition to the state itself."""
    state, way = make_state(), WAYS[name](folder)
    ctypes.CDLL(None).malloc_trim(0)  # the gradients' memory must not be reused
    before = resident_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    for _ in range(3):
        way.save(state)
        way.wait()
    return round(resident_mb("VmHWM") - before)


def measure_memory_of_all(folder):
    """Return the peak memory of each method, measured in separate processes."""
    found = {}
    for number, name in enumerate((OURS, TORCH, DCP)):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            asked = pool.submit(measure_memory, name, folder / f"memory-{number}")
            found[f"memory, {name}"] = {"above_the_state_mb": asked.result()}
    return found


# --- the loop during a write --------------------------------------------------------------------


def training():
    """Return a step of a small training, which depends on the interpreter lock like any other."""
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, targets = torch.randn(64, 784), torch.randint(10, (64,))

    def step():
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def timed(step):
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def measure_slowdown(state, folder, saves):
    """Return how much longer steps take while a checkpoint is being written."""
    kinds = {CONTROL: Nothing, OURS: Ours, DCP: DcpAsync}
    ways = {
        name: make(folder / f"loop-{number}") for number, (name, make) in enumerate(kinds.items())
    }
    step, found = training(), {name: [] for name in ways}
    for cycle in range(saves + 1):
        for name, way in ways.items():
            before = [timed(step) for _ in range(CALM_STEPS)]
            way.save(state)
            during = []
            while way.writing():
                during.append(timed(step))
            way.wait()
            after = [timed(step) for _ in range(CALM_STEPS)]
            if cycle:  # skip the first, which has the page faults
                found[name].append((during, before + after))
    return {
        f"a step while writing, {name}": {
            "slower_percent": more_percent(cycles, statistics.median),
            "mean_slower_percent": more_percent(cycles, statistics.mean),
            "longest_step_ms": round(1e3 * max(max(during) for during, _ in cycles), 1),
            "steps": sum(len(during) for during, _ in cycles),
            "trials": len(cycles),
        }
        for name, cycles in found.items()
    }


def more_percent(cycles, typical):
    """Return how much longer a typical step takes than without a write in the same cycle."""
    return round(
        statistics.median(100 * (typical(during) / typical(calm) - 1) for during, calm in cycles), 2
    )


def judge_slowdown(rows):
    """Return the worse of median and mean; None if it is within the noise of an empty writer."""
    ours, control = (rows[f"a step while writing, {name}"] for name in (OURS, CONTROL))
    figures = ("slower_percent", "mean_slower_percent")
    if any(abs(control[figure]) > SLOWDOWN_PERCENT for figure in figures):
        print("a step while writing: this machine is not quiet enough to tell")
        return None
    return max(ours[figure] for figure in figures)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--saves", type=int, default=12)
    saves = parser.parse_args().saves
    warnings.filterwarnings("ignore", module="torch.distributed")
    state = make_state()
    tensors = tensors_of(state)
    size_mb = round(sum(tensor.nbytes for tensor in tensors) / MB, 1)
    with workshop() as folder:
        rows = measure_stalls(state, folder, saves)
        torch.set_num_threads(1)
        rows |= measure_slowdown(state, folder, saves)
        rows |= measure_memory_of_all(folder)
    ours = rows[f"stall, {OURS}"]
    goals = {
        "stall of a save, ms": (ours["median_ms"], STALL_MS),
        "a step while writing, percent slower": (judge_slowdown(rows), SLOWDOWN_PERCENT),
    }
    ratios = {name: ratio(ours, rows[f"stall, {name}"], "median_ms") for name in (COPY, TORCH, DCP)}
    measuring.write_results(
        "checkpoint",
        rows,
        goals,
        state={"mb": size_mb, "tensors": len(tensors)},
        ratio_to=ratios,
        load_average=os.getloadavg(),
    )
    for name, value in ratios.items():
        print(f"ours / {name}: {value}")


if __name__ == "__main__":
    main()
