"""E114: directives that contradict each other."""

import re
from collections.abc import Iterator

from echelon.lint.files import Place
from echelon.lint.request import list_gres_gpus
from echelon.lint.rule import ERROR, Hit, rule
from echelon.lint.script import Script

_EXCLUSIVE = [
    {"mem", "mem-per-cpu", "mem-per-gpu"},
    {"cpus-per-task", "cpus-per-gpu"},
    {"ntasks-per-gpu", "gpus-per-task"},
    {"ntasks-per-gpu", "ntasks-per-node"},
]


@rule("E114", ERROR)
def contradicting(script: Script) -> Iterator[Hit]:
    """Contradictory resource request.

    Some options exclude each other, such as `--mem` and `--mem-per-cpu`. sbatch also rejects GPUs
    that one option requests with their type, and another one without.

    Example:
         #!/bin/bash
         #SBATCH --mem=16G
        -#SBATCH --mem-per-cpu=4G    # <- here
         srun hostname
    """
    if not script.directives.several:
        yield from (
            Hit(at=Place(script.path, line), what=what, fix=fix)
            for line, what, fix in (*_excluding(script), *_types(script))
        )


def _excluding(script: Script) -> Iterator[tuple[int, str, str]]:
    for group in _EXCLUSIVE:
        given = [item for item in script.directives.items if item.option in group]
        if len({item.option for item in given}) > 1:
            both = " and ".join(f"`--{one}`" for one in sorted({item.option for item in given}))
            what = f"{both} are mutually exclusive. sbatch rejects the script."
            yield given[-1].line, what, "remove one of them"


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
