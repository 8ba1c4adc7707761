"""Converts the options for nodes, tasks, CPUs and GPUs to keys of a request. Pure.

Slurm accepts totals and amounts per node in any mixture; a request counts per node.
"""

from collections.abc import Mapping

from echelon.clusters.slurm.options import split_gpus
from echelon.errors import UsageError


def take_shape(options: dict[str, str]) -> dict[str, object]:
    """Remove the options for amounts, and return the keys that they stand for.

    Raises:
        UsageError: an invalid number, or contradictory options.
    """
    found: dict[str, object] = {}
    nodes = options.pop("nodes", None)
    if made := _work_out_nodes(options, nodes):
        found["nodes"] = str(made)
    elif nodes is not None:
        found["nodes"] = nodes.replace("-", ":")
    most = _number(str(found.get("nodes", "1")).rpartition(":")[2], "nodes")
    tasks = _take_tasks(options, most)
    found |= _take_gpus(options, most, tasks)
    cpus = options.pop("cpus-per-task", None)
    if cpus is not None:
        found["cpus_per_task"] = cpus
    if tasks > 1 or (tasks == 1 and not found.get("gpus")):
        found["procs"] = tasks
    elif cpus is not None:
        # One task with several GPUs: its CPUs are for all the ranks that it starts.
        gpus = int(str(found.get("gpus", 1)))
        found["cpus_per_task"] = max(1, _number(cpus, "cpus-per-task") // gpus)
    return found


# --- nodes ------------------------------------------------------------------------------------


def _work_out_nodes(options: Mapping[str, str], asked: str | None) -> int:
    """Return the number of nodes that follows from totals and amounts per node; 0 if none does."""
    made = _nodes_made(options)
    counts = list(made.values())
    if not counts:
        return 0
    low, _, high = (asked or "").partition("-")
    fits = not low or _number(low, "nodes") <= counts[0] <= _number(high or low, "nodes")
    if not fits or len(set(counts)) > 1:
        claims = [f"--nodes={asked}"] if low else []
        claims += [f"{said} requires {count}" for said, count in made.items()]
        raise UsageError(
            f"contradictory numbers of nodes: {', but '.join(claims)}",
            hint="correct one of these #SBATCH lines",
        )
    return counts[0]


def _nodes_made(options: Mapping[str, str]) -> dict[str, int]:
    """Return total divided by amount per node, by the pair of options that gives both."""
    gres = next((g for g in options.get("gres", "").split(",") if g.startswith("gpu:")), "")
    per_node = options.get("gpus-per-node", "")
    shares = (
        ("ntasks", "ntasks-per-node", options.get("ntasks-per-node", "")),
        ("gpus", "gpus-per-node" if per_node else "gres", per_node or gres.removeprefix("gpu:")),
    )
    made = {}
    for total, per, share in shares:
        whole = options.get(total, "")
        if not whole or not share or "," in whole + share:  # several types are rejected elsewhere
            continue
        said = f"--{total}={whole} with --{per}={options[per]}"
        split = split_gpus if total == "gpus" else lambda text: ("", text)
        count, rest = divmod(_number(split(whole)[1], total), _number(split(share)[1], per))
        if rest:
            raise UsageError(
                f"{said} would give some node less than the others",
                hint="use a total that is a multiple of the amount per node",
            )
        made[said] = count
    return made


# --- tasks and GPUs ---------------------------------------------------------------------------


def _take_tasks(options: dict[str, str], nodes: int) -> int:
    """Return the tasks per node; 0 if the script does not specify them."""
    per_node, total = options.pop("ntasks-per-node", ""), options.pop("ntasks", "")
    if per_node:
        return _number(per_node, "ntasks-per-node")
    return _share(total, nodes, "ntasks") if total else 0


def _take_gpus(options: dict[str, str], nodes: int, tasks: int) -> dict[str, object]:
    """Return the keys for GPUs. If a script uses two options, the one per node decides."""
    found: dict[str, object] = {}
    gres = [entry for entry in options.pop("gres", "").split(",") if entry]
    gpu_gres = [entry for entry in gres if entry.split(":")[0] == "gpu"]
    asked = {
        "gpus": options.pop("gpus", ""),
        "gpus-per-task": options.pop("gpus-per-task", ""),
        "gres": gpu_gres[0].partition(":")[2] or "1" if gpu_gres else "",
        "gpus-per-node": options.pop("gpus-per-node", ""),
    }
    total = asked["gpus"]
    for option, text in asked.items():
        if not text:
            continue
        if "," in text or len(gpu_gres) > 1:
            raise UsageError(
                f"GPUs of several types in one job: {text}", hint="request one type of GPU"
            )
        kind, amount = split_gpus(text)
        count = _number(amount, option)
        if option == "gpus":
            count = _share(amount, nodes, option)
        elif option == "gpus-per-task":
            count *= max(1, tasks)
        found |= {"gpus": count, "gpu_option": option, **({"gpu_type": kind} if kind else {})}
    if total and found["gpu_option"] == "gpus-per-node":
        found["gpu_option"] = "gpus"  # we write a total as both options
    if others := [entry for entry in gres if entry not in gpu_gres]:
        options["gres"] = ",".join(others)
    return found


def _share(text: str, nodes: int, option: str) -> int:
    """Return the share of each node in a total."""
    total = _number(text, option)
    if total % nodes:
        raise UsageError(
            f"--{option}={total} is not divisible by {nodes} nodes",
            hint="use a multiple of the number of nodes",
        )
    return total // nodes


def _number(text: str, option: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise UsageError(f"--{option}={text} is not a number", hint="write it as a whole number")
    return int(text)
