"""A first project file, from what is known of the cluster, this machine and the folder. Pure.

What can be guessed is guessed, each value with its reason; what cannot is a question with a
default, so that nobody has to be asked.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from echelon.clusters.survey import NodeKind, Partition, Survey
from echelon.core.units import format_duration, parse_duration
from echelon.errors import UsageError

_LONGEST_S = 24 * 3600
"""A longer job waits longer, and a run goes on in the next one anyway."""
_MARGIN = 34
"""Where comments begin, unless a value needs more room."""
_NAMED = 8
"""How many names a comment lists."""
_USUAL = ("train.py", "main.py", "run.py")
"""What training scripts are called, the likelier first."""
_HEADER = """\
# What `echelon submit`, `run` and `script` ask for in this folder; written by `echelon init`.
# Flags are stronger: echelon submit --nodes 2. What counts, and why: echelon config
"""
_EXAMPLES_HEADER = "# Some others, as examples; `echelon config --all` lists every key.\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The one that we are on."""

    cpus: int
    gpus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Where the ranks' Python is."""

    key: str
    """venv or conda."""
    value: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known before anybody is asked."""

    machine: Machine
    survey: Survey | None = None
    """The cluster; None where there is none, or none that answers."""
    scripts: tuple[str, ...] = ()
    """Files of the folder that look as if they were started to train."""
    environment: Environment | None = None
    decided: Mapping[str, str] = field(default_factory=dict)
    """Keys that the user's own settings have decided already, and their values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What only the user knows."""

    key: str
    text: str
    choices: tuple[str, ...]
    default: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A line of the file."""

    key: str
    value: int | str
    why: str

    @property
    def code(self) -> str:
        """As TOML has it."""
        return f"{self.key} = {json.dumps(self.value, ensure_ascii=False)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    settings: tuple[Setting, ...]
    examples: tuple[Setting, ...]
    """Keys that are left as they are, to show how they are written."""


def looks_like_training(name: str, text: str) -> bool:
    """Tell whether a Python file is one that is started to train, and no part of one."""
    if name.startswith(("_", "test_", "setup.", "conftest.")):
        return False
    trains = any(word in text for word in ("torch", "lightning", "accelerate", "transformers"))
    started = "__main__" in text or name.startswith(
        ("train", "main", "run", "pretrain", "finetune")
    )
    return trains and started


# --- what to ask ----------------------------------------------------------------------------


def list_questions(facts: Facts) -> list[Question]:
    """Return what cannot be guessed."""
    found = []
    if len(facts.scripts) > 1:
        likely = sorted(facts.scripts, key=_likelihood)
        found.append(_question("script", "Which script trains?", likely))
    if facts.survey:
        default = _default_partition(facts.survey)
        candidates = _candidates(facts.survey)
        if default not in candidates and len(candidates) > 1:
            names = [one.name for one in candidates]
            found.append(_question("partition", "Which partition?", names))
        member = facts.survey.membership
        if len(member.accounts) > 1 and not member.account:
            found.append(_question("account", "Which account pays?", member.accounts))
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


# --- what to write --------------------------------------------------------------------------


def propose(facts: Facts, answers: Mapping[str, str]) -> Proposal:
    """Return the file's lines, with `answers` to the questions by key."""
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
    """Return where jobs will go; None without a cluster, or where that is not one partition."""
    if facts.survey is None:
        return None
    if name := facts.decided.get("partition") or answers.get("partition"):
        return next((one for one in facts.survey.partitions if one.name == name), None)
    default, candidates = _default_partition(facts.survey), _candidates(facts.survey)
    return default if default in candidates else next(iter(candidates), None)


def _script(facts: Facts, answers: Mapping[str, str]) -> list[Setting]:
    if "script" in answers:
        others = [name for name in facts.scripts if name != answers["script"]]
        why = f"chosen; also here: {_list(others)}"
        return [Setting(key="script", value=answers["script"], why=why)]
    why = "the one file here that looks like training"
    return [Setting(key="script", value=name, why=why) for name in facts.scripts[:1]]


def _place(facts: Facts, partition: Partition | None, answers: Mapping[str, str]) -> list[Setting]:
    """Return the partition and the account, where they are not what Slurm would take anyway."""
    found = []
    if partition and not partition.default:
        why = "Slurm has no default here"
        default = _default_partition(facts.survey) if facts.survey else None
        if default:
            why = f"{default.name}, the default, has no GPUs"
        found.append(Setting(key="partition", value=partition.name, why=why))
    if "account" in answers:
        accounts = facts.survey.membership.accounts if facts.survey else ()
        why = f"who pays; yours are: {_list(accounts)}"
        found.append(Setting(key="account", value=answers["account"], why=why))
    return found


def _amounts(facts: Facts, partition: Partition | None) -> list[Setting]:
    """Return GPUs, CPUs and time: a whole node of the partition, or this machine."""
    found = []
    if kind := _choose_kind(facts, partition):
        found.append(Setting(key="gpus", value=kind.gpus, why=_describe(kind, partition)))
        if kind.cpus >= kind.gpus and "cpus_per_gpu" not in facts.decided:
            share = f"per rank: the {kind.cpus} CPUs of a node, shared by {kind.gpus} ranks"
            found.append(Setting(key="cpus_per_task", value=kind.cpus // kind.gpus, why=share))
    if partition and (limit := _time(partition)):
        found.append(limit)
    return found


def _choose_kind(facts: Facts, partition: Partition | None) -> NodeKind | None:
    """Return the nodes to count on; None where none with GPUs is known."""
    if partition:
        return partition.gpu_kind
    if facts.survey or not facts.machine.gpus:
        return None
    return NodeKind(count=1, cpus=facts.machine.cpus, gpus=facts.machine.gpus)


def _describe(kind: NodeKind, partition: Partition | None) -> str:
    if partition is None:
        return "per node: as many as this machine has"
    nodes = f"{kind.count} node{'' if kind.count == 1 else 's'}"
    return f"per node: {partition.name} has {nodes} with {kind.gpus} {kind.gpu_type or 'GPUs'}"


def _time(partition: Partition) -> Setting | None:
    """Return how long to ask for; None where the partition sets no limit at all."""
    longest, usual = _seconds(partition.limit), _seconds(partition.usual)
    if longest is None and usual is None:
        return None
    asked = min(longest or _LONGEST_S, _LONGEST_S)
    why = f"{partition.name} allows {partition.limit}"
    if usual is not None:
        why += f", and gives {partition.usual} when not asked"
    if longest is None or longest > asked:
        why += "; shorter jobs start sooner, and a run goes on in the next one"
    return Setting(key="time", value=format_duration(asked), why=why)


def _seconds(text: str) -> int | None:
    try:
        return parse_duration(text)
    except UsageError:
        return None  # n/a, or a form that we do not know


def _environment(facts: Facts) -> list[Setting]:
    chosen = facts.environment
    if chosen is None or facts.decided.keys() & {"python", "venv", "conda"}:
        return []
    return [Setting(key=chosen.key, value=chosen.value, why=chosen.why)]


def _examples(facts: Facts, partition: Partition | None) -> list[Setting]:
    survey = facts.survey or Survey()
    member = survey.membership
    names = [one.name for one in survey.partitions]
    there = f"there are: {_list(names)}" if names else "Slurm's default when left out"
    yours = f"; yours are: {_list(member.accounts)}" if member.accounts else ""
    qos = f"; yours are: {_list(member.qos)}" if member.qos else ""
    cpus = max((kind.cpus for kind in partition.kinds), default=0) if partition else 0
    room = f"; a node has {cpus} CPUs" if cpus else ""
    rows: list[tuple[str, int | str, str]] = [
        ("script", "train.py", "then `echelon submit` needs no name"),
        ("nodes", 2, 'or "2:4": two will do, and four are better'),
        ("gpus", 4, "per node"),
        ("procs", 2, f"ranks per node, one per GPU when left out{room}"),
        ("time", "2h", "a job's limit; a run goes on in the next job"),
        ("mem", "64G", "per node"),
        ("partition", partition.name if partition else "gpu", there),
        ("account", member.account or "my-project", f"who pays{yours}"),
        ("qos", (*member.qos, "normal")[0], f"quality of service{qos}"),
        ("venv", ".venv", "environment of the ranks; or conda, or modules"),
        ("mail", "me@example.org", "who gets mail when a run is over"),
    ]
    return [Setting(key=key, value=value, why=why) for key, value, why in rows]


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


# --- text -----------------------------------------------------------------------------------


def render_settings(settings: Sequence[Setting], prefix: str = "") -> str:
    """Return lines of TOML, each with its reason."""
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
    """Return a text as a comment can hold it, whatever a cluster calls its things."""
    return "".join(one if one.isprintable() else "?" for one in text)


def next_commands(facts: Facts, proposal: Proposal) -> list[tuple[str, str]]:
    """Return what to type next, and what it does."""
    named = any(one.key == "script" for one in proposal.settings) or "script" in facts.decided
    script = "" if named else " train.py"
    if facts.survey:
        return [
            (f"echelon submit --dry-run{script}", "checks it, and shows the job's script"),
            (f"echelon submit --follow{script}", "queues it, and shows its output"),
        ]
    return [
        (f"echelon run{script}", "here and now"),
        (f"echelon script{script}", "what a cluster would get"),
    ]
