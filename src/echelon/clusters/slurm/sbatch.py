"""A request as #SBATCH lines, and #SBATCH lines as a request. Pure.

Reading follows Slurm's own reader: which lines it looks at, how it splits and unquotes them.
"""

import re
from collections import deque
from collections.abc import Iterator, Sequence

from echelon.clusters.slurm.shape import take_shape
from echelon.core.slurm import OVER
from echelon.core.units import format_memory
from echelon.errors import UsageError
from echelon.spec.job_spec import JobSpec
from echelon.spec.readers import is_signal

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./&|*\[\]()!~^-]+")

_SHORT = {
    "J": "job-name",
    "p": "partition",
    "A": "account",
    "q": "qos",
    "C": "constraint",
    "w": "nodelist",
    "x": "exclude",
    "d": "dependency",
    "N": "nodes",
    "n": "ntasks",
    "c": "cpus-per-task",
    "t": "time",
    "D": "chdir",
    "o": "output",
    "e": "error",
    "G": "gpus",
    "a": "array",
    "b": "begin",
    "i": "input",
    "L": "licenses",
    "M": "clusters",
    "B": "extra-node-info",
    "F": "nodefile",
    "k": "no-kill",
    "H": "hold",
    "s": "oversubscribe",
    "O": "overcommit",
    "S": "core-spec",
    "m": "distribution",
    "W": "wait",
    "Q": "quiet",
    "v": "verbose",
    "V": "version",
    "h": "help",
}
_ALIASES = {"tasks-per-node": "ntasks-per-node", "workdir": "chdir"}

# sbatch's options as 22.05 has them, for what they are short for and whether they take a value.
_SWITCHES = frozenset(
    {
        *("contiguous", "help", "hold", "ignore-pbs", "no-requeue", "overcommit"),
        *("oversubscribe", "parsable", "quiet", "reboot", "requeue", "spread-job", "test-only"),
        *("usage", "use-min-nodes", "verbose", "version", "wait"),
    }
)
"""Options without a value."""
_OPTIONAL = frozenset({"exclusive", "get-user-env", "nice", "no-kill", "propagate"})
"""Options with a value behind = or none."""
_VALUED = frozenset(
    {
        *("account", "acctg-freq", "array", "batch", "bb", "bbf", "begin", "chdir", "cluster"),
        *("cluster-constraint", "clusters", "comment", "constraint", "container", "context"),
        *("core-spec", "cores-per-socket", "cpu-freq", "cpus-per-gpu", "cpus-per-task"),
        *("deadline", "delay-boot", "dependency", "distribution", "error", "exclude", "export"),
        *("export-file", "extra-node-info", "gid", "gpu-bind", "gpu-freq", "gpus"),
        *("gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres", "gres-flags", "hint"),
        *("input", "job-name", "kill-on-invalid-dep", "licenses", "mail-type", "mail-user"),
        *("mcs-label", "mem", "mem-bind", "mem-per-cpu", "mem-per-gpu", "mincpus", "network"),
        *("nodefile", "nodelist", "nodes", "ntasks", "ntasks-per-core", "ntasks-per-gpu"),
        *("ntasks-per-node", "ntasks-per-socket", "ntasks-per-tres", "open-mode", "output"),
        *("partition", "power", "prefer", "priority", "profile", "qos", "reservation", "signal"),
        *("sockets-per-node", "switches", "tasks-per-node", "thread-spec", "threads-per-core"),
        *("time", "time-min", "tmp", "uid", "wait-all-nodes", "wckey", "wrap"),
        "extra",  # 23.02's, and no longer short for extra-node-info
    }
)

KNOWN_OPTIONS = _SWITCHES | _OPTIONAL | _VALUED

_HOW_TO_SUBMIT = frozenset({"ignore-pbs", "parsable", "quiet", "verbose", "wait"})
"""Say how sbatch itself should behave, not what the job should be like."""
_NO_JOB = frozenset({"help", "test-only", "usage", "version"})

_REQUEUE = {"requeue": "requeue", "never": "no-requeue"}
"""What `hand_over` asks of Slurm's own way to go on with a job."""

# Option ⇄ key of the request, where the value is the same text on both sides.
_TEXT_OPTIONS = {
    "job-name": "name",
    "partition": "partition",
    "account": "account",
    "qos": "qos",
    "constraint": "constraint",
    "nodelist": "nodelist",
    "exclude": "exclude",
    "dependency": "dependency",
    "cpus-per-gpu": "cpus_per_gpu",
    "mem": "mem",
    "mem-per-cpu": "mem_per_cpu",
    "mem-per-gpu": "mem_per_gpu",
    "time": "time",
    "chdir": "chdir",
    "output": "output",
    "mail-user": "mail_user",
    "mail-type": "mail_type",
}


# --- request → lines ------------------------------------------------------------------------


def render_options(spec: JobSpec) -> dict[str, str]:
    """Return sbatch's options, in the order in which a person would write them."""
    nodes = str(spec.nodes).replace(":", "-")
    options = {
        "job-name": spec.job_name,
        "partition": spec.partition,
        "account": spec.account,
        "qos": spec.qos,
        "nodes": nodes,
        "ntasks-per-node": str(spec.tasks_per_node) if spec.nodes.low == spec.nodes.high else "",
        **_gpu_options(spec),
        # Ours are per rank; a launcher's task holds all ranks of its node.
        "cpus-per-task": str(spec.cpus_per_task * spec.ranks_per_task or ""),
        "cpus-per-gpu": str(spec.cpus_per_gpu or ""),
        "mem": format_memory(spec.mem_mib) if spec.mem_mib else "",
        "mem-per-cpu": format_memory(spec.mem_per_cpu_mib) if spec.mem_per_cpu_mib else "",
        "mem-per-gpu": format_memory(spec.mem_per_gpu_mib) if spec.mem_per_gpu_mib else "",
        "time": spec.time,
        "constraint": spec.constraint,
        "nodelist": spec.nodelist,
        "exclude": spec.exclude,
        "dependency": spec.dependency,
        "chdir": spec.chdir,
        "output": spec.output,
        "mail-user": spec.mail or spec.mail_user,
        "mail-type": OVER if spec.mail else ",".join(spec.mail_type),
        "wait-all-nodes": "1" if spec.wait_all_nodes else "",
        # The style `echelon` tells its ranks itself: Slurm would kill those that do not listen yet.
        "signal": f"USR1@{spec.signal_lead_s}"
        if spec.signal_lead_s and spec.style != "echelon"
        else "",
    }
    options = {name: value for name, value in options.items() if value}
    extra = dict(spec.slurm_extra)
    if spec.style == "echelon" and spec.limit_signal:
        extra = {name: value for name, value in extra.items() if not is_signal(name)}
        if spec.limit_signal.reserved:
            # Without it Slurm would not start the job before a reservation. It goes to the
            # controller alone, which only notes it.
            extra["signal"] = f"RB:USR1@{spec.limit_signal.lead_s}"
    if spec.hand_over in _REQUEUE:  # else it is the cluster's habit, or ours
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
        # A total alone may be granted as three on one node and one on the other.
        options["gpus-per-node"] = amount["gpus-per-node"]
    return options


def render_directives(spec: JobSpec) -> str:
    """Return the #SBATCH lines.

    Raises:
        UsageError: a value with a line break, which no line can hold.
    """
    lines = []
    for name, value in render_options(spec).items():
        if "\n" in value:
            raise UsageError(
                f"--{name} has a line break in it: {value!r}",
                hint="an #SBATCH line cannot hold one; choose another value",
            )
        lines.append(f"#SBATCH --{name}={quote(value)}" if value else f"#SBATCH --{name}")
    return "\n".join(lines) + "\n"


def quote(value: str) -> str:
    """Return a value as Slurm's own reader of #SBATCH lines takes it apart: not as bash does."""
    if _PLAIN.fullmatch(value):
        return value
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


# --- lines → request ------------------------------------------------------------------------


def directives(script: str) -> Iterator[list[str]]:
    """Yield the words of each #SBATCH line that Slurm reads: those before the first command."""
    for number, line in enumerate(script.split("\n"), start=1):
        if line.startswith("#SBATCH"):
            yield split_directive(line.removeprefix("#SBATCH"), number)
        elif line.strip() and not line.lstrip().startswith("#"):
            return


def split_directive(line: str, number: int) -> list[str]:
    """Split as Slurm does: quotes of both kinds, a backslash, and # for a comment between words.

    Raises:
        UsageError: a quote is not closed.
    """
    words: list[str] = []
    word: list[str] | None = None
    quoting = ""
    characters = iter(line)
    for character in characters:
        if character == "\\" and quoting != "'":
            word = _grow(word, next(characters, ""))
        elif quoting:
            if character == quoting:
                quoting = ""
            else:
                word = _grow(word, character)
        elif character in "\"'":
            quoting, word = character, _grow(word, "")
        elif character.isspace():
            if word is not None:
                words.append("".join(word))
            word = None
        elif character == "#" and word is None:
            break
        else:
            word = _grow(word, character)
    if quoting:
        raise UsageError(f"line {number}: the quote {quoting} is not closed", hint=f"#SBATCH{line}")
    return words if word is None else [*words, "".join(word)]


def _grow(word: list[str] | None, character: str) -> list[str]:
    """Add to a word in place: a value may be megabytes long."""
    word = [] if word is None else word
    word.append(character)
    return word


def parse_options(words: Sequence[str]) -> dict[str, str]:
    """Return option → value from the words of a line: `--mem=1G`, `--mem 1G`, `-N2`, `-N 2`."""
    options: dict[str, str] = {}
    rest = deque(part for word in words for part in _split_switches(word))
    while rest:
        word = rest.popleft()
        if word == "--":  # the end of the options: nothing may follow
            continue
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = _complete(name)
        elif word.startswith("-") and word[1:2] in _SHORT:
            name, value = _SHORT[word[1]], word[2:]
            equals = value
        else:
            raise UsageError(f"'{word}' is not an sbatch option", hint="options begin with - or --")
        name = _ALIASES.get(name, name)
        alone = name in _SWITCHES | _OPTIONAL
        if not equals and not alone and rest and not rest[0].startswith("-"):
            value = rest.popleft()
        options.pop(name, None)  # in the order in which they count
        options[name] = value
    return options


def _split_switches(word: str) -> Iterator[str]:
    """Take switches in one word apart: -HQ is -H -Q."""
    at = 1
    if word.startswith("-") and not word.startswith("--"):
        while at + 1 < len(word) and _SHORT.get(word[at]) in _SWITCHES:
            yield f"-{word[at]}"
            at += 1
    yield f"-{word[at:]}" if at > 1 else word


def _complete(name: str) -> str:
    """Return the option that a name is, or is the one beginning of, as getopt_long has it.

    Others are left as they are: a newer Slurm or a plugin may know them.
    """
    found = sorted(option for option in KNOWN_OPTIONS if option.startswith(name))
    if name in KNOWN_OPTIONS or not found:
        return name
    if len(found) > 1:
        raise UsageError(
            f"--{name} may be any of {', '.join(f'--{option}' for option in found)}",
            hint="write more of it",
        )
    return found[0]


def parse_directives(script: str) -> dict[str, object]:
    """Return the keys of a request that a script's #SBATCH lines stand for.

    Raises:
        UsageError: a line that Slurm would not take either.
    """
    options: dict[str, str] = {}
    for words in directives(script):
        given = parse_options(words)
        options = {name: value for name, value in options.items() if name not in given} | given
    if asked := sorted(_NO_JOB & options.keys()):
        raise UsageError(
            f"with --{asked[0]} in it sbatch would queue nothing",
            hint="take it out; --dry-run shows what would be queued",
        )
    options = {name: value for name, value in options.items() if name not in _HOW_TO_SUBMIT}
    values: dict[str, object] = {
        key: options.pop(name) for name, key in _TEXT_OPTIONS.items() if name in options
    }
    values |= _take_hand_over(options)
    if "wait-all-nodes" in options:
        values["wait_all_nodes"] = options.pop("wait-all-nodes")
    if match := re.fullmatch(r"(?:SIG)?USR1@([0-9]{1,9})", options.get("signal", "")):
        values["signal_lead"] = int(match[1])
        del options["signal"]
    if values.get("mem") == "0":  # all that a node has: a word of Slurm's, not an amount
        options["mem"] = str(values.pop("mem"))
    values |= take_shape(options)
    if options:
        values["slurm.extra"] = options
    return values


def _take_hand_over(options: dict[str, str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in [name for name in options if name in _REQUEUE.values()]:  # the last one counts
        del options[name]
        found["hand_over"] = next(mode for mode, option in _REQUEUE.items() if option == name)
    return found
