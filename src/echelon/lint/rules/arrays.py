"""Job arrays whose indices do not fit what the script does with them; part of E202, E314, E407."""

import re
import shlex
from collections.abc import Iterator

from echelon.lint.bash import Command, Use
from echelon.lint.facts import stops_at_unset
from echelon.lint.files import Place
from echelon.lint.harmless import is_harmless
from echelon.lint.patterns import pattern
from echelon.lint.rule import ADVICE, WARNING, Hit
from echelon.lint.subject import Subject

_LITERAL = pattern(
    r"(?m)^[ \t]{0,40}(?:(?:declare|local|export|readonly) (?:-\w+ )?)?(\w+)=\(([^()`*?<>|;&]*)\)"
)
_SPLITS = pattern(r"(?:^|\s)\$|(?<!\$)\{|\[")
"""Parts of an array that bash may turn into several elements, or into none."""
_INDEX = r"\$?\{?(?:\(\()?[ \t]*\$?\{?SLURM_ARRAY_TASK_ID\}?[ \t]*(-[ \t]*1)?[ \t]*(?:\)\))?\}?"
_INDEX_NAME = pattern(rf"(?m)^[ \t]{{0,40}}(?:export )?(\w+)=[\"']?{_INDEX}[\"']?[ \t]*(?:#.*)?$")
_TESTED = pattern(r"-[nzv][ \t]+[\"']?\$?\{?SLURM_ARRAY_TASK_ID")
_COMPARED = pattern(r"SLURM_ARRAY_TASK_ID[^\n]{0,80}(?:-g[et]|-l[et]|[<>])")
"""A script that may leave out tasks."""
_GIVEN = pattern(r"--array\b|\s-a\s|SLURM_ARRAY_TASK_ID=")
_REPEATS = pattern(
    r"(?i)SLURM_ARRAY|wandb|optuna|sweep|agent|requeue|resume|checkpoint|RANDOM|\$\$|worker|"
    r"SLURM_JOB_?ID|hostname\)|mktemp|(?-i:%a)"
)
"""Text of scripts whose tasks differ, share work, or continue one another."""
_NAMES_LOG = pattern(
    r"(?:^\s{0,40}(?:echo|printf)\s[^|>$]{0,200}|\btee (?:-a )?|>|\b\w{0,40}LOG\w{0,40}=)"
    r"[\"']?[^\s$]{0,200}\$\{?SLURM_JOB_?ID\b"
)
"""The number of the job in the name of a log, or in a text for people."""
_JOB = frozenset({"SLURM_JOB_ID", "SLURM_JOBID"})
_PRINTS = frozenset({"echo", "printf"})
_MOST = 100_000


def find_short_arrays(subject: Subject) -> Iterator[Hit]:
    """Find bash arrays that have no element for some index of the job array."""
    given, batch = subject.directives.last("array"), subject.batch
    indices = read_indices(given.value) if given else []
    if batch is None or not indices:
        return
    offsets = {found[1]: 1 if found[2] else 0 for found in _INDEX_NAME.finditer(batch.text)}
    for found in _LITERAL.finditer(batch.text):
        name, count = found[1], _count(found[2])
        if not count or len(re.findall(rf"(?<![\w$]){name}(?:\+?=|\[[^\]]*\]=)", batch.text)) > 1:
            continue
        for use in re.finditer(rf"\$\{{{name}\[([^\]]+)\]\}}", batch.text):
            direct = re.fullmatch(_INDEX, use[1])
            offset = (1 if direct[1] else 0) if direct else offsets.get(use[1].strip("${}"))
            if offset is None or max(indices) - offset < count:
                continue
            if _is_unread(subject, batch.text[: use.start()].rpartition("\n")[2]):
                continue
            yield Hit(
                at=Place(subject.path, batch.text[: use.start()].count("\n") + 1),
                what=f"Task {max(indices)} of the job array gets an empty value: `{name}` has "
                f"{count} elements, from index 0 to {count - 1}.",
                fix=f"#SBATCH --array={offset}-{count - 1 + offset}",
                severity=ADVICE if _COMPARED.search(batch.text) else WARNING,
            )
            break


def _is_unread(subject: Subject, before: str) -> bool:
    """Tell whether an element is only assigned to a variable that nothing reads."""
    target = re.fullmatch(r"\s*(\w+)=[\"']?", before)
    read = any(target[1] in shell.names_read for shell in subject.shells) if target else True
    return target is not None and not read and target[1] not in subject.exported


def read_indices(value: str) -> list[int]:
    """Return the indices of --array; an empty list if they are not known."""
    found: list[int] = []
    for part in value.partition("%")[0].split(","):
        bounds = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", part)
        step = int(bounds[3] or 1) if bounds else 0
        if not bounds or not step or len(found) > _MOST:
            return []
        found += range(int(bounds[1]), int(bounds[2] or bounds[1]) + 1, step)
    return found


def _count(text: str) -> int:
    """Return the number of elements of an array; 0 if it is not known."""
    code = re.sub(r"(?m)(?:^|\s)#.*$", "", text)
    try:
        return 0 if _SPLITS.search(code) else len(shlex.split(code))
    except ValueError:
        return 0


def find_no_array(subject: Subject) -> Iterator[Hit]:
    """Find the index of a task in a job that no directive makes a job array."""
    batch = subject.batch
    if batch is None or subject.directives.last("array") or _TESTED.search(batch.text):
        return
    stops, use = True, _first_use(subject, always=True)
    if use is None or not stops_at_unset(batch, use.line):
        stops, use = False, _first_use(subject, always=False)
    lines = [line for line in batch.text.split("\n") if line.lstrip().startswith("#")]
    if use is None or any(map(_GIVEN.search, lines)):
        return
    if any(map(_GIVEN.search, subject.files.lines_with(subject.path))):
        return
    yield Hit(
        at=Place(subject.path, use.line),
        what="With `set -u`, bash stops here unless sbatch gets `--array`, because "
        "SLURM_ARRAY_TASK_ID is not set."
        if stops
        else "`$SLURM_ARRAY_TASK_ID` is empty unless sbatch gets `--array`.",
        fix="#SBATCH --array=…",
        severity=ADVICE,
    )


def _first_use(subject: Subject, *, always: bool) -> Use | None:
    """Return the first use of the index, but not a printed one.

    If `always`, a printed one too, but not one that the script may not reach.
    """
    assert subject.batch is not None
    commands = [c for c in subject.batch.commands if always or c.name not in _PRINTS]
    words = [word for c in commands if c.certain or not always for word in c.words]
    words += [a.value for a in subject.batch.assignments if a.certain or not always]
    uses = [u for word in words for u in word.uses if u.name == "SLURM_ARRAY_TASK_ID"]
    uses = [] if any(use.guarded for use in uses) else uses
    return min(uses, key=lambda use: use.line, default=None)


def find_same_tasks(subject: Subject) -> Iterator[Hit]:
    """Find job arrays whose script does not read the index of its task."""
    given, batch = subject.directives.last("array"), subject.batch
    if given is None or batch is None or given.value.endswith("%1"):
        return
    texts = [_NAMES_LOG.sub(" ", line) for line in subject.code]
    texts += [text for python in subject.pythons for text in (python.text, python.neighbours)]
    if len(read_indices(given.value)) < 2 or any(map(_REPEATS.search, texts)):
        return
    if any(map(_passes_job, subject.commands)):
        return
    if any(a.name in subject.exported and _JOB & a.value.names for a in subject.assignments):
        return
    yield Hit(
        at=Place(subject.path, given.line),
        what="All tasks of the job array run the same commands: the script does not read "
        "SLURM_ARRAY_TASK_ID.",
        fix="use $SLURM_ARRAY_TASK_ID in the command, such as --seed=$SLURM_ARRAY_TASK_ID",
        severity=ADVICE,
    )


def _passes_job(command: Command) -> bool:
    """Tell whether a program gets the number of the job, which differs between the tasks."""
    values = (*command.words, *(assignment.value for assignment in command.assignments))
    if not any(_JOB & value.names for value in values):
        return False
    if command.name in _PRINTS:
        return bool(set(command.piped_into) - {"tee", "cat"})
    return not is_harmless(command)
