"""Converts a request to #SBATCH lines, and #SBATCH lines to a request. Pure."""

import re
from itertools import pairwise

from echelon.clusters.slurm.options import (
    directive_lines,
    move_value,
    parse_sbatch,
    split_directive,
)
from echelon.clusters.slurm.shape import take_shape
from echelon.core.slurm import OVER
from echelon.errors import UsageError
from echelon.spec.job_spec import KEYS, JobSpec
from echelon.spec.readers import is_signal

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./&|*\[\]()!~^-]+")

_HOW_TO_SUBMIT = frozenset({"ignore-pbs", "parsable", "quiet", "verbose", "wait"})
"""Options for the behaviour of sbatch itself, not for the job."""
_NO_JOB = frozenset({"help", "test-only", "usage", "version"})
"""Options with which sbatch submits nothing."""

_REQUEUE = {"requeue": "requeue", "never": "no-requeue"}
"""The option for each value of `hand_over` that leaves the decision to Slurm."""


# --- request → lines ------------------------------------------------------------------------


def render_options(spec: JobSpec) -> dict[str, str]:
    """Return the options for sbatch, in the order of the keys that request them."""
    nodes = str(spec.nodes).replace(":", "-")
    computed = {
        "name": {"job-name": spec.job_name},
        "nodes": {
            "nodes": nodes,
            "ntasks-per-node": "" if "-" in nodes else str(spec.tasks_per_node),
        },
        "gpus": _gpu_options(spec),
        # Ours are per rank; the task of a launcher holds all ranks of a node.
        "cpus_per_task": {"cpus-per-task": str(spec.cpus_per_task * spec.ranks_per_task or "")},
        "wait_all_nodes": {"wait-all-nodes": "1" if spec.wait_all_nodes else ""},
        # In the style `echelon`, the controller signals the ranks: the signal from Slurm would
        # kill ranks that do not handle it yet.
        "signal_lead": {"signal": f"USR1@{spec.signal_lead_s}"}
        if spec.signal_lead_s and spec.style != "echelon"
        else {},
        "mail": {"mail-user": spec.mail, "mail-type": OVER} if spec.mail else {},
    }
    options: dict[str, str] = {}
    for key in KEYS.values():
        copied = {key.sbatch: key.show(spec)} if key.sbatch else {}
        values = computed.get(key.name, copied)
        options |= {name: value for name, value in values.items() if value}
    extra = dict(spec.slurm_extra)
    if spec.style == "echelon" and spec.limit_signal:
        extra = {name: value for name, value in extra.items() if not is_signal(name)}
        if spec.limit_signal.reserved:
            # Without it, Slurm would not start the job before a reservation. Only the controller
            # gets the signal, and only records it.
            extra["signal"] = f"RB:USR1@{spec.limit_signal.lead_s}"
    if spec.hand_over in _REQUEUE:  # otherwise the cluster or Echelon decides
        extra[_REQUEUE[spec.hand_over]] = ""
    if "gres" in extra and "gres" in options:
        options["gres"] += f",{extra.pop('gres')}"
    return {**options, **extra}


def _gpu_options(spec: JobSpec) -> dict[str, str]:
    if not spec.gpus:
        return {}
    kind = f"{spec.gpu_type}:" if spec.gpu_type else ""
    amount = {
        "gres": f"gpu:{kind}{spec.gpus}",
        "gpus-per-node": f"{kind}{spec.gpus}",
        "gpus-per-task": f"{kind}{spec.gpus // spec.tasks_per_node}",
        "gpus": f"{kind}{spec.gpus * spec.nodes.high}",
    }
    options = {spec.gpu_option: amount[spec.gpu_option]}
    if spec.gpu_option == "gpus":
        # Slurm may split a total unevenly, such as three GPUs on one node and one on another.
        options["gpus-per-node"] = amount["gpus-per-node"]
    return options


def render_directives(spec: JobSpec) -> str:
    """Return the #SBATCH lines.

    Raises:
        UsageError: a value contains a line break.
    """
    lines = []
    for name, value in render_options(spec).items():
        if "\n" in value:
            raise UsageError(
                f"--{name} has a line break: {value!r}",
                hint="an #SBATCH line cannot contain a line break; choose another value",
            )
        lines.append(f"#SBATCH --{name}={quote(value)}" if value else f"#SBATCH --{name}")
    return "\n".join(lines) + "\n"


def quote(value: str) -> str:
    """Quote a value for an #SBATCH line, which Slurm unquotes differently from bash."""
    if _PLAIN.fullmatch(value):
        return value
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


# --- lines → request ------------------------------------------------------------------------


def parse_directives(script: str) -> dict[str, object]:
    """Return the keys of a request for the #SBATCH lines of a script.

    Raises:
        UsageError: a line that Slurm would reject as well.
    """
    options: dict[str, str] = {}
    lines = [split_directive(line, number) for number, line in directive_lines(script)]
    for before, words in pairwise(lines):
        move_value(before, words)
    for given in map(parse_sbatch, lines):
        options = {name: value for name, value in options.items() if name not in given} | given
    if asked := sorted(_NO_JOB & options.keys()):
        raise UsageError(
            f"with --{asked[0]}, sbatch would not submit a job",
            hint="remove the option; --dry-run shows what would be submitted",
        )
    options = {name: value for name, value in options.items() if name not in _HOW_TO_SUBMIT}
    values = take_shape(options) | _take_hand_over(options)
    if match := re.fullmatch(r"(?:SIG)?USR1@([0-9]{1,9})", options.get("signal", "")):
        values["signal_lead"] = int(match[1])
        del options["signal"]
    values |= {k.name: options.pop(k.sbatch) for k in KEYS.values() if k.sbatch in options}
    if values.get("mem") == "0":  # all the memory of a node: a special value, not an amount
        options["mem"] = str(values.pop("mem"))
    if options:
        values["slurm.extra"] = options
    return values


def _take_hand_over(options: dict[str, str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in [name for name in options if name in _REQUEUE.values()]:  # the last one wins
        del options[name]
        found["hand_over"] = next(mode for mode, option in _REQUEUE.items() if option == name)
    return found
