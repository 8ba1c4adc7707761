"""E114: directives that contradict each other."""

import re
from collections.abc import Iterator

from echelon.core.units import counted
from echelon.lint.files import Place
from echelon.lint.request import count_gpus, count_gres_gpus, list_gres_gpus
from echelon.lint.rule import ERROR, Hit, rule
from echelon.lint.script import Script

_EXCLUSIVE = [
    {"mem", "mem-per-cpu", "mem-per-gpu"},
    {"cpus-per-task", "cpus-per-gpu"},
    {"ntasks-per-gpu", "gpus-per-task"},
    {"ntasks-per-gpu", "ntasks-per-node"},
]
_FIRST_REFUSING = (26, 5)
"""The first version that rejects two options for the GPUs of a node."""


@rule("E114", ERROR)
def contradicting(script: Script) -> Iterator[Hit]:
    """Contradictory resource request.

    Some options exclude each other, such as `--mem` and `--mem-per-cpu`. A total, such as `--gpus`,
    must match the number of nodes and the amount per node.

    Example:
         #!/bin/bash
         #SBATCH --nodes=2
         #SBATCH --gpus-per-node=4
        -#SBATCH --gpus=4    # <- here
        +#SBATCH --gpus=8
         srun hostname
    """
    if not script.directives.several:
        yield from (
            Hit(at=Place(script.path, line), what=what, fix=fix)
            for line, what, fix in (*_excluding(script), *_totals(script), *_types(script))
        )


def _excluding(script: Script) -> Iterator[tuple[int, str, str]]:
    for group in _EXCLUSIVE:
        given = [item for item in script.directives.items if item.option in group]
        if len({item.option for item in given}) > 1:
            both = " and ".join(f"`--{one}`" for one in sorted({item.option for item in given}))
            what = f"{both} are mutually exclusive. sbatch rejects the script."
            yield given[-1].line, what, "remove one of them"
    each, gres = script.directives.last("gpus-per-node"), script.directives.last("gres")
    if each and gres and list_gres_gpus(gres.value):
        version = script.slurm_version()
        if version is not None and version >= _FIRST_REFUSING:
            what = "This version of Slurm rejects `--gres=gpu` together with `--gpus-per-node`."
            yield gres.line, what, f"remove --gres={gres.value}"


def _totals(script: Script) -> Iterator[tuple[int, str, str]]:
    last = script.directives.last
    nodes = script.job.nodes if last("nodes") else None
    total, each = last("ntasks"), last("ntasks-per-node")
    numbers = [int(i.value) for i in (total, each) if i and re.fullmatch(r"[0-9]{1,9}", i.value)]
    if nodes and total and each and len(numbers) > 1 and numbers[0] > nodes * numbers[1]:
        most = nodes * numbers[1]
        what = f"`--ntasks={total.value}` contradicts `--nodes={nodes}` and "
        what += f"`--ntasks-per-node={each.value}`, which allow at most {most}."
        yield total.line, what, f"#SBATCH --ntasks={most}  # or remove the line"
    gpus, gres, total = last("gpus-per-node"), last("gres"), last("gpus")
    per_node = count_gpus(gpus.value) if gpus else None
    by_gres = count_gres_gpus(gres.value) if gres else None
    if gpus and per_node and by_gres and per_node != by_gres:
        what = f"The numbers of GPUs per node differ: {by_gres} in `--gres`, {per_node} in "
        yield gpus.line, what + "`--gpus-per-node`.", "remove one of them"
    per_node = per_node or by_gres
    amount = count_gpus(total.value) if total else None
    if total and amount and per_node and nodes and amount != per_node * nodes:
        what = f"`--gpus={total.value}` contradicts `--nodes={nodes}` with "
        what += f"{counted(per_node, 'GPU')} per node, {per_node * nodes} in total."
        yield total.line, what, f"#SBATCH --gpus={per_node * nodes}  # or remove the line"


def _types(script: Script) -> Iterator[tuple[int, str, str]]:
    """Find GPUs that one option requests with their type, and another one without."""
    typed = {}
    for option in ("gpus", "gpus-per-node", "gres"):
        item = script.directives.last(option)
        entries = list_gres_gpus(item.value) if item and option == "gres" else []
        entries = [f"gpu:{item.value}"] if item and option != "gres" else entries
        if item and len(entries) == 1 and "," not in entries[0] and "$" not in entries[0]:
            typed[bool(re.search(r":[A-Za-z]", entries[0]))] = item
    if len(typed) > 1:
        first, second = sorted(typed.values(), key=lambda item: item.line)
        what = f"`--{first.option}={first.value}` (line {first.line}) and "
        what += f"`--{second.option}={second.value}` request GPUs with and without their type. "
        yield second.line, what + "sbatch rejects the script.", "remove one of them"
