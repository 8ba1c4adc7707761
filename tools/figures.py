"""Generate docs/benchmarks.md from benchmarks/results/. `make docs` calls it.

.venv/bin/python tools/figures.py            writes the page if it has changed
.venv/bin/python tools/figures.py --check    exits with 1 if the page is out of date
"""

import json
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"

ABOUT = {
    "launch": "Time to start 4 ranks, run a first all-reduce and exit. Also, time from `submit` to "
    "the first all-reduce on 2 nodes of a sandbox.",
    "raylaunch": "Time from `submit --on ray` to the first all-reduce on 2 nodes of a Ray cluster, "
    "compared with Ray Train.",
    "image": "4 ranks on 2 simulated nodes inside an image (podman) that is on the machine, and "
    "without one: time from the command to the first all-reduce, and from the death of a rank "
    "until all step again.",
    "stage": "`--stage` with an environment of 800 MB in 14,000 files on storage with 2 ms per "
    "operation and 50 MB/s for all nodes together. Nodes are simulated on one machine. `warm "
    "stage`: the copy is there already.",
    "restart": "One of 4 ranks is killed with SIGKILL. Time until all ranks step again.",
    "restart-nccl": "The same with 2 ranks and NCCL. They share one GPU.",
    "gpt": "A GPT-2-small class model (124 million parameters, 1,024 tokens, batch 16, bf16, "
    "AdamW) on one GPU. Each way trains on the same random tokens; compilation is in the first "
    "epoch.",
    "gpuranks": "Training speed of ranks that share one GPU, at a batch of 64 each. It compares "
    "the loops, and says nothing about ranks with a GPU each.",
    "nodeloss": "One of 3 nodes of a sandbox is lost. Time until the others step again.",
    "strangers": "4 nodes join a run on this machine while another user floods its controller.",
    "rendezvous": "4,096 simulated agents join one controller.",
    "idle": "CPU and memory used by Echelon's own processes while 2 × 2 ranks train, with "
    "torchrun's agent for comparison.",
    "checkpoint": "A save of 300 MB in 800 tensors: how long it blocks the loop, and how much "
    "slower the loop is while the file is written.",
    "remote": "Commands that are given on a laptop and executed on a cluster's login host: a "
    "sandbox with sshd, next to the laptop or over a link of 25 ms each way. Plain ssh through the "
    "same kind of shared connection for comparison.",
    "snapshot": "The copy that `submit` makes of a project with 10,000 files of 4 kB: the first "
    "one, and one of an unchanged project. `cp -r` for comparison. On the same machine under load, "
    "the first copy took up to 21 s and an unchanged one up to 2.9 s.",
    "shards": "A save of 1 GB by 4 ranks with FSDP2 on the CPU, and what one of 4,096 ranks "
    "(simulated) does to plan. On two cores, where four ranks share the bandwidth of memory, a "
    "stall is 0.78 of torch's, and a copy in memory alone 0.5.",
    "shards-gpu": "A save of 2 GB by 2 and 4 ranks with FSDP2 and NCCL that share one GPU. A stall "
    "lasts until the GPU can change the weights again.",
    "shardsteps": "A GPT of 124 million parameters with FSDP2 and compiled layers, 2 ranks that "
    "share one GPU: a step, the peak memory of a rank, and a step while a checkpoint is written.",
    "recording": "What the record of collectives costs, from which hangs are explained: one rank "
    "with NCCL, with the record and without it. They work in turns. Processes of the same kind "
    "differ in their steps by more than the record costs, so its share of a step is what it adds "
    "to an all-reduce.",
    "overhead": "Time that a framework adds to a step of `Linear(784, 10)`: the tenth percentile "
    "of all turns, and the median. All loops took turns on one core, while other cores ran another "
    "benchmark. On a slower machine with two cores, where a raw step takes 550 µs, Echelon adds "
    "27 µs and misses the goal; most of it is the log at every tenth step (8 µs with "
    "`log_every=50`).",
    "loader": "Images of 64 × 64 loaded per second and core.",
    "page": "The web page with a simulated run of 1,000 ranks, in Chromium.",
    "lint": "`echelon lint` on one script, including its start.",
    "sweep": "A sweep of 1,000 tasks on a sandbox: submitting it, and its table if all tasks wait "
    "or have ended, with 50 lines of metrics each. submitit's `map_array` for comparison.",
    "packed": "A packed sweep on a sandbox of two nodes with four GPUs each: the share of time "
    "in which tasks ran, from the begin of the first to the end of the last, and tasks per second. "
    "An array of whole-node jobs, each of which uses one GPU, for comparison.",
    "sandbox": "The sandbox, compared with Slurm's own defaults.",
}
"""The introduction to each section; files with another layout have functions of their own."""
APART = ("faultmatrix", "hangs", "leftovers", "gpu", "soak", "unmodified")

MISSED = {
    ("checkpoint", "stall of a save, ms"): "The goal is from a machine on which a copy within "
    "memory took 24 ms, and torch's async_save 270 ms. Here the copy alone takes 68 ms; see the "
    "table. From a GPU the copy overlaps with the loop; see `gpu`.",
    ("checkpoint", "a step while writing, percent slower"): "On two cores, beside other work.",
    ("restart-nccl", "median, s"): "CUDA's contexts take 0.2 to 0.35 s of it and NCCL's start "
    "0.75 s: about 0.35 s to load its kernels and 0.3 s to connect 64 channels. Contexts that were "
    "created while the old ranks were being ended saved 0.2 s in a trial, which is too little for "
    "a context outside the program's control. With NCCL_MAX_NCHANNELS=4 a restart took 0.3 s less, "
    "with NCCL_CUMEM_ENABLE=0 0.2 s less. Both change NCCL for the whole training, so Echelon does "
    "not set them.",
    ("gpt", "compiled, plain loop / Echelon"): "Both compile the model. Echelon also "
    "compiles the loss and replays a CUDA graph, which matters less with steps of 40 ms.",
    ("packed", "slot time that tasks of one second do not use"): "A task takes 0.2 s of CPU time, "
    "and the eight slots share two cores.",
    ("packed", "seconds per task that does nothing"): "The same: two cores are busy.",
    ("shards", "time to load, of torch's"): "The time includes verifying all checksums.",
    **{
        ("shards-gpu", f"{ranks} ranks: time to load, of torch's"): "All checksums are verified; "
        "torch's checkpoints have none."
        for ranks in (2, 4)
    },
    ("shards-gpu", "4 ranks: time to durable, of torch's"): "Both write and sync the same bytes to "
    "one disk.",
    ("shardsteps", "a step while a checkpoint is written, of one without"): "Both ranks "
    "copy over one GPU's link to the host.",
    (
        "remote",
        "status, without the round trips of ssh, s",
    ): "Beside other work. Plain ssh takes 0.10 s of it.",
    (
        "launch",
        "ours / torchrun",
    ): "Importing torch once takes 1.5 s of it; torchrun imports it five times on two cores.",
    (
        "launch",
        "submit, ours / srun",
    ): "Narrowly missed: controller and agents have to start before the first rank.",
    (
        "stage",
        "time until staged, 8 nodes / 1",
    ): "Writing and verifying a copy takes 8 s of CPU time, and 8 nodes share the two cores here.",
    (
        "lint",
        "one script, median, seconds",
    ): "On a busy machine. A bare start of the command is about two thirds of it.",
    ("lint", "one script, median, CPU seconds"): "Without the time of other processes.",
    (
        "limit",
        "longest gap between steps of two jobs, s",
    ): "Ten trainings at once on two busy cores. "
    "On an idle machine the goal is met; see the rows `limit, idle`.",
    (
        "storm of ranks",
        "effective training time, percent",
    ): "Measured by a stopwatch, while other work slowed the steps as well. By the accounting of "
    "slots the goal is met.",
}
"""Why a goal was missed, where the cause is known."""

_HEAD = """\
# Benchmarks
<!-- made by tools/figures.py: measure, then `make docs` -->

This page shows all measurements and the goals they were compared with. Both sides of a comparison
are measured alternately in one run, so trust ratios rather than seconds: the machine was seldom
idle. [benchmarks/](../benchmarks/README.md) describes how each benchmark works.

<!-- not run: they take an hour, three hours, and a GPU -->
```console
$ make bench                                              # all but the next two
$ make soak                                               # long reliability tests on Slurm
$ .venv/bin/python benchmarks/gpu.py                      # needs a GPU
$ .venv/bin/python benchmarks/restart.py --trials 20      # a single benchmark; see its --help
```"""


def render() -> str:
    """Return the page.

    Raises:
        ValueError: a result file has no section, or a section has no result file.
    """
    results = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    if unknown := results.keys() ^ {*ABOUT, *APART}:
        raise ValueError(f"ABOUT in tools/figures.py does not match {RESULTS}: {unknown}")
    parts = [_HEAD, _goals(results)]
    parts += [_section(name, about, results[name]) for name, about in ABOUT.items()]
    parts += [_faults(results), _hangs(results["hangs"])]
    parts += [_gpu(results["gpu"]), _soak(results["soak"])]
    return "\n".join(parts)


# --- goals ------------------------------------------------------------------------------------


def _goals(results: Mapping[str, Any]) -> str:
    rows, missed = [], []
    for name, result in results.items():
        for part, measured in result.items() if name == "soak" else [(name, result)]:
            for goal, judged in measured.get("goals", {}).items():
                limit = judged.get("goal") or f"≤ {_number(judged['limit'])}"
                value = "inconclusive" if judged["value"] is None else _number(judged["value"])
                rows.append([part, goal, limit, value, "yes" if judged["met"] else "**no**"])
                missed += [] if judged["met"] else [(part, goal)]
    met = sum(row[-1] == "yes" for row in rows)
    text = f"\n## Goals\n{met} of {len(rows)} goals are met.\n\n"
    text += _table(["benchmark", "what", "goal", "measured", "met"], rows)
    if missed:
        reasons = [[*one, MISSED.get(one, "not investigated yet")] for one in missed]
        text += "\n\n### Missed goals\n" + _table(["benchmark", "what", "why"], reasons)
    return text + "\n"


# --- sections ---------------------------------------------------------------------------------


def _section(name: str, about: str, result: Mapping[str, Any]) -> str:
    return f"## {name}\n{_wrap(about)}\n\n{_measured(name, result)}\n\n{_rows(result['rows'])}\n"


def _measured(name: str, result: Mapping[str, Any]) -> str:
    versions = {**result.get("versions", {})}
    versions |= {key: result[key] for key in ("python", "torch", "slurm") if key in result}
    known = [
        f"{key} {str(value).removeprefix('slurm-wlm ')}"
        for key, value in versions.items()
        if value and value != "not installed"
    ]
    said = ", ".join([result["date"], result["machine"], *known])
    link = f"[{name}.json](../benchmarks/results/{name}.json)"
    python = ".venv-peers/bin/python" if name == "overhead" else ".venv/bin/python"
    script, _, option = name.partition("-")
    command = f"benchmarks/{script}.py" + (f" --{option}" if option else "")
    return _wrap(f"{said}; {link}; `{python} {command}`.")


def _rows(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return tables; rows with the same measurements share one."""
    tables: list[tuple[list[str], list[list[str]]]] = []
    for name, row in rows.items():
        keys = next((keys for keys, _ in tables if row.keys() & set(keys) - {"trials"}), None)
        if keys is None:
            tables.append((keys := [], []))
        keys += [key for key in row if key not in keys]
        next(cells for at, cells in tables if at is keys).append([name])
    for keys, lines in tables:
        for line in lines:
            line += [
                "" if key not in rows[line[0]] else _number(rows[line[0]][key]) for key in keys
            ]
    return "\n\n".join(_table(["", *map(_heading, keys)], lines) for keys, lines in tables)


def _faults(results: Mapping[str, Any]) -> str:
    matrix, left = results["faultmatrix"], results["leftovers"]
    hits = sum(row["hits"] for row in matrix["rows"].values())
    trials = len(matrix["rows"]) * matrix["trials_of_each"]
    causes = sorted({row["cause"] for row in matrix["rows"].values()} - {"none"})
    theirs = left["torchrun"]
    about_faults = (
        f"Each fault is injected into a run, and the verdict is compared with it. Cause and rank "
        f"were correct {hits} of {trials} times ({matrix['faults']} faults, "
        f"{matrix['trials_of_each']} times each; {matrix['mean_s']} s on average). Causes: "
        f"{', '.join(causes)}."
    )
    about_left = (
        f"A process of a run is killed. Processes were still running {_number(left['after_s'])} s "
        f"later in {left['with_leftovers']} of {left['trials']} trials. When torchrun itself is "
        f"killed: {theirs['with_leftovers']} of {theirs['trials']} trials, "
        f"{_number(theirs['median_left'])} processes (median)."
    )
    return (
        f"## faultmatrix\n{_wrap(about_faults)}\n\n{_measured('faultmatrix', matrix)}\n\n"
        f"## leftovers\n{_wrap(about_left)}\n\n{_measured('leftovers', left)}\n\n"
        f"{_rows(left['killed'])}\n"
    )


def _hangs(hangs: Mapping[str, Any]) -> str:
    rows, healthy, gloo = hangs["rows"].values(), hangs["healthy"], hangs["healthy_gloo"]
    hits = sum(row["hits"] for row in rows)
    trials = hangs["hangs"] * hangs["trials_of_each"]
    minutes, alarms, early = (
        sum(one[what] for one in gloo) for what in ("minutes", "false_alarms", "ended_early")
    )
    about = (
        f"Ranks with NCCL are made to hang in {hangs['hangs']} ways, with `--hang-timeout "
        f"{hangs['hang_timeout_s']}`. Rank and reason were correct {hits} of {trials} times, "
        f"{_number(hangs['median_delay_s'])} s after the hang began (median; longest "
        f"{_number(hangs['longest_delay_s'])} s). Beside them, healthy ranks ran for "
        f"{_number(healthy['minutes'])} minutes with {healthy['false_alarms']} false alarms; "
        f"without a GPU, {_number(minutes)} minutes with {alarms} alarms, on machines with more "
        "runs than cores. Two of them were about ranks that waited for storage for longer than the "
        "`--hang-timeout`, while 60 runs saved to one disk. One was about a compilation that took "
        "longer while the other rank waited, which is no longer reported; of the other one the "
        "text was not kept. "
        f"{early} runs ended early, because an agent on a busy machine was silent for 5 s; that "
        "limit is 15 s now."
    )
    return f"## hangs\n{_wrap(about)}\n\n{_measured('hangs', hangs)}\n"


_TRAININGS = {
    "mnist": ("MNIST, s per epoch", "epoch_s"),
    "resnet18": ("ResNet-18, images/s", "samples_per_s"),
    "resnet50": ("ResNet-50, images/s", "samples_per_s"),
    "resnet50-1024": ("ResNet-50, batch 1024, images/s", "samples_per_s"),
}


def _gpu(gpu: Mapping[str, Any]) -> str:
    heads = [head for head, _ in _TRAININGS.values()]
    rows = [
        [side, *(_number(gpu[name][side][key]) for name, (_, key) in _TRAININGS.items())]
        for side in gpu["mnist"]
    ]
    save, reach = gpu["checkpoint of 2 GB"], gpu["mnist to 99 %"]
    restart = gpu["restart of a rank with a CUDA context"]
    stalls = [["", "first, ms", "later, ms"]]
    for side in ("Echelon", "DCP async"):
        first, *later = save[f"{side}: stalls, ms"]
        stalls.append([side, _number(first), ", ".join(map(_number, later))])
    about = (
        "End to end from the data set's file, with images of 64 × 64 and batch 64 unless noted. "
        "Each `+` row adds one feature to the row above. Several GPUs were not measured."
    )
    more = (
        f"MNIST reaches {reach['accuracy']:.2%} in epoch {reach['epoch']}, after "
        f"{_number(reach['seconds'])} s. A killed rank with a CUDA context steps again after "
        f"{_number(restart['Echelon, s'])} s, with torchrun after "
        f"{_number(restart['torchrun, s'])} s. A save of 2 GB blocks the loop for:"
    )
    slower = _number(save["slower while writing, %"])
    return (
        f"## gpu\n{_wrap(about)}\n\n{_measured('gpu', gpu)}\n\n{_table(['', *heads], rows)}\n\n"
        f"{_wrap(more)}\n\n{_table(stalls[0], stalls[1:])}\n\n"
        f"While the file is written, the time of a step changes by {slower} %.\n"
    )


def _soak(soak: Mapping[str, Any]) -> str:
    rows = [
        [name, result["date"], f"{result['took_s']} s", result.get("note", "")]
        for name, result in soak.items()
    ]
    machines = sorted({result["machine"] for result in soak.values()})
    about = (
        "Long reliability tests on a real Slurm in a sandbox. "
        "[What a run survives](reliability.md#what-was-measured) has the figures and describes "
        "each test. The goals are in the table above."
    )
    return (
        f"## soak\n{_wrap(about)}\n\n"
        f"{'; '.join(machines)}; [soak.json](../benchmarks/results/soak.json); `make soak`.\n\n"
        f"{_table(['scene', 'date', 'took', 'note'], rows)}\n"
    )


# --- cells ------------------------------------------------------------------------------------

_UNITS = {"s": "s", "ms": "ms", "us": "µs", "percent": "%", "mib": "MiB", "mb": "MB", "kB": "kB"}


def _heading(key: str) -> str:
    words, _, unit = key.rpartition("_")
    if words and unit in _UNITS:
        return f"{words.replace('_', ' ')}, {_UNITS[unit]}"
    return key.replace("_", " ")


def _number(value: float | str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"  # only measured digits


def _wrap(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def out_of_date() -> bool:
    """Tell whether the page differs from what the results would generate."""
    return not PAGE.is_file() or PAGE.read_text() != render()


def main() -> int:
    """Write the page if it has changed, or only check it."""
    if not out_of_date():
        return 0
    if "--check" in sys.argv[1:]:
        print("docs/benchmarks.md is out of date\nhint: make docs", file=sys.stderr)
        return 1
    PAGE.write_text(render())
    print("docs/benchmarks.md updated")
    return 0


if __name__ == "__main__":
    sys.exit(main())
