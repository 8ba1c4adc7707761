"""The command-line options of sbatch and srun: their names, and how words become options. Pure.

Parsing follows Slurm: which #SBATCH lines it reads, how it splits and unquotes them, and how
getopt_long finds an option's name and value.
"""

from collections.abc import Iterator, Mapping, Sequence

from echelon.core.frozen import frozen
from echelon.errors import UsageError

_ALIASES = {"tasks-per-node": "ntasks-per-node", "workdir": "chdir", "cpu_bind": "cpu-bind"}

_PLUGIN_SWITCHES = frozenset(
    {
        *("container-entrypoint", "container-mount-home", "container-readonly"),
        *("container-remap-root", "container-writable", "no-container-entrypoint"),
        *("no-container-mount-home", "no-container-remap-root"),
    }
)
_PLUGIN_VALUED = frozenset(
    {
        *("container-env", "container-image", "container-mounts", "container-name"),
        *("container-save", "container-workdir", "environment", "jobid", "tmpdir", "uenv", "view"),
    }
)
"""Options of common plugins, mainly for containers."""
_ONLY_IN_FULL = _PLUGIN_SWITCHES | _PLUGIN_VALUED
_ONLY_IN_FULL |= {"consolidate-segments", "container-id", "container-type", "external"}
_ONLY_IN_FULL |= {"mem-update", "oom-kill-step", "resources", "resv-ports", "segment"}
_ONLY_IN_FULL |= {"spread-segments", "stepmgr", "tres-bind", "tres-per-task", "x11"}
_ONLY_IN_FULL |= {"async", "external-launcher", "ignore-signals", "wait-for-children"}
"""Options that Slurm 22.05 or a cluster may not have. They do not make abbreviations ambiguous."""


@frozen
class OptionTable:
    """The options of a program."""

    short: Mapping[str, str]
    """The long name for each letter."""
    switches: frozenset[str]
    """Options without a value."""
    optional: frozenset[str]
    """Options whose value can be omitted; it follows = or the letter, not a space."""
    valued: frozenset[str]
    """Options that require a value."""

    @property
    def known(self) -> frozenset[str]:
        return self.switches | self.optional | self.valued

    def candidates(self, name: str) -> list[str]:
        """Return the options that a name stands for: itself, or those that it abbreviates."""
        if name in self.known:
            return [name]
        names = self.known - _ONLY_IN_FULL
        return sorted(option for option in names if option.startswith(name))


SBATCH = OptionTable(
    short={
        "A": "account",
        "B": "extra-node-info",
        "C": "constraint",
        "D": "chdir",
        "F": "nodefile",
        "G": "gpus",
        "H": "hold",
        "J": "job-name",
        "L": "licenses",
        "M": "clusters",
        "N": "nodes",
        "O": "overcommit",
        "Q": "quiet",
        "S": "core-spec",
        "V": "version",
        "W": "wait",
        "a": "array",
        "b": "begin",
        "c": "cpus-per-task",
        "d": "dependency",
        "e": "error",
        "h": "help",
        "i": "input",
        "k": "no-kill",
        "m": "distribution",
        "n": "ntasks",
        "o": "output",
        "p": "partition",
        "q": "qos",
        "s": "oversubscribe",
        "t": "time",
        "v": "verbose",
        "w": "nodelist",
        "x": "exclude",
    },
    switches=_PLUGIN_SWITCHES
    | {
        *("consolidate-segments", "contiguous", "external", "help", "hold", "ignore-pbs"),
        *("no-requeue", "overcommit", "oversubscribe", "parsable", "quiet", "reboot", "requeue"),
        *("spread-job", "spread-segments", "stepmgr", "test-only", "usage", "use-min-nodes"),
        *("verbose", "version", "wait"),
    },
    optional=frozenset(
        {
            *("exclusive", "get-user-env", "nice", "no-kill", "oom-kill-step", "propagate"),
            *("resv-ports", "x11"),
        }
    ),
    valued=_PLUGIN_VALUED
    | {
        *("account", "acctg-freq", "array", "batch", "bb", "bbf", "begin", "chdir", "cluster"),
        *("cluster-constraint", "clusters", "comment", "constraint", "container", "container-id"),
        *("container-type", "context"),
        *("core-spec", "cores-per-socket", "cpu-freq", "cpus-per-gpu", "cpus-per-task"),
        *("deadline", "delay-boot", "dependency", "distribution", "error", "exclude", "export"),
        *("export-file", "extra", "extra-node-info", "gid", "gpu-bind", "gpu-freq", "gpus"),
        *("gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres", "gres-flags", "hint"),
        *("input", "job-name", "kill-on-invalid-dep", "licenses", "mail-type", "mail-user"),
        *("mcs-label", "mem", "mem-bind", "mem-per-cpu", "mem-per-gpu", "mem-update", "mincpus"),
        "network",
        *("nodefile", "nodelist", "nodes", "ntasks", "ntasks-per-core", "ntasks-per-gpu"),
        *("ntasks-per-node", "ntasks-per-socket", "ntasks-per-tres", "open-mode", "output"),
        *("partition", "power", "prefer", "priority", "profile", "qos", "reservation"),
        *("resources", "segment"),
        *("signal", "sockets-per-node", "switches", "tasks-per-node", "thread-spec"),
        *("threads-per-core", "time", "time-min", "tmp", "tres-bind", "tres-per-task", "uid"),
        *("wait-all-nodes", "wckey", "wrap"),
    },
)

SRUN = OptionTable(
    short={
        **SBATCH.short,
        "E": "preserve-env",
        "I": "immediate",
        "K": "kill-on-bad-exit",
        "T": "threads",
        "X": "disable-status",
        "Z": "no-allocate",
        "l": "label",
        "r": "relative",
        "u": "unbuffered",
    },
    switches=SBATCH.switches - {"wait"}
    | {
        *("async", "debugger-test", "disable-status", "exact", "external-launcher", "interactive"),
        *("label", "multi-prog", "no-allocate", "overlap", "preserve-env", "pty"),
        *("quit-on-interrupt", "send-libs", "unbuffered", "wait-for-children", "whole"),
    },
    optional=SBATCH.optional | {"bcast", "compress", "immediate", "kill-on-bad-exit"},
    valued=SBATCH.valued
    | {
        *("accel-bind", "bcast-exclude", "cpu-bind", "cpu_bind", "epilog", "het-group"),
        *("ignore-signals", "launch-cmd", "launcher-opts", "mem_bind", "mpi", "msg-timeout"),
        *("pack-group", "prolog"),
        *("relative", "slurmd-debug", "task-epilog", "task-prolog", "threads", "treewidth"),
        "wait",
    },
)


@frozen
class Option:
    """An option as it was given."""

    name: str
    """The long name; the word with its dash if it begins with an unknown letter."""
    value: str
    at: int
    """The index of the word with the value, or of the option if it has none."""


def parse_options(words: Sequence[str], table: OptionTable) -> tuple[list[Option], int]:
    """Parse `--mem=1G`, `--mem 1G`, `-N2`, `-N 2` and `-lu` up to the first other word.

    Unknown and ambiguous names are kept: a newer Slurm or a plugin may have such an option.

    Returns:
        The options in the order given, and the index of the first word after them.
    """
    found: list[Option] = []
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        word = words[at]
        if word == "--":
            return found, at + 1
        if word.startswith("--"):
            name, attached, value = word[2:].partition("=")
            candidates = table.candidates(name)
            name = candidates[0] if len(candidates) == 1 else name
        else:
            letter = 1
            while letter + 1 < len(word) and table.short.get(word[letter]) in table.switches:
                found.append(Option(name=table.short[word[letter]], value="", at=at))
                letter += 1
            name = table.short.get(word[letter], f"-{word[letter:]}")
            attached = value = word[letter + 1 :]
        name = _ALIASES.get(name, name)
        if not attached and _takes_next(name, words[at + 1 : at + 2], table):
            at += 1
            value = words[at]
        found.append(Option(name=name, value=value, at=at))
        at += 1
    return found, at


def _takes_next(name: str, following: Sequence[str], table: OptionTable) -> bool:
    """Tell whether the next word is the value of an option."""
    if not following or name in table.switches | table.optional:
        return False
    return name in table.valued or not following[0].startswith("-")


def parse_sbatch(words: Sequence[str]) -> dict[str, str]:
    """Return the values of sbatch's options by name. The last value of an option counts.

    Raises:
        UsageError: a word that is not an option, or an ambiguous abbreviation.
    """
    given, end = parse_options(words, SBATCH)
    others = [option.name for option in given if option.name.startswith("-")] + [*words[end:]]
    if others:
        raise UsageError(
            f"'{others[0]}' is not an sbatch option", hint="options begin with - or --"
        )
    options: dict[str, str] = {}
    for option in given:
        if option.name not in SBATCH.known and (found := SBATCH.candidates(option.name)):
            raise UsageError(
                f"--{option.name} is ambiguous: {', '.join(f'--{name}' for name in found)}",
                hint="write the option in full",
            )
        options.pop(option.name, None)  # keep the order of the values that count
        options[option.name] = option.value
    return options


# --- #SBATCH lines --------------------------------------------------------------------------


def directive_lines(script: str) -> Iterator[tuple[int, str]]:
    """Yield the number and the options of each #SBATCH line before the first command."""
    for number, line in enumerate(script.split("\n"), start=1):
        if line.startswith("#SBATCH"):
            yield number, line.removeprefix("#SBATCH")
        elif line.strip() and not line.lstrip().startswith("#"):
            return


def move_value(before: list[str], words: list[str]) -> None:
    """Move a #SBATCH line's first word to the line before, if that lacks the value of its option.

    Slurm joins all lines, so a value may be on the next one.
    """
    if not words or words[0].startswith("-"):
        return
    given, end = parse_options([*before, "value"], SBATCH)
    if end > len(before) and given[-1].at == len(before) and given[-1].name in SBATCH.valued:
        before.append(words.pop(0))


def split_directive(line: str, number: int) -> list[str]:
    """Split a line as Slurm does: both kinds of quotes, backslashes, and comments.

    An unquoted # starts a comment, also within a word. Slurm 22.05 reads `--nodes=2# two` as 2.

    Raises:
        UsageError: a quote is not closed.
    """
    words: list[str] = []
    word: list[str] | None = None
    """Characters, because a value can have a million of them."""
    quoting = ""
    characters = iter(line)
    for character in characters:
        if not quoting and character.isspace():
            if word is not None:
                words.append("".join(word))
            word = None
            continue
        if not quoting and character == "#":
            break
        word = [] if word is None else word
        if character == "\\" and quoting != "'":
            word.append(next(characters, ""))
        elif character == quoting:
            quoting = ""
        elif not quoting and character in "\"'":
            quoting = character
        else:
            word.append(character)
    if quoting:
        raise UsageError(f"line {number}: the quote {quoting} is not closed", hint=f"#SBATCH{line}")
    return words if word is None else [*words, "".join(word)]


# --- values ---------------------------------------------------------------------------------


def split_gpus(text: str) -> tuple[str, str]:
    """Split `a100:4`, `4` or `a100` into the GPU type and the number, by default 1."""
    kind, _, amount = text.partition("(")[0].rpartition(":")
    return (kind, amount) if amount.isdecimal() else (amount, "1")
