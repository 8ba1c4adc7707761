"""The options of sbatch whose values have a form: one table, tried with sbatch itself."""

import difflib
from collections.abc import Callable

from echelon.clusters.slurm.options import SBATCH
from echelon.core.frozen import frozen
from echelon.core.units import parse_memory
from echelon.errors import UsageError
from echelon.lint.patterns import pattern
from echelon.lint.request import Directive, is_slurm_time

_EVENT = pattern(
    r"(?i)NONE|BEGIN|END|FAIL|REQUEUE|ALL|INVALID_DEPEND|STAGE_OUT|TIME_LIMIT(?:_[985]0)?|"
    r"ARRAY_TASKS"
)
_SIGNAL = pattern(
    r"(?i)(?:[RB]{1,2}:)?(?:\d+|(?:SIG)?(?:HUP|INT|QUIT|ABRT|KILL|ALRM|TERM|CHLD|USR1|USR2|PIPE|"
    r"URG|CONT|STOP|TSTP|TTIN|TTOU|XCPU))(?:@(\d*))?"
)
_LATEST_S = 65535
"""The most seconds before the time limit at which Slurm can send a signal."""
_NODES = pattern(r"(?i)-?\d+[km]?(?:-\d+[km]?)?|[\d:,-]*\d[,:][\d:,-]*")
"""A number, a range, or a list, which newer versions of Slurm accept."""
_INDEX = pattern(r"(\d+)(?:-(\d+)?(?::\d+)?)?")
_NO_GRES = pattern(r"\d+|gpus?\d+|GPUS?(?::.*)?|:.*|gpus:.*|gpu:\d+:[A-Za-z]\w*")
"""Resources that --gres cannot mean."""
_NO_GPUS = pattern(r"[A-Za-z]\w*:(?:\D.*)?|:.*")


@frozen
class Form:
    """What values of an option look like."""

    fits: Callable[[str], object]
    words: str
    example: str


def _is_memory(value: str) -> bool:
    try:
        parse_memory(value)
    except UsageError:
        return False
    return True


def _is_number_of_nodes(value: str) -> bool:
    low, _, high = value.partition("-")
    backwards = low.isdecimal() and high.isdecimal() and int(high) < int(low)
    return bool(_NODES.fullmatch(value)) and not backwards


def _is_array(value: str) -> bool:
    """Tell whether a value lists indices; Slurm ignores what follows a percent sign."""
    for part in value.partition("%")[0].strip("[]").split(","):
        found = _INDEX.fullmatch(part)
        if part and (not found or (found[2] and int(found[2]) < int(found[1]))):
            return False
    return True


def _is_signal(value: str) -> bool:
    found = _SIGNAL.fullmatch(value)
    return found is not None and int(found[1] or 0) <= _LATEST_S


def _has_event(value: str) -> bool:
    """Tell whether a value has a valid event; sbatch ignores the others without a message."""
    return any(_EVENT.fullmatch(event) for event in value.split(",") if event)


def _is_gres(value: str) -> bool:
    return not any(map(_NO_GRES.fullmatch, value.split(",")))


def _one_of(*words: str) -> Form:
    listed = f"{', '.join(words[:-1])} or {words[-1]}"
    return Form(fits=lambda value: value.lower() in words, words=listed, example=words[0])


_TIME = Form(fits=is_slurm_time, words="days-hours:minutes:seconds", example="2-12:00:00")
_MEMORY = Form(fits=_is_memory, words="a whole number with K, M, G or T", example="64G")
_COUNT = Form(
    fits=pattern(r"0*[1-9][0-9]*").fullmatch, words="a whole number of at least 1", example="4"
)
_GPUS = Form(
    fits=lambda value: not _NO_GPUS.fullmatch(value), words="NUMBER or TYPE:NUMBER", example="4"
)
_COUNTED = (
    *("ntasks", "ntasks-per-node", "ntasks-per-core", "ntasks-per-socket", "ntasks-per-gpu"),
    *("cpus-per-task", "cpus-per-gpu", "mincpus", "threads-per-core", "cores-per-socket"),
    "sockets-per-node",
)
FORMS = {
    **dict.fromkeys(("time", "time-min"), _TIME),
    **dict.fromkeys(("mem", "mem-per-cpu", "mem-per-gpu", "tmp"), _MEMORY),
    **dict.fromkeys(_COUNTED, _COUNT),
    **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"), _GPUS),
    "nodes": Form(fits=_is_number_of_nodes, words="a number or a range such as 2-4", example="2"),
    "array": Form(fits=_is_array, words="a list of indices", example="0-9"),
    "signal": Form(fits=_is_signal, words="SIGNAL@SECONDS", example="B:USR1@120"),
    "mail-type": Form(fits=_has_event, words="a list of events", example="END,FAIL"),
    "gres": Form(fits=_is_gres, words="NAME:NUMBER or NAME:TYPE:NUMBER", example="gpu:1"),
    "open-mode": Form(
        fits=pattern(r"(?i)[at].*").fullmatch, words="append or truncate", example="append"
    ),
    "distribution": Form(
        fits=pattern(r"(?i)plane=\d+|(?:[*:]|block|cyclic|arbitrary).*|(?:no)?pack").fullmatch,
        words="block, cyclic, arbitrary, plane=SIZE, pack or nopack",
        example="block",
    ),
    "exclusive": _one_of("user", "mcs", "topo", "exclusive", "oversubscribe", "allocation"),
    "hint": _one_of("nomultithread", "multithread", "compute_bound", "memory_bound", "help"),
    "kill-on-invalid-dep": _one_of("yes", "no"),
    "wait-all-nodes": _one_of("1", "0"),
}
"""By the long name of the option."""
NEVER_EMPTY = frozenset(
    {
        *("nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "cpus-per-gpu"),
        *("mem", "mem-per-cpu", "mem-per-gpu", "time", "time-min", "gres", "partition"),
        *("nodelist", "mail-type", "distribution", "begin", "open-mode", "hint", "signal"),
    }
)
"""Options whose empty value sbatch 22.05 rejects; it ignores other empty options."""


# --- directives ---

UNIT = pattern(r"(?i)(\d+)\s?([KMGT])(?:o|i?B)")
_FREE = frozenset({"job-name", "output", "error", "comment", "account", "qos", "wckey", "input"})
"""Options that accept a value with an equals sign in front."""


def problem_of(item: Directive, line: str) -> tuple[str, str] | None:
    """Return what is wrong with a directive, and a valid one; None if it may be valid."""
    option, value = item.option, item.value
    form = FORMS.get(option)
    if option not in SBATCH.known:
        near = nearest_option(option)
        right = f"--{near}={value}" if value else f"--{near}"
        return (f"sbatch has no option `--{option}`", right) if near else None
    if not value:
        missing = option in NEVER_EMPTY if "=" in line else option in SBATCH.valued
        return ("The option has no value", f"--{option}=…") if missing else None
    if value.startswith("=") and option not in _FREE:
        return f"The equals sign is part of the value '{value}'", f"--{option}={value[1:]}"
    if option in SBATCH.switches:
        return "The option takes no value", f"--{option}"
    if form is None or form.fits(value):
        return None
    example = f"--{option}" if option in SBATCH.optional else f"--{option}={form.example}"
    if unit := UNIT.fullmatch(value):
        example = f"--{option}={unit[1]}{unit[2].upper()}"
    return f"'{value}' is not a valid value of `--{option}` ({form.words})", example


def nearest_option(name: str) -> str:
    dashed = name.replace("_", "-").lower()
    found = difflib.get_close_matches(dashed, sorted(SBATCH.known), n=1, cutoff=0.8)
    return dashed if dashed in SBATCH.known else found[0] if found else ""
