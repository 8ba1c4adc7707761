"""Makes docs/benchmarks.md from what was measured, benchmarks/results/; `make docs` calls it.

.venv/bin/python tools/figures.py            writes the page where it has changed
.venv/bin/python tools/figures.py --check    only says so, and ends with 1
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"

ABOUT = {
    "launch": "How long it takes to get ranks going: 4 of them to their first all-reduce and out; "
    "and from `submit` to the first all-reduce, on 2 nodes of a sandbox.",
    "raylaunch": "`submit --on ray` to the first all-reduce, on 2 nodes of one Ray cluster, beside "
    "Ray Train.",
    "restart": "One of 4 ranks gets SIGKILL: until all step again.",
    "nodeloss": "One of 3 nodes of a sandbox is lost: until the others step again.",
    "strangers": "4 nodes join a run on this machine while another user floods its controller.",
    "rendezvous": "4,096 simulated agents and one controller.",
    "idle": "What runs beside 2 × 2 ranks that step: share of a core, memory.",
    "checkpoint": "A save of 300 MB in 800 tensors: how long it holds up the loop, and how fast "
    "the loop is while it is written.",
    "overhead": "What a framework adds to a step of `Linear(784, 10)`: the shortest of its turns, "
    "and the median.",
    "loader": "Images of 64 × 64 per second and core.",
    "page": "The web page, with a made-up run of 1,000 ranks, in chromium.",
    "lint": "`echelon lint` of one script, its start included.",
    "sandbox": "The sandbox, beside what Slurm does with its own defaults.",
}
"""What each file is about; those of another form have a section of their own."""
APART = ("faultmatrix", "leftovers", "gpu", "soak")

MISSED = {
    ("checkpoint", "stall of a save, ms"): "The copy of 300 MB within memory takes that long on "
    "this machine. From a GPU it is made while the loop goes on: see `gpu`.",
    ("checkpoint", "a step while writing, percent slower"): "A writer of nothing, measured for "
    "comparison, was off by as much as the goal allows: nothing can be said, so it counts as "
    "missed.",
    ("launch", "submit, ours / srun"): "Close to it: controller and agents start before the first "
    "rank does.",
    ("lint", "one script, seconds"): "The slowest script, beside other work; of the median half is "
    "a bare start of the command.",
    ("lint", "one script, CPU seconds"): "The slowest script, without what others took.",
    ("overhead", "Echelon over the raw loop, µs per step"): "Counting, the bar and the files cost "
    "more than was aimed at. With a user's data, where the raw loop has a DataLoader, the whole "
    "step is shorter than there.",
    ("limit", "longest gap between steps of two jobs, s"): "Ten trainings at once on two cores, "
    "beside other work. On an idle machine it is met: the rows `limit, idle`.",
    (
        "storm of ranks",
        "effective training time, percent",
    ): "By a stopwatch, beside other work that "
    "slowed steps too. By the accounting of slots it is met.",
}
"""Why a goal was missed, as far as somebody has looked."""

_HEAD = """\
# Benchmarks
<!-- made by tools/figures.py: measure, then `make docs` -->

All figures that were measured, with the goals that they were measured against. Both sides of a
comparison are measured in one run and take turns: trust ratios rather than seconds. The machine was
seldom quite idle. [benchmarks/](../benchmarks/README.md) says how each is measured.

<!-- not run: they take an hour, three hours, and a GPU -->
```console
$ make bench                                              # all but the next two
$ make soak                                               # survival on Slurm
$ .venv/bin/python benchmarks/gpu.py                      # on a machine with a GPU
$ .venv/bin/python benchmarks/restart.py --trials 20      # one alone; --help has its lengths
```"""


def render() -> str:
    """Return the page.

    Raises:
        ValueError: a file has no section here, or a section no file.
    """
    results = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    if unknown := results.keys() ^ {*ABOUT, *APART}:
        raise ValueError(f"ABOUT in tools/figures.py: not there, or not measured: {unknown}")
    parts = [_HEAD, _goals(results)]
    parts += [_section(name, about, results[name]) for name, about in ABOUT.items()]
    parts += [_faults(results), _gpu(results["gpu"]), _soak(results["soak"])]
    return "\n".join(parts)


# --- goals ------------------------------------------------------------------------------------


def _goals(results: Mapping[str, Any]) -> str:
    rows, missed = [], []
    for name, result in results.items():
        for part, measured in result.items() if name == "soak" else [(name, result)]:
            for goal, judged in measured.get("goals", {}).items():
                limit = judged.get("goal") or f"≤ {_number(judged['limit'])}"
                value = "nothing sure" if judged["value"] is None else _number(judged["value"])
                rows.append([part, goal, limit, value, "yes" if judged["met"] else "**no**"])
                missed += [] if judged["met"] else [(part, goal)]
    met = sum(row[-1] == "yes" for row in rows)
    text = f"\n## Goals\n{met} of {len(rows)} are met.\n\n"
    text += _table(["of", "what", "goal", "measured", "met"], rows)
    if missed:
        reasons = [[*one, MISSED.get(one, "nobody has looked into it yet")] for one in missed]
        text += "\n\n### What was missed\n" + _table(["of", "what", "why"], reasons)
    return text + "\n"


# --- sections ---------------------------------------------------------------------------------


def _section(name: str, about: str, result: Mapping[str, Any]) -> str:
    return f"## {name}\n{about}\n\n{_measured(name, result)}\n\n{_rows(result['rows'])}\n"


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
    return f"{said}; {link}; `{python} benchmarks/{name}.py`."


def _rows(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return tables: rows of which the same was measured stand in one, else in one after it."""
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
    return (
        f"## faultmatrix\nA fault is made, and the verdict compared with what was done: cause and "
        f"rank were right {hits} of {trials} times ({matrix['faults']} faults, "
        f"{matrix['trials_of_each']} times each; {matrix['mean_s']} s each). Causes: "
        f"{', '.join(causes)}.\n\n{_measured('faultmatrix', matrix)}\n\n"
        f"## leftovers\nA process of a run is killed: is anything left "
        f"{_number(left['after_s'])} s later? {left['with_leftovers']} of {left['trials']} times. "
        f"When torchrun itself is killed: "
        f"{theirs['with_leftovers']} of {theirs['trials']} times, "
        f"{_number(theirs['median_left'])} processes.\n\n{_measured('leftovers', left)}\n\n"
        f"{_rows(left['killed'])}\n"
    )


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
    return (
        "## gpu\nEnd to end from the data set's file, 64 × 64 images, batch 64 where nothing else "
        "is said. Each row adds one thing to the one above it. Several GPUs are unmeasured.\n\n"
        f"{_measured('gpu', gpu)}\n\n{_table(['', *heads], rows)}\n\n"
        f"MNIST reaches {reach['accuracy']:.2%} in epoch {reach['epoch']}, after "
        f"{_number(reach['seconds'])} s. A rank with a CUDA context that is killed steps again "
        f"after {_number(restart['Echelon, s'])} s, with torchrun after "
        f"{_number(restart['torchrun, s'])} s. A save of 2 GB holds up the loop:\n\n"
        f"{_table(stalls[0], stalls[1:])}\n\n"
        f"While it is written a step takes {_number(save['slower while writing, %'])} % longer.\n"
    )


def _soak(soak: Mapping[str, Any]) -> str:
    rows = [
        [name, result["date"], f"{result['took_s']} s", result.get("note", "")]
        for name, result in soak.items()
    ]
    machines = sorted({result["machine"] for result in soak.values()})
    return (
        "## soak\nThe long tests of survival, on a real Slurm in a sandbox. "
        "[What a run survives](reliability.md#what-was-measured) has their figures and what each "
        "does, line by line; the goals are in the table above.\n\n"
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
    return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"  # no more than was measured


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def out_of_date() -> bool:
    """Tell whether the page is not what it has to be."""
    return not PAGE.is_file() or PAGE.read_text() != render()


def main() -> int:
    """Write the page where it has changed, or say so."""
    if not out_of_date():
        return 0
    if "--check" in sys.argv[1:]:
        print("docs/benchmarks.md is out of date: make docs", file=sys.stderr)
        return 1
    PAGE.write_text(render())
    print("docs/benchmarks.md is renewed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
