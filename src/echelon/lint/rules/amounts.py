"""E111 to E115, E117 and E119: invalid, contradictory or missing resource requests."""

import re
from collections.abc import Iterator

from echelon.core.nodes import expand
from echelon.core.units import counted, parse_memory
from echelon.errors import UsageError
from echelon.lint.edits import Edit, replace_group
from echelon.lint.facts import slurm_version
from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.request import (
    Directive,
    count_gpus,
    count_gres_gpus,
    is_slurm_time,
    list_gres_gpus,
)
from echelon.lint.rule import ADVICE, ERROR, WARNING, Hit, Rule, Severity
from echelon.lint.rules.placeholders import is_placeholder
from echelon.lint.subject import Subject

_FEW_MIB = 256
"""Less than `import torch` needs."""
_LIKE_HOURS = frozenset({"4", "6", "8", "12", "24", "36", "48", "72", "96"})
"""Numbers that are common as hours."""
_FIRST_CHOOSING = (23, 2)
"""The first version of Slurm that chooses from a list of nodes."""
_EXCLUSIVE = [
    {"mem", "mem-per-cpu", "mem-per-gpu"},
    {"cpus-per-task", "cpus-per-gpu"},
    {"ntasks-per-gpu", "gpus-per-task"},
    {"ntasks-per-gpu", "ntasks-per-node"},
]
_PLAIN = pattern(r"[0-9]{1,9}")
_NODES = pattern(r"(?i)-?\d+[km]?(?:-\d+[km]?)?|[\d:,-]*\d[,:][\d:,-]*")
"""A number, a range, or a list, which newer versions of Slurm accept."""
_NUMBERS = (
    *("ntasks", "ntasks-per-node", "ntasks-per-core", "ntasks-per-socket", "ntasks-per-gpu"),
    *("cpus-per-task", "cpus-per-gpu", "mincpus", "threads-per-core", "cores-per-socket"),
    "sockets-per-node",
)
_ASKED_TWICE = (
    "From Slurm 26.05 on, {program} rejects `--gres=gpu` together with `--gpus-per-node`."
)


def find_bad_memory(subject: Subject) -> Iterator[Hit]:
    for item in _given(subject, "mem", "mem-per-cpu", "mem-per-gpu", "tmp"):
        try:
            parse_memory(item.value)
        except UsageError:
            number = re.match(r"\d+", item.value)
            unit = re.search(r"[KMGT]", item.value.upper())
            better = f"{number[0]}{unit[0] if unit else 'G'}" if number else "64G"
            yield Hit(
                at=Place(subject.path, item.line),
                what=f"'{item.value}' is not a valid memory size. sbatch rejects the script.",
                fix=f"#SBATCH --{item.option}={better}",
                edits=_plain_unit(subject, item),
            )
            continue
        few = _PLAIN.fullmatch(item.value) and 0 < int(item.value) <= _FEW_MIB
        if few and item.option == "mem" and subject.started:
            yield Hit(
                at=Place(subject.path, item.line),
                what=f"Without a unit, the size is in MiB. {item.value} MiB is too little for most "
                "Python programs.",
                fix=f"#SBATCH --mem={item.value}G",
                severity=WARNING,
            )


def _plain_unit(subject: Subject, item: Directive) -> tuple[Edit, ...]:
    """Return the edit that shortens a unit such as Go or GiB to its letter."""
    size = re.fullmatch(r"(\d+)\s?([KMGT])(?:o|i?B)", item.value, re.IGNORECASE)
    found = re.search(
        rf"(?<=[=\s]){re.escape(item.value)}", subject.text.split("\n")[item.line - 1]
    )
    return (replace_group(item.line, found, f"{size[1]}{size[2]}"),) if size and found else ()


def find_bad_time(subject: Subject) -> Iterator[Hit]:
    for item in _given(subject, "time", "time-min"):
        if not is_slurm_time(item.value):
            yield Hit(
                at=Place(subject.path, item.line),
                what=f"'{item.value}' is not a valid time limit. sbatch rejects the script.",
                fix=f"#SBATCH --{item.option}={_likely_time(item.value)}  "
                "# days-hours:minutes:seconds",
            )
        elif item.option == "time" and item.value in _LIKE_HOURS:
            yield Hit(
                at=Place(subject.path, item.line),
                what=f"A plain number is in minutes. The job ends after {item.value} minutes.",
                fix=f"#SBATCH --time={item.value}:00:00  # if these are hours",
                severity=ADVICE,
            )


def _likely_time(value: str) -> str:
    """Return the time limit that a value such as 24h or 2d probably means."""
    if found := re.fullmatch(r"(\d{1,4}) ?([hd])\w*", value, re.IGNORECASE):
        return f"{found[1]}:00:00" if found[2].lower() == "h" else f"{found[1]}-00:00:00"
    digits = value.rstrip(":,;hms ")
    return digits if is_slurm_time(digits) else "2-12:00:00"


def find_bad_numbers(subject: Subject) -> Iterator[Hit]:
    for item in _given(subject, "nodes"):
        low, _, high = item.value.partition("-")
        inverted = _PLAIN.fullmatch(low) and _PLAIN.fullmatch(high) and int(high) < int(low)
        if inverted or not _NODES.fullmatch(item.value):
            yield Hit(
                at=Place(subject.path, item.line),
                what=f"'{item.value}' is not a valid number of nodes. sbatch rejects the script.",
                fix="#SBATCH --nodes=2  # or a range: --nodes=2-4",
                severity=_of_token(subject, item.value),
            )
    for item in _given(subject, *_NUMBERS):
        if not re.fullmatch(r"[0-9]+", item.value) or not item.value.strip("0"):
            yield Hit(
                at=Place(subject.path, item.line),
                what=f"'{item.value}' is not a valid number for `--{item.option}`. sbatch rejects "
                "the script.",
                fix=f"#SBATCH --{item.option}=4",
                severity=_of_token(subject, item.value),
            )
    yield from _bad_step_numbers(subject)


def _of_token(subject: Subject, value: str) -> Severity | None:
    """Return a lower severity for a word that the script repeats: a program may replace it."""
    word = re.fullmatch(r"[A-Za-z_]+", value)
    return WARNING if word and len(re.findall(rf"\b{value}\b", subject.text)) > 1 else None


def _bad_step_numbers(subject: Subject) -> Iterator[Hit]:
    for command, options, _ in subject.sruns:
        for name in ("ntasks", "ntasks-per-node", "cpus-per-task", "nodes"):
            word = options.get(name)
            if word is None or not word.known or not re.match(r"[A-Za-z]", word.text):
                continue
            mpi = name == "ntasks" and word.text == "p"
            yield Hit(
                at=Place(command.path, word.line or command.line),
                what=f"'{word.text}' is not a valid number for `--{name}`. srun fails immediately.",
                fix="srun -n 4  # -np is an option of mpirun" if mpi else f"--{name}=4",
                severity=None if mpi else _of_token(subject, word.text),
            )


def _given(subject: Subject, *options: str) -> list[Directive]:
    """Return the given options, except missing values, variables and placeholders.

    These have their own rules, as has an equals sign at the start.
    """
    given = (i for i in subject.directives.items if i.option in options and i.value.strip("="))
    plain = (i for i in given if "$" not in i.value and not i.value.startswith("="))
    return [item for item in plain if not is_placeholder(item)]


def find_contradictions(subject: Subject) -> Iterator[Hit]:
    directives, path = subject.directives, subject.path
    if directives.several:
        return
    for group in _EXCLUSIVE:
        given = [item for item in directives.items if item.option in group]
        if len({item.option for item in given}) > 1:
            both = " and ".join(
                f"`--{option}`" for option in sorted({item.option for item in given})
            )
            what = f"{both} are mutually exclusive. sbatch rejects the script."
            yield Hit(at=Place(path, given[-1].line), what=what, fix="remove one of them")
    nodes = subject.job.nodes if directives.last("nodes") else None
    total, each = directives.last("ntasks"), directives.last("ntasks-per-node")
    if nodes and total and each and all(map(_PLAIN.fullmatch, (total.value, each.value))):
        most = nodes * int(each.value)
        if int(total.value) > most:
            what = (
                f"`--ntasks={total.value}` contradicts `--nodes={nodes}` and "
                f"`--ntasks-per-node={each.value}`, which allow at most {most}."
            )
            fix = f"#SBATCH --ntasks={most}  # or remove the line"
            yield Hit(at=Place(path, total.line), what=what, fix=fix)
    yield from _too_many_names(subject)
    yield from _contradicting_gpus(subject, nodes)
    yield from _mixed_types(subject)
    yield from _without_counterpart(subject)


def _mixed_types(subject: Subject) -> Iterator[Hit]:
    """Find GPUs that one option requests with their type, and another one without."""
    found: dict[bool, Directive] = {}
    for item in _given(subject, "gpus", "gpus-per-node", "gres"):
        entries = list_gres_gpus(item.value) if item.option == "gres" else [f"gpu:{item.value}"]
        typed = {bool(re.search(r":[A-Za-z]", entry)) for entry in entries}
        if len(typed) == 1 and "," not in item.value:
            found[typed.pop()] = item
    if len(found) > 1 and found[True].option != found[False].option:
        first, last = sorted(found.values(), key=lambda item: item.line)
        yield Hit(
            at=Place(subject.path, last.line),
            what=f"`--{first.option}={first.value}` (line {first.line}) and "
            f"`--{last.option}={last.value}` request GPUs with and without their type. sbatch "
            "rejects the script.",
            fix=f"remove line {first.line} or this line",
        )


def _without_counterpart(subject: Subject) -> Iterator[Hit]:
    """Find amounts per task or per GPU in a script that requests neither tasks nor GPUs."""
    given = {item.option for item in subject.directives.items}
    per_task = subject.directives.last("gpus-per-task")
    if per_task and not given & {"gpus", "ntasks", "nodes", "ntasks-per-node"}:
        yield Hit(
            at=Place(subject.path, per_task.line),
            what="`--gpus-per-task` needs a number of tasks. sbatch rejects the script unless the "
            "command line has one.",
            fix="#SBATCH --ntasks=1",
            severity=WARNING,
        )
    per_gpu = subject.directives.last("mem-per-gpu") or subject.directives.last("cpus-per-gpu")
    if per_gpu and not any(o in ("gres", "tres-per-task") or o.startswith("gpus") for o in given):
        yield Hit(
            at=Place(subject.path, per_gpu.line),
            what=f"`--{per_gpu.option}` needs GPUs, and the script requests none. sbatch "
            + ("" if per_gpu.option == "mem-per-gpu" else "of version 23.02 or newer ")
            + "rejects it unless the command line does.",
            fix="#SBATCH --gpus-per-node=…",
            severity=WARNING,
        )


def _too_many_names(subject: Subject) -> Iterator[Hit]:
    """Find a list of nodes that is longer than --nodes allows."""
    asked = next(iter(_given(subject, "nodes")[-1:]), None)
    named = next(iter(_given(subject, "nodelist")[-1:]), None)
    most = asked.value.rpartition("-")[2] if asked else ""
    if named is None or not _PLAIN.fullmatch(most):
        return
    try:
        count = len(set(expand(named.value)))
    except UsageError:
        return
    version = slurm_version(subject.programs) if count > int(most) else _FIRST_CHOOSING
    if version is None or version < _FIRST_CHOOSING:
        yield Hit(
            at=Place(subject.path, named.line),
            what=f"`--nodelist` names {count} nodes, but `--nodes` allows {most}. Before version "
            "23.02, sbatch rejects the script; newer versions choose some of the nodes.",
            fix="name the nodes that the job must not use in --exclude, or use --constraint",
            severity=ADVICE if version is None else None,
        )


def _contradicting_gpus(subject: Subject, nodes: int | None) -> Iterator[Hit]:
    directives = subject.directives
    each, gres, total = (directives.last(o) for o in ("gpus-per-node", "gres", "gpus"))
    per_node = count_gpus(each.value) if each else None
    by_gres = count_gres_gpus(gres.value) if gres else None
    if each and per_node and by_gres and per_node != by_gres:
        yield Hit(
            at=Place(subject.path, each.line),
            what=f"The numbers of GPUs per node differ: {by_gres} in `--gres`, {per_node} in "
            "`--gpus-per-node`.",
            fix=f"remove either --gres (line {gres.line if gres else 0}) or --gpus-per-node",
        )
    amount = count_gpus(total.value) if total else None
    per_node = per_node or by_gres
    if total and amount and per_node and nodes and amount != per_node * nodes:
        yield Hit(
            at=Place(subject.path, total.line),
            what=f"`--gpus={total.value}` contradicts `--nodes={nodes}` with "
            f"{counted(per_node, 'GPU')} per node, {per_node * nodes} in total.",
            fix=f"#SBATCH --gpus={per_node * nodes}  # or remove the line",
        )


def find_gpus_asked_twice(subject: Subject) -> Iterator[Hit]:
    if subject.directives.several:
        return
    each, gres = (subject.directives.last(option) for option in ("gpus-per-node", "gres"))
    if each and gres and (gpus := list_gres_gpus(gres.value)):
        counts = {count_gpus(each.value), count_gres_gpus(gres.value)}
        others = [entry for entry in gres.value.split(",") if entry not in gpus]
        if None in counts or len(counts) == 1:  # contradicting numbers have their own rule
            yield Hit(
                at=Place(subject.path, gres.line),
                what=_ASKED_TWICE.format(program="sbatch"),
                fix=f"#SBATCH --gres={','.join(others)}"
                if others
                else f"remove --gres={gres.value}",
            )
    for command, options, _ in subject.sruns:
        step = options.get("gres")
        if step and list_gres_gpus(step.text) and (each or "gpus-per-node" in options):
            yield Hit(
                at=Place(command.path, step.line or command.line),
                what=_ASKED_TWICE.format(program="srun"),
                fix="--gpus-per-node=…  # for the step too",
            )


def find_uneven_gpus(subject: Subject) -> Iterator[Hit]:
    given, nodes = subject.directives.last("gpus"), subject.job.nodes
    total = count_gpus(given.value) if given else None
    if given and total and nodes and nodes > 1 and total % nodes:
        yield Hit(
            at=Place(subject.path, given.line),
            what=f"`--gpus={given.value}` is not divisible by {nodes} nodes, so ranks and GPUs do "
            "not match on some nodes.",
            fix=f"#SBATCH --gpus-per-node={max(1, total // nodes)}  # instead of --gpus",
        )


def find_no_time(subject: Subject) -> Iterator[Hit]:
    directives = subject.directives
    if not subject.started or directives.several or not directives.items:
        return
    large = subject.job.gpus_per_node != 0 or subject.job.several_nodes
    if large and directives.last("time") is None:
        yield Hit(
            at=Place(subject.path, directives.items[0].line),
            what="The job has no time limit of its own. It gets the partition's default, which can "
            "be too short, or so long that the job waits for it.",
            fix="#SBATCH --time=1-00:00:00  # days-hours:minutes:seconds",
        )


RULES = (
    Rule(
        code="E111",
        title="invalid memory size",
        severity=ERROR,
        check=find_bad_memory,
        why="A memory size is a whole number with an optional suffix K, M, G or T. Since version "
        "20.11, Slurm rejects anything after the suffix.",
        example="""\
 #!/bin/bash
-#SBATCH --mem=16Go    # <- here
+#SBATCH --mem=16G
 python train.py
""",
    ),
    Rule(
        code="E112",
        title="invalid time limit",
        severity=ERROR,
        check=find_bad_time,
        why="Valid formats are minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM and D-HH:MM:SS.",
        example="""\
 #!/bin/bash
-#SBATCH --time=2h    # <- here
+#SBATCH --time=02:00:00
 python train.py
""",
    ),
    Rule(
        code="E113",
        title="invalid number of tasks, CPUs or nodes",
        severity=ERROR,
        check=find_bad_numbers,
        why="Numbers of tasks and CPUs must be whole numbers of at least 1.",
        example="""\
 #!/bin/bash
-#SBATCH --ntasks-per-node=four    # <- here
+#SBATCH --ntasks-per-node=4
 srun hostname
""",
    ),
    Rule(
        code="E114",
        title="contradictory resource request",
        severity=ERROR,
        check=find_contradictions,
        why="Some options exclude each other, such as `--mem` and `--mem-per-cpu`. A total, such "
        "as `--gpus`, must match the number of nodes and the amount per node.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=2
 #SBATCH --gpus-per-node=4
-#SBATCH --gpus=4    # <- here
+#SBATCH --gpus=8
 srun hostname
""",
    ),
    Rule(
        code="E115",
        title="number of GPUs not divisible by the number of nodes",
        severity=WARNING,
        check=find_uneven_gpus,
        why="Launchers start the same number of ranks on every node.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=2
-#SBATCH --gpus=5    # <- here
+#SBATCH --gpus-per-node=2
 srun hostname
""",
    ),
    Rule(
        code="E117",
        title="GPUs requested with both `--gres` and `--gpus-per-node`",
        severity=ADVICE,
        check=find_gpus_asked_twice,
        why="Both options request GPUs per node. Older versions of Slurm accept them together if "
        "the numbers agree; Slurm 26.05 rejects them. A step inherits `--gpus-per-node` from its "
        "job. Only `--gpus-per-node` sets `SLURM_GPUS_PER_NODE`.",
        example="""\
 #!/bin/bash
-#SBATCH --gres=gpu:4    # <- here
 #SBATCH --gpus-per-node=4
 srun python train.py
""",
    ),
    Rule(
        code="E119",
        title="no time limit",
        severity=ADVICE,
        check=find_no_time,
        why="Each partition has a default time limit. On some clusters it is minutes. A shorter "
        "limit than the default lets Slurm start the job earlier.",
        example="""\
 #!/bin/bash
 #SBATCH --gpus=1    # <- here
+#SBATCH --time=04:00:00
 python train.py
""",
    ),
)
