"""Variables that have no effect; part of E312."""

import difflib
import re
from collections import Counter
from collections.abc import Iterator

from echelon.lint.bash import Assignment
from echelon.lint.facts import sources_others
from echelon.lint.known import OF_PROGRAMS
from echelon.lint.patterns import pattern
from echelon.lint.rule import ADVICE, Hit
from echelon.lint.subject import Subject

_ALIKE = 0.85
_FEW = 3
_LONG_NAME = 12
_PREFIXES = (
    *("NCCL_", "TORCH_", "PYTORCH_", "OMP_", "CUDA_", "HF_", "TOKENIZERS_", "WANDB_", "GLOO_"),
)
_SWITCHES = {
    "NCCL_P2P_DISABLE": (frozenset({"NCCL_P2P_LEVEL"}), "transfers between GPUs"),
    "NCCL_IB_DISABLE": (
        frozenset({"NCCL_IB_HCA", "NCCL_IB_TIMEOUT", "NCCL_IB_GID_INDEX", "NCCL_IB_RETRY_CNT"}),
        "InfiniBand",
    ),
}
_MISSPELT = {
    **dict.fromkeys(("PYTHON_PATH", "PYHTONPATH", "PYTHONPAHT"), "PYTHONPATH"),
    **dict.fromkeys(("OPM_NUM_THREADS", "OMP_NUM_THREAD", "OMP_THREADS"), "OMP_NUM_THREADS"),
    **dict.fromkeys(("CUDA_VISIBLE_DEVICE", "CUDA_VISABLE_DEVICES"), "CUDA_VISIBLE_DEVICES"),
}
_SHORTEST = 4
"""Minimum length of names, because shorter ones are often counters."""
_MOST = 20
"""How many variables are compared with similar names, which takes long."""
_NAME = pattern(r"(?<![\w-])[A-Za-z_]\w*")
_SET = pattern(r"(?m)(?:^|[;&({]|\bthen|\bdo|\belse)[ \t]*([A-Za-z_]\w*)=")
_OF_BASH = pattern(r"PS\d|IFS|OPT\w+|HIST\w+|BASH\w*|TIMEFORMAT|COLUMNS|LINES|PROMPT\w*|_\w*")
_INHERITED = pattern(
    r".*(?:PATH|PROXY|_proxy)|SLURM\w*|LC_\w+|LANG|HOME|USER|SHELL|TERM|DISPLAY|TMPDIR|TMP|TEMP|"
    r"SCRATCH|WORK|CUDA_VISIBLE_DEVICES|CONDA\w*|EDITOR|PWD"
)
"""Variables that may be exported already, so that an assignment changes what programs see."""
_READS_BY_NAME = pattern(
    r"\$\{!|\benvsubst\b|\bdeclare -n|\bset\s+-(?:a|o allexport)|"
    r"\beval\b(?!\s+\"?(?:\$\(|`)[^)`\n]{0,200}(?:hook|activate|init|conda|agent))"
)
_TIMEOUT = pattern(r"(?:TORCH_)?(?:NCCL|GLOO|DIST|DISTRIBUTED|DDP)(?:_\w+)?_TIMEOUT(?:_\w+)?")
_REAL_TIMEOUTS = frozenset(
    {
        *("NCCL_IB_TIMEOUT", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "TORCH_NCCL_DUMP_ON_TIMEOUT"),
        *("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "NCCL_RAS_TIMEOUT_FACTOR"),
        *("TORCH_NCCL_CUDA_EVENT_TIMEOUT", "NCCL_SOCKET_RETRY_TIMEOUT"),
    }
)


def find_unused(subject: Subject) -> Iterator[Hit]:
    """Find variables that the script sets, and that nothing can read."""
    yield from _unknown(subject)
    yield from _contradicted(subject)
    batch = subject.batch
    if batch is None or not subject.started or batch.suspect:
        return
    code = "\n".join(batch.code)
    if sources_others(batch) or _READS_BY_NAME.search(code):
        return
    wanted = batch.names_read - {a.name for a in batch.assignments}  # perhaps misspelt: E314
    mentions, set_times = Counter(_NAME.findall(code)), Counter(_SET.findall(code))
    only_set = {name for name, times in mentions.items() if times == set_times[name]}
    unused = [a for a in batch.assignments if a.name in only_set and _has_no_effect(subject, a)]
    unused = unused[:_MOST]
    unused = [a for a in unused if not difflib.get_close_matches(a.name, wanted, 1, _ALIKE)]
    names = list(dict.fromkeys(a.name for a in unused))
    if 0 < len(names) <= _FEW:  # more are a list to choose from
        listed = " and ".join(f"`{name}`" for name in names)
        have = "has" if len(names) == 1 else "have"
        yield Hit(
            at=unused[0],
            what=f"{listed} {have} no effect: the script neither reads nor exports the value.",
            fix=f"use ${names[0]} in a command, or export it if a program reads it",
            severity=ADVICE,
        )


def _has_no_effect(subject: Subject, assignment: Assignment) -> bool:
    """Tell whether an assignment does nothing if the script does not read the variable."""
    name, value = assignment.name, assignment.value
    if name in subject.exported or len(name) < _SHORTEST or value.commands or value.text == "$!":
        return False
    return not (name in OF_PROGRAMS or _OF_BASH.fullmatch(name) or _INHERITED.fullmatch(name))


def _unknown(subject: Subject) -> Iterator[Hit]:
    """Find variables that look like those of NCCL or PyTorch, such as NCCL_TIMEOUT."""
    code = "\n".join(subject.code)
    pythons = [one for python in subject.pythons for one in (python, *python.modules)]
    told = set[str]()
    for assignment in subject.assignments if subject.is_job else ():
        name = assignment.name
        near = _misspelt(name)
        timeout = _TIMEOUT.fullmatch(name) and name not in _REAL_TIMEOUTS
        if name in told or not (near or timeout):
            continue
        told.add(name)
        if _is_read(code, name) or any(python.mentions(name) for python in pythons):
            continue
        yield Hit(
            at=assignment,
            what=f"Neither NCCL nor PyTorch reads `{name}`. It has no effect unless your program "
            "reads it."
            if not near
            else f"`{name}` has no effect unless your program reads it. `{near}` has a similar "
            "name.",
            fix=near
            or "dist.init_process_group(…, timeout=timedelta(seconds=…))  # in the Python script",
            severity=ADVICE,
        )


def _is_read(code: str, name: str) -> bool:
    """Tell whether a script reads a variable, except for a default as in NAME=${NAME:-1}."""
    default = rf"^\s*(?:export\s+)?{name}=\"?\$\{{{name}:?[-=]"
    handed_on = rf"\b(?:export|unset)\s+{name}\b(?!=)|--export=\S*"
    rest = re.sub(f"{default}|{handed_on}", "", code, flags=re.MULTILINE)
    return bool(re.search(rf"\b{name}\b(?!\+?=)", rest))


def _contradicted(subject: Subject) -> Iterator[Hit]:
    """Find variables of NCCL that another one switches off."""
    certain = [a for a in subject.assignments if a.certain] if subject.is_job else []
    set_to = {a.name: a for a in certain if len(subject.assigned(a.name)) == 1}
    for switch, (others, what) in _SWITCHES.items():
        off = set_to.get(switch)
        for name in sorted(others & set_to.keys() if off and off.value.text == "1" else set()):
            yield Hit(
                at=set_to[name],
                what=f"`{name}` has no effect, because `{switch}=1` switches {what} off.",
                fix=f"remove `{switch}` or `{name}`",
                severity=ADVICE,
            )


def _misspelt(name: str) -> str:
    """Return the variable of a program that differs in one letter; empty if there is none."""
    if name in _MISSPELT:
        return _MISSPELT[name]
    if len(name) < _LONG_NAME or name in OF_PROGRAMS or not name.startswith(_PREFIXES):
        return ""
    near = difflib.get_close_matches(name, OF_PROGRAMS, n=1, cutoff=0.94)
    one_more = near and abs(len(near[0]) - len(name)) == 1
    return near[0] if one_more and _prefix(near[0]) == _prefix(name) else ""


def _prefix(name: str) -> str:
    return name.partition("_")[0]
