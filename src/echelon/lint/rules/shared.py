"""Files that the tasks of an array, or two jobs, write to at the same time; part of E502."""

import re
from collections.abc import Iterator
from itertools import accumulate, pairwise

from echelon.lint.bash import Command, Shell, Where, Word
from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.rule import ADVICE, Hit
from echelon.lint.rules.arrays import read_indices
from echelon.lint.rules.programs import starts
from echelon.lint.subject import Started, Subject

_INTO = pattern(
    r"(?<![-&>\d\w=])(?:&|1)?(>>?)(?!&)\s{0,3}(\"[^\"\n]{1,300}\"|[^\s;|&<>()\"']{1,300})"
)
"""A redirection of the standard output, and its file."""
_VARIABLE = pattern(r"\$\{?(\w+)\}?")
_FILE = pattern(r"[\w./~-]*[\w]")
_LOG = pattern(r"(?i)(?<![a-z])logs?(?![a-z])|\.(?:out|err)$")
_QUOTED = pattern(r"(>\s{0,3})?(?:\"[^\"\n]*\"|'[^'\n]*')")
_COMMENT = pattern(r"(?:^|\s)#.*")
_ELSEWHERE = pattern(r"/dev/|(?:/var)?/tmp\b|/proc/|/sys/|/scratch/local|/local")
"""Files that are not shared, or only between the tasks of one node."""
_OPTION = pattern(
    r"--?(?:out(?:put)?|(?:out(?:put)?|save|result|prediction|log)s?[-_]?"
    r"(?:file|path|name|csv|json)|checkpoint[-_](?:out|file)|o)"
)
_WRITTEN = pattern(r"\S*[\w}]\.(?:csv|json|jsonl|txt|pkl|pt|pth|npy|npz|h5|hdf5|parquet|log|tsv)")
_OF_JOB = pattern(r"scontrol\s+show\s+host|\$\{?SLURM_(?!SUBMIT_DIR)\w+|\$\{?HOSTNAME|\bhostname\b")
"""Text that differs between jobs."""
_APART = pattern(r"SLURM_ARRAY_|\$RANDOM|\$\$|mktemp|uuidgen|\bflock\b")
_SAME = frozenset({"SLURM_SUBMIT_DIR", "HOME", "USER"})
"""Variables with the same value in all tasks of a job array."""
_OPENS = pattern(r"^\s*(?:if|case)\b")
_CLOSES = pattern(r"(?:^|[;&])\s*(?:fi|esac)\b")
_TWO = 2
_ASKS_FOR_TASK = pattern(r"(?:\[|\(\(|\bcase\b|\btest\b)[^\n]{0,200}SLURM_ARRAY_TASK_ID")
"""A condition about the task of the job array."""


def find_shared_files(subject: Subject) -> Iterator[Hit]:
    batch = subject.batch
    if batch is None or not subject.is_job or batch.suspect:
        return
    if _is_array(subject):
        yield from _of_tasks(subject, batch)
        yield from _of_options(subject)
    elif not any(map(subject.directives.last, ("array", "chdir", "dependency"))):
        yield from _logs(batch)
    yield from _read_later(subject, batch)


def _is_array(subject: Subject) -> bool:
    given = subject.directives.last("array")
    if given is None or given.value.endswith("%1"):
        return False
    return len(read_indices(given.value)) >= _TWO


def _moves(batch: Shell) -> bool:
    """Tell whether a job may change to a directory of its own."""
    moves = (c for c in batch.commands if c.name in ("cd", "pushd"))
    words = [word for c in moves for word in c.arguments if not word.known]
    return any(word.names - _SAME or not word.names for word in words)


def _of_tasks(subject: Subject, batch: Shell) -> Iterator[Hit]:
    """Find the output of a program, which all tasks of a job array write to one file."""
    relative = not _moves(batch)
    lines = batch.text.split("\n")
    if any(_ASKS_FOR_TASK.search(line) for line in lines if line.lstrip()[:1] != "#"):
        return  # one of the tasks may do other work
    for command, files in _written(batch):
        for file in files:
            yield from _same_file(command, file, relative=relative)
    for command, word in _steps(subject):
        yield from _same_file(command, word.text, relative=relative)


def _written(batch: Shell) -> Iterator[tuple[Command, list[str]]]:
    """Yield the programs of a job with the files that their output overwrites."""
    lines = batch.text.split("\n")
    depths = _depths(lines)
    for command in batch.commands:
        runs = command.certain or command.looped
        line = _whole_line(lines, command.line)
        if command.function or " -c " in line:
            continue
        if command.name == "tee" and command.piped and _is_plain(lines, depths, command):
            names = [w for w in command.arguments if not w.text.startswith("-")]
            appends = any(w.text in ("-a", "--append") for w in command.arguments)
            files = [w.text for w in names if w.known and not appends]
        elif runs and starts(command) and command.where is Where.BATCH:
            files = _redirected(command, line)
        else:
            continue
        yield command, files


def _logs(batch: Shell) -> Iterator[Hit]:
    """Find the log of a program that the next job overwrites."""
    local = any(c.name in ("cd", "pushd") and _ELSEWHERE.search(c.text) for c in batch.commands)
    if not _moves(batch) and not local:
        written = ((command, file) for command, files in _written(batch) for file in files)
        moved = " ".join(c.text for c in batch.commands if c.name in ("mv", "cp", "ln", "savelog"))
        for command, file in written:
            if _LOG.search(file) and _is_shared(file, relative=True) and file not in moved:
                yield Hit(
                    at=Place(command.path, command.line),
                    what=f"Another job in the same directory overwrites {file}, even while this "
                    "job still writes it.",
                    fix=_with_task(file).replace("ARRAY_TASK", "JOB"),
                    severity=ADVICE,
                )
                return


def _same_file(command: Command, file: str, *, relative: bool) -> Iterator[Hit]:
    if _is_shared(file, relative=relative):
        yield Hit(
            at=Place(command.path, command.line),
            what=f"All tasks of the job array write to {file}.",
            fix=_with_task(file),
        )


def _depths(lines: list[str]) -> list[int]:
    """Return in how many branches each line begins."""
    changes = (bool(_OPENS.search(line)) - bool(_CLOSES.search(line)) for line in lines)
    return [0, *accumulate(changes)]


def _is_plain(lines: list[str], depths: list[int], command: Command) -> bool:
    """Tell whether a part of a pipe is in no branch and not in $(…)."""
    line = lines[command.line - 1]
    return (
        depths[command.line - 1] <= 0
        and not command.substituted
        and "&&" not in line
        and "||" not in line
    )


def _redirected(command: Command, line: str) -> list[str]:
    """Return the files that the output of a command overwrites."""
    bare = _COMMENT.sub("", _QUOTED.sub(lambda m: m[0] if m[1] else "''", line))
    found = [m[2].strip('"') for m in _INTO.finditer(bare) if m[1] == ">"]
    values = command.moment.values() if found else {}
    return [text for name in found if (text := _expanded(name, values))]


def _expanded(text: str, values: dict[str, Word]) -> str:
    """Return a text with the values of its variables; empty if one is not known."""
    names = _VARIABLE.findall(text)
    if any(name not in values or not values[name].known for name in names):
        return ""
    return _VARIABLE.sub(lambda found: values[found[1]].text, text)


def _steps(subject: Subject) -> Iterator[tuple[Command, Word]]:
    """Yield the steps that always run, with the value of `--output`."""
    for command, options, _ in subject.sruns:
        word = options.get("output")
        if word is not None and command.certain and "%" not in word.text:
            yield command, word


def _is_shared(file: str, *, relative: bool) -> bool:
    absolute = file.startswith(("/", "~"))
    return bool(_FILE.fullmatch(file) and not _ELSEWHERE.match(file) and (absolute or relative))


def _with_task(file: str) -> str:
    folder, slash, name = file.rpartition("/")
    stem, dot, end = name.rpartition(".")
    return f"{folder}{slash}{stem or name}-$SLURM_ARRAY_TASK_ID{dot if stem else ''}" + (
        end if stem else ""
    )


def _whole_line(lines: list[str], number: int) -> str:
    """Return a line with those that continue it."""
    end = number
    while end < len(lines) and lines[end - 1].endswith("\\"):
        end += 1
    return " ".join(line.rstrip("\\") for line in lines[number - 1 : end])


def _of_options(subject: Subject) -> Iterator[Hit]:
    """Find options that name the same output file in all tasks of a job array."""
    assert subject.batch is not None
    relative = not _moves(subject.batch)
    for one in subject.started:
        if one.launch.elsewhere or not one.launch.command.certain or _tells_apart(one):
            continue
        for option, word in pairwise(one.launch.arguments):
            fits = _OPTION.fullmatch(option.text) and _WRITTEN.fullmatch(word.text) and word.known
            if fits and _is_shared(word.text, relative=relative):
                yield Hit(
                    at=one.launch.place_of(word, subject.path),
                    what=f"`{option.text}` names the same file in all tasks of the job array. "
                    "Unless the program changes the name, the last task overwrites the others.",
                    fix=f"{option.text} {_with_task(word.text)}",
                    severity=ADVICE,
                )


def _tells_apart(one: Started) -> bool:
    """Tell whether a Python script knows its task, and may use it for its files."""
    return one.python is not None and bool(
        _APART.search(one.python.text) or _APART.search(one.python.neighbours)
    )


def _read_later(subject: Subject, batch: Shell) -> Iterator[Hit]:
    """Find a file with the hosts of a job whose name is the same in all jobs."""
    if _moves(batch):
        return
    lines = batch.text.split("\n")
    for number, line in enumerate(lines, start=1):
        found = None if line.lstrip().startswith("#") or "<<" in line else _INTO.search(line)
        file = found[2].strip('"') if found else ""
        if not found or not _FILE.fullmatch(file) or not _is_shared(file, relative=True):
            continue
        if not _OF_JOB.search(line[: found.start()]):
            continue
        word = re.compile(rf"(?<![\w./-])(?:\./)?{re.escape(file)}(?![\w/-]|\.\w)")
        reader = next((c for c in batch.commands if c.line > number and _reads(c, word)), None)
        if reader is not None:
            yield Hit(
                at=Place(subject.path, number),
                what=f"Two such jobs in the same directory write to {file}, and line "
                f"{reader.line} can read the hosts or numbers of the other job.",
                fix=_with_task(file).replace("ARRAY_TASK", "JOB"),
                severity=ADVICE,
            )
            return


def _reads(command: Command, word: re.Pattern[str]) -> bool:
    """Tell whether a program of the job gets a file as an argument."""
    started = starts(command) or command.name in ("bash", "sh")
    return started and any(word.search(one.text) for one in command.arguments)
