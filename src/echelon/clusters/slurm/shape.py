"""What #SBATCH options ask for in nodes, tasks, CPUs and GPUs, as keys of a request. Pure.

Slurm takes totals and shares in any mixture and works out the rest; a request counts per node.
"""

from collections.abc import Mapping

from echelon.errors import UsageError


def take_shape(options: dict[str, str]) -> dict[str, object]:
    """Take the options that say how much, and return the keys that they stand for.

    Raises:
        UsageError: a number that is none, or options that do not agree.
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
        # One task beside several GPUs: its CPUs are those of all ranks that it will start.
        gpus = int(str(found.get("gpus", 1)))
        found["cpus_per_task"] = max(1, _number(cpus, "cpus-per-task") // gpus)
    return found


# --- nodes ------------------------------------------------------------------------------------


def _work_out_nodes(options: Mapping[str, str], asked: str | None) -> int:
    """Return how many nodes totals and shares make; 0 where the script does not say both."""
    made = _nodes_made(options)
    counts = list(made.values())
    if not counts:
        return 0
    low, _, high = (asked or "").partition("-")
    fits = not low or _number(low, "nodes") <= counts[0] <= _number(high or low, "nodes")
    if not fits or len(set(counts)) > 1:
        claims = [f"--nodes={asked}"] if low else []
        claims += [f"{said} makes {count}" for said, count in made.items()]
        raise UsageError(
            f"the script does not agree with itself how many nodes: {', but '.join(claims)}",
            hint="change the #SBATCH line that is wrong",
        )
    return counts[0]


def _nodes_made(options: Mapping[str, str]) -> dict[str, int]:
    """Return over how many nodes a total is shared out, by the options that say so."""
    gres = next((g for g in options.get("gres", "").split(",") if g.startswith("gpu:")), "")
    per_node = options.get("gpus-per-node", "")
    shares = (
        ("ntasks", "ntasks-per-node", options.get("ntasks-per-node", "")),
        ("gpus", "gpus-per-node" if per_node else "gres", per_node or gres.removeprefix("gpu:")),
    )
    made = {}
    for total, per, share in shares:
        whole = options.get(total, "")
        if not whole or not share or "," in whole + share:  # several kinds are refused elsewhere
            continue
        said = f"--{total}={whole} with --{per}={options[per]}"
        split = _split_kind if total == "gpus" else lambda text: ("", text)
        count, rest = divmod(_number(split(whole)[1], total), _number(split(share)[1], per))
        if rest:
            raise UsageError(
                f"{said} does not come out even: some node would have less",
                hint="ranks are counted per node: change the one or the other",
            )
        made[said] = count
    return made


# --- tasks and GPUs ---------------------------------------------------------------------------


def _take_tasks(options: dict[str, str], nodes: int) -> int:
    """Return the tasks per node; 0 when the script does not say."""
    per_node, total = options.pop("ntasks-per-node", ""), options.pop("ntasks", "")
    if per_node:
        return _number(per_node, "ntasks-per-node")
    return _share(total, nodes, "ntasks") if total else 0


def _take_gpus(options: dict[str, str], nodes: int, tasks: int) -> dict[str, object]:
    """Take the options that ask for GPUs. Where scripts use two, the one per node decides."""
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
                f"GPUs of several kinds in one job: {text}", hint="ask for one kind of GPU"
            )
        kind, amount = _split_kind(text)
        count = _number(amount, option)
        if option == "gpus":
            count = _share(amount, nodes, option)
        elif option == "gpus-per-task":
            count *= max(1, tasks)
        found |= {"gpus": count, "gpu_option": option, **({"gpu_type": kind} if kind else {})}
    if total and found["gpu_option"] == "gpus-per-node":
        found["gpu_option"] = "gpus"  # together they are how we ask for a total
    if others := [entry for entry in gres if entry not in gpu_gres]:
        options["gres"] = ",".join(others)
    return found


def _split_kind(text: str) -> tuple[str, str]:
    """Take `a100:4`, `4` or `a100` apart: which kind of GPU, and how many."""
    kind, _, amount = text.rpartition(":")
    return (kind, amount) if amount.isdecimal() else (amount, "1")


def _share(text: str, nodes: int, option: str) -> int:
    """Return what each node gets of a total."""
    total = _number(text, option)
    if total % nodes:
        raise UsageError(
            f"--{option}={total} cannot be shared evenly by {nodes} nodes",
            hint="ranks are counted per node: change the one or the other",
        )
    return total // nodes


def _number(text: str, option: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 16 and int(text)):
        raise UsageError(f"--{option}={text} is not a number", hint="write it as a whole number")
    return int(text)
