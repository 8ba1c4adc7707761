"""Parses the #SBATCH directives of a script and the options of srun, with line numbers.

`clusters/slurm/sbatch.py` parses directives as Slurm does. Here, an invalid line becomes a finding
instead of an error.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from echelon.clusters.slurm.sbatch import KNOWN_OPTIONS, parse_options, split_directive
from echelon.errors import UsageError
from echelon.lint.words import Word

_PLUGINS = frozenset(
    {
        *("container-image", "container-mounts", "container-workdir", "container-name"),
        *("container-save", "container-mount-home", "no-container-mount-home"),
        *("container-remap-root", "no-container-remap-root", "container-entrypoint"),
        *("no-container-entrypoint", "container-writable", "container-readonly"),
        *("container-env", "x11", "tmpdir", "jobid", "uenv", "view", "environment"),
    }
)
"""Options of common plugins, mainly for containers."""
_NEWER = frozenset(
    {"tres-per-task", "tres-bind", "oom-kill-step", "segment", "consolidate-segments"}
)
SBATCH_OPTIONS = KNOWN_OPTIONS | _PLUGINS | _NEWER

_SRUN_SWITCHES = frozenset(
    {
        *("exact", "label", "overlap", "unbuffered", "pty", "no-allocate", "overcommit", "quiet"),
        *("verbose", "oversubscribe", "contiguous", "disable-status", "preserve-env", "external"),
        *("multi-prog", "spread-job", "use-min-nodes", "help", "usage", "version", "test-only"),
        *("hold", "reboot", "interactive", "whole", "debugger-test", "send-libs"),
        *("no-container-mount-home", "container-mount-home", "container-writable"),
        *("container-remap-root", "container-readonly", "no-container-remap-root"),
        *("no-container-entrypoint", "container-entrypoint"),
    }
)
_SRUN_OPTIONAL = frozenset(
    {"exclusive", "kill-on-bad-exit", "no-kill", "nice", "immediate", "wait", "x11", "propagate"}
)
"""Options with an optional value: after =, or directly after the short option."""
_SRUN_SHORT = dict(
    pair.split(":")
    for pair in [
        "N:nodes",
        "n:ntasks",
        "c:cpus-per-task",
        "G:gpus",
        "w:nodelist",
        "x:exclude",
        "p:partition",
        "A:account",
        "t:time",
        "J:job-name",
        "o:output",
        "e:error",
        "i:input",
        "D:chdir",
        "C:constraint",
        "q:qos",
        "l:label",
        "u:unbuffered",
        "K:kill-on-bad-exit",
        "k:no-kill",
        "O:overcommit",
        "s:oversubscribe",
        "Q:quiet",
        "v:verbose",
        "m:distribution",
        "r:relative",
        "T:threads",
        "W:wait",
        "I:immediate",
        "E:preserve-env",
        "X:disable-status",
        "Z:no-allocate",
        "B:extra-node-info",
        "F:nodefile",
        "d:dependency",
        "L:licenses",
        "M:clusters",
        "S:core-spec",
        "b:begin",
        "a:array",
        "H:hold",
    ]
)
_SRUN_OWN = frozenset(
    {
        *("accel-bind", "bcast", "bcast-exclude", "compress", "cpu-bind", "cpu_bind", "epilog"),
        *("het-group", "jobid", "mem-bind", "mem_bind", "mpi", "msg-timeout", "multi-prog"),
        *("prolog", "relative", "resv-ports", "slurmd-debug", "task-epilog", "task-prolog"),
        *("threads", "tmp", "treewidth", "uid", "gid", "launch-cmd", "launcher-opts", "pack-group"),
        *("ntasks-per-tres", "cpus-per-gpu", "open-mode", "stepmgr"),
    }
)
SRUN_OPTIONS = SBATCH_OPTIONS | _SRUN_SWITCHES | _SRUN_OPTIONAL | _SRUN_OWN
_ALIASES = {"tasks-per-node": "ntasks-per-node", "cpu_bind": "cpu-bind"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Directive:
    """One option of an #SBATCH line."""

    option: str
    """The long name."""
    value: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Directives:
    items: tuple[Directive, ...]
    """In source order."""
    broken: tuple[tuple[int, str], ...]
    """Line numbers and error messages of malformed directives."""
    several: bool
    """A heterogeneous job, with a separate request for each component."""

    def last(self, option: str) -> Directive | None:
        """Return the last directive for an option, which is the one that Slurm uses."""
        found = [item for item in self.items if item.option == option]
        return found[-1] if found else None


def read_directives(script: str) -> Directives:
    """Return the options that Slurm reads: those before the first command."""
    items, broken, several = [], [], False
    for number, line in enumerate(script.split("\n"), start=1):
        if line.startswith("#SBATCH"):
            text = line.removeprefix("#SBATCH").rstrip("\r")
            several = several or text.split()[:1] in (["hetjob"], ["packjob"])
            if text.split()[:1] in ([], ["hetjob"], ["packjob"]):
                continue
            try:
                options = parse_options(split_directive(text, number))
            except UsageError as error:
                broken.append((number, error.message))
                continue
            items += [Directive(option=o, value=v, line=number) for o, v in options.items()]
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return Directives(items=tuple(items), broken=tuple(broken), several=several)


def read_srun(words: Sequence[Word]) -> tuple[dict[str, Word], tuple[Word, ...]]:
    """Return the options of srun and the command that follows them."""
    options: dict[str, Word] = {}
    rest = list(words)
    while rest and rest[0].text.startswith("-") and rest[0].text != "-":
        word = rest.pop(0)
        if word.text == "--":
            break
        if word.text.startswith("--"):
            name, equals, value = word.text[2:].partition("=")
        else:
            name, value = _SRUN_SHORT.get(word.text[1], word.text[1]), word.text[2:]
            equals = value
            if name in _SRUN_SWITCHES and value:  # -lu is -l -u
                rest.insert(0, _part(word, f"-{value}"))
                value = equals = ""
        name = _ALIASES.get(name, name)
        alone = name in _SRUN_SWITCHES | _SRUN_OPTIONAL
        if not equals and not alone and rest:
            options[name] = rest.pop(0)
        else:
            options[name] = _part(word, value.removeprefix("=") if len(name) > 1 else value)
    return options, tuple(rest)


def _part(word: Word, text: str) -> Word:
    """Return a word with a part of the text of another one."""
    return replace(word, text=text, text_line=0)


# --- values ---------------------------------------------------------------------------------

_TIME = re.compile(r"\d+(?:-\d+(?::\d+){0,2}|(?::\d+){0,2})", re.ASCII)


def is_slurm_time(text: str) -> bool:
    """Tell whether Slurm accepts a time limit: 90, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS."""
    return text.upper() in ("UNLIMITED", "INFINITE") or bool(_TIME.fullmatch(text))


def count_gpus(text: str) -> int | None:
    """Return the number of GPUs in `4`, `a100:4` or `a100`; None if it is not one number."""
    if not text or "," in text:
        return None
    amount = text.partition("(")[0].rpartition(":")[2]
    if amount.isascii() and amount.isdecimal() and len(amount) < 10:
        return int(amount)
    return 1 if re.fullmatch(r"[A-Za-z][\w.-]*", amount) else None


def count_gres_gpus(text: str) -> int | None:
    """Return the number of GPUs in --gres; None for other resources or several GPU types."""
    entries = [entry.removeprefix("gres/") for entry in text.split(",")]
    gpus = [entry for entry in entries if re.match(r"gpu(:|$|\()", entry)]
    if len(gpus) != 1:
        return None
    return count_gpus(gpus[0].partition(":")[2] or "1")
