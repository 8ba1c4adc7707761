"""Propose a first project file from facts about the cluster, machine and directory. Pure.

Each proposed value has a reason. A value that cannot be determined becomes a question with a
default, so that the command also works without a terminal.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import field

from echelon.clusters.slurm.survey import NodeKind, Partition, Survey
from echelon.core.frozen import frozen
from echelon.core.units import counted, format_duration, list_names, parse_duration
from echelon.errors import UsageError

_LONGEST_S = 24 * 3600
"""Longest proposed time limit. Longer jobs wait longer, and a run continues in the next job."""
_MARGIN = 34
"""Column at which comments start, unless a value is longer."""
_USUAL = ("train.py", "main.py", "run.py")
"""Usual names of training scripts, most likely first."""
_HEADER = """\
# Defaults for `echelon submit`, `run` and `script` in this directory; written by `echelon init`.
# Flags override them: echelon submit --nodes 2. `echelon config` shows each value and its source.
"""
_EXAMPLES_HEADER = "# Other keys, as examples; `echelon config --all` lists every key.\n"


@frozen
class Machine:
    """The machine on which the command runs."""

    cpus: int
    gpus: int = 0


@frozen
class Environment:
    """The ranks' Python environment."""

    key: str
    """venv or conda."""
    value: str
    why: str


@frozen
class Facts:
    """What is known before asking the user."""

    machine: Machine
    survey: Survey | None = None
    """The cluster; None if there is none, or if it does not respond."""
    scripts: tuple[str, ...] = ()
    """Files in the directory that look like training scripts."""
    environment: Environment | None = None
    decided: Mapping[str, str] = field(default_factory=dict)
    """Keys and values that the user's own settings already define."""


@frozen
class Question:
    """A question to the user."""

    key: str
    text: str
    choices: tuple[str, ...]
    default: str


@frozen
class Setting:
    """A line of the file."""

    key: str
    value: int | str
    why: str

    @property
    def code(self) -> str:
        """The line in TOML."""
        return f"{self.key} = {json.dumps(self.value, ensure_ascii=False)}"


@frozen
class Proposal:
    """The contents of a project file."""

    settings: tuple[Setting, ...]
    examples: tuple[Setting, ...]
    """Keys shown in comments, as examples."""


def looks_like_training(name: str, text: str) -> bool:
    """Tell whether a Python file looks like a training script, not like a module of one."""
    if name.startswith(("_", "test_", "setup.", "conftest.")):
        return False
    trains = any(word in text for word in ("torch", "lightning", "accelerate", "transformers"))
    started = "__main__" in text or name.startswith(
        ("train", "main", "run", "pretrain", "finetune")
    )
    return trains and started


# --- questions ------------------------------------------------------------------------------


def list_questions(facts: Facts) -> list[Question]:
    """Return questions for what the facts do not determine."""
    found = []
    if len(facts.scripts) > 1:
        likely = sorted(facts.scripts, key=_likelihood)
        found.append(_question("script", "Which training script?", likely))
    if facts.survey:
        default = _default_partition(facts.survey)
        candidates = _candidates(facts.survey)
        if default not in candidates and len(candidates) > 1:
            names = [one.name for one in candidates]
            found.append(_question("partition", "Which partition?", names))
        member = facts.survey.membership
        if len(member.accounts) > 1 and not member.account:
            found.append(_question("account", "Which account to charge?", member.accounts))
    return [one for one in found if one.key not in facts.decided]


def _question(key: str, text: str, choices: Sequence[str]) -> Question:
    return Question(key=key, text=text, choices=tuple(choices), default=choices[0])


def _likelihood(name: str) -> tuple[int, str]:
    known = _USUAL.index(name) if name in _USUAL else len(_USUAL) + (not name.startswith("train"))
    return known, name


def _default_partition(survey: Survey) -> Partition | None:
    return next((one for one in survey.partitions if one.default), None)


def _candidates(survey: Survey) -> list[Partition]:
    """Return the partitions to train on: those with GPUs, most nodes first; else all."""
    with_gpus = [one for one in survey.partitions if one.gpu_kind]
    return sorted(with_gpus, key=_size, reverse=True) or list(survey.partitions)


def _size(partition: Partition) -> int:
    return partition.gpu_kind.count if partition.gpu_kind else 0


# --- settings -------------------------------------------------------------------------------


def propose(facts: Facts, answers: Mapping[str, str]) -> Proposal:
    """Return the file's settings, given the `answers` by key."""
    partition = _choose_partition(facts, answers)
    settings = [
        *_script(facts, answers),
        *_place(facts, partition, answers),
        *_amounts(facts, partition),
        *_environment(facts),
    ]
    settings = [one for one in settings if one.key not in facts.decided]
    written = {*facts.decided, *(one.key for one in settings)}
    examples = [one for one in _examples(facts, partition) if one.key not in written]
    return Proposal(settings=tuple(settings), examples=tuple(examples))


def _choose_partition(facts: Facts, answers: Mapping[str, str]) -> Partition | None:
    """Return the partition for jobs; None without a cluster, or if the partition is down."""
    if facts.survey is None:
        return None
    if name := facts.decided.get("partition") or answers.get("partition"):
        return next((one for one in facts.survey.partitions if one.name == name), None)
    default, candidates = _default_partition(facts.survey), _candidates(facts.survey)
    return default if default in candidates else next(iter(candidates), None)


def _script(facts: Facts, answers: Mapping[str, str]) -> list[Setting]:
    if "script" in answers:
        others = [name for name in facts.scripts if name != answers["script"]]
        why = f"other candidates: {list_names(others)}"
        return [Setting(key="script", value=answers["script"], why=why)]
    why = "the only training script found in this directory"
    return [Setting(key="script", value=name, why=why) for name in facts.scripts[:1]]


def _place(facts: Facts, partition: Partition | None, answers: Mapping[str, str]) -> list[Setting]:
    """Return the partition and the account, unless they are Slurm's defaults."""
    found = []
    if partition and not partition.default:
        why = "the cluster has no default partition"
        default = _default_partition(facts.survey) if facts.survey else None
        if default:
            why = f"the default partition, {default.name}, has no GPUs"
        found.append(Setting(key="partition", value=partition.name, why=why))
    if "account" in answers:
        accounts = facts.survey.membership.accounts if facts.survey else ()
        why = f"your accounts: {list_names(accounts)}"
        found.append(Setting(key="account", value=answers["account"], why=why))
    return found


def _amounts(facts: Facts, partition: Partition | None) -> list[Setting]:
    """Return GPUs, CPUs and time: all of a node of the partition, or all of this machine."""
    found = []
    if kind := _choose_kind(facts, partition):
        found.append(Setting(key="gpus", value=kind.gpus, why=_describe(kind, partition)))
        if kind.cpus >= kind.gpus and "cpus_per_gpu" not in facts.decided:
            share = f"per rank: {kind.cpus} CPUs per node, {counted(kind.gpus, 'rank')}"
            found.append(Setting(key="cpus_per_task", value=kind.cpus // kind.gpus, why=share))
    if partition and (limit := _time(partition)):
        found.append(limit)
    return found


def _choose_kind(facts: Facts, partition: Partition | None) -> NodeKind | None:
    """Return the node type to request; None if no node with GPUs is known."""
    if partition:
        return partition.gpu_kind
    if facts.survey or not facts.machine.gpus:
        return None
    return NodeKind(count=1, cpus=facts.machine.cpus, gpus=facts.machine.gpus)


def _describe(kind: NodeKind, partition: Partition | None) -> str:
    if partition is None:
        return "per node: this machine's GPUs"
    nodes, gpus = counted(kind.count, "node"), f"{kind.gpus} {kind.gpu_type or 'GPUs'}"
    return f"per node: {partition.name} has {nodes} with {gpus}"


def _time(partition: Partition) -> Setting | None:
    """Return the time limit to request; None if the partition has no limit."""
    longest, usual = _seconds(partition.limit), _seconds(partition.usual)
    if longest is None and usual is None:
        return None
    asked = min(longest or _LONGEST_S, _LONGEST_S)
    why = f"the limit of {partition.name} is {partition.limit}"
    if usual is not None:
        why += f", its default {partition.usual}"
    if longest is None or longest > asked:
        why += "; shorter jobs start sooner, and a run continues in the next job"
    return Setting(key="time", value=format_duration(asked), why=why)


def _seconds(text: str) -> int | None:
    try:
        return parse_duration(text)
    except UsageError:
        return None  # n/a, or an unknown format


def _environment(facts: Facts) -> list[Setting]:
    chosen = facts.environment
    if chosen is None or facts.decided.keys() & {"python", "venv", "conda"}:
        return []
    return [Setting(key=chosen.key, value=chosen.value, why=chosen.why)]


def _examples(facts: Facts, partition: Partition | None) -> list[Setting]:
    survey = facts.survey or Survey()
    member = survey.membership
    names = [one.name for one in survey.partitions]
    there = f"available: {list_names(names)}" if names else "default: Slurm's default partition"
    yours = f"; yours: {list_names(member.accounts)}" if member.accounts else ""
    qos = f"; yours: {list_names(member.qos)}" if member.qos else ""
    cpus = max((kind.cpus for kind in partition.kinds), default=0) if partition else 0
    room = f"; a node has {cpus} CPUs" if cpus else ""
    rows: list[tuple[str, int | str, str]] = [
        ("script", "train.py", "default script of `echelon submit`"),
        ("nodes", 2, 'or "2:4": at least two, preferably four'),
        ("gpus", 4, "per node"),
        ("procs", 2, f"ranks per node; default: one per GPU{room}"),
        ("time", "2h", "time limit of a job; a run continues in the next job"),
        ("mem", "64G", "per node"),
        ("partition", partition.name if partition else "gpu", there),
        ("account", member.account or "my-project", f"account to charge{yours}"),
        ("qos", (*member.qos, "normal")[0], f"quality of service{qos}"),
        ("venv", ".venv", "the ranks' environment; or conda, or modules"),
        ("mail", "me@example.org", "address to notify when a run ends"),
    ]
    return [Setting(key=key, value=value, why=why) for key, value, why in rows]


# --- text -----------------------------------------------------------------------------------


def render_settings(settings: Sequence[Setting], prefix: str = "") -> str:
    """Return lines of TOML, each with its reason as a comment."""
    lines = [
        f"{prefix}{one.code}".ljust(_MARGIN - 2) + f"  # {_plain(one.why)}" for one in settings
    ]
    return "".join(f"{line}\n" for line in lines)


def render_file(proposal: Proposal) -> str:
    """Return the project file."""
    parts = [_HEADER]
    if proposal.settings:
        parts.append(render_settings(proposal.settings))
    parts.append(_EXAMPLES_HEADER + render_settings(proposal.examples, "# "))
    return "\n".join(parts)


def _plain(text: str) -> str:
    """Return a text that is safe in a comment, whatever names a cluster uses."""
    return "".join(one if one.isprintable() else "?" for one in text)


def next_commands(facts: Facts, proposal: Proposal) -> list[tuple[str, str]]:
    """Return the commands to run next, and what they do."""
    named = any(one.key == "script" for one in proposal.settings) or "script" in facts.decided
    script = "" if named else " SCRIPT.py"
    if facts.survey:
        return [
            (f"echelon submit --dry-run{script}", "check the request and print the job script"),
            (f"echelon submit --follow{script}", "submit it and follow its output"),
        ]
    return [
        (f"echelon run{script}", "run it on this machine"),
        (f"echelon script{script}", "print the job script for a cluster"),
    ]
