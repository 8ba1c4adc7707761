"""E313 and E314: variables that stay text, and variables that nothing sets."""

import difflib
import re
from collections.abc import Iterator
from functools import lru_cache
from operator import itemgetter

from echelon.lint.facts import sources_others, stops_at_unset
from echelon.lint.files import Place, find_file
from echelon.lint.patterns import pattern
from echelon.lint.rule import ADVICE, ERROR, WARNING, Hit, Rule
from echelon.lint.rules.arrays import find_short_arrays
from echelon.lint.rules.slips import (
    find_long_names,
    find_names_in_lists,
    find_old_values,
    find_patterns_of_slurm,
    find_ranges,
)
from echelon.lint.subject import Subject

_OF_JOB = pattern(r"\$\{?(SLURM_\w+|MASTER_(?:ADDR|PORT)|(?:NODE_|LOCAL_)?RANK|WORLD_SIZE)\b")
_SETS_BY_NAME = pattern(
    r"\b(?:declare|typeset|local|export|readonly|printf\s+-v|read|mapfile|readarray)\s+"
    r"(?:-\w+\s+){0,9}[\"']?\$|\beval\s+[\"']?\\?\$?\{?\w+\}?=|"
    r"\beval\s+[\"']?(?:\$\(|`)(?![^)`\n]{0,200}(?:hook|activate|init|conda|agent))"
)
"""Commands that set variables whose names the script does not show."""
_OF_BASH = frozenset({"REPLY", "OPTARG", "OPTIND", "MAPFILE"})
_DEVICES = "CUDA_VISIBLE_DEVICES"
_ASKED_OTHERWISE = pattern(r"--(?:gres|gpus|gpu)\b|\s-G\s?\d")
"""Options for GPUs, in a line that shows how to submit a script."""
_OF_GPUS = pattern(r"(?i)gpu|cuda|nvidia|dgx|[avh]100|h200|l40|rtx|\bt4\b")
"""Names of partitions whose jobs may get GPUs without a request."""
_PATH = pattern(r"\$\{?[A-Za-z_]\w+\}?(?=/|$)")
_SLURM_NAME = pattern(
    r"SLURM_(?:JOB|NTASKS|NNODES|PROCID|LOCALID|NODE|ARRAY|CPUS|GPUS|SUBMIT|STEP|NPROCS|TASKS)[A-Z_]*"
)
_TWO = 2
_MOST_NAMES = 256
"""Names to remember, because scripts use a variable several times."""
_SHORTEST = 5
"""Minimum length of names that are not set."""
_AMPERSAND = pattern(r"(?<![&>|<])&(?![&>\d])|\bcoproc\b")
_LAST_BACKGROUND = pattern(r"[^#']*\$!(?!\w)")
_NAME_IN_PATH = pattern(r"^\s*(?:export\s+)?[A-Za-z_]\w*=[\"']?([A-Za-z_]\w*)/")
_TEST_OF_TEXT = pattern(r"[^#]*\[\[?\s+-([zn])\s+[\"']?([A-Za-z_]\w*|\d)[\"']?\s+\]")
_ALIKE = 0.85
_LONGEST = 2000
"""Maximum length of a line in which names are searched for."""
_STARTUP_FILE = pattern(r"(?:^|/)(?:\.bashrc|\.bash_profile|\.profile|bashrc|profile)$")
_SHELLS = frozenset({"bash", "sh", "eval", "ssh", "srun"})
"""Programs that may expand a text."""
_OF_MODULE = pattern(r"^EB|_(?:ROOT|HOME|DIR|BASE|PATH|PREFIX|INC|INCLUDE|LIB|LIBDIR)$")
"""Names of variables that environment modules set."""


def find_unexpanded(subject: Subject) -> Iterator[Hit]:
    if any(shell.suspect for shell in subject.shells):
        return
    for one in subject.started:
        options = one.launch.launcher.options.values() if one.launch.launcher else ()
        for word in (*options, *one.launch.arguments):
            found = _OF_JOB.search(word.text) if word.known and not word.uses else None
            if found:
                yield Hit(
                    at=one.launch.place_of(word, subject.path),
                    what=f"The program gets the text '${found[1]}', not the value. The variable is "
                    "escaped or in single quotes, so no shell expands it.",
                    fix=f"${found[1]}  # without the backslash, or without the inner single quotes",
                    # A program or another shell may expand the text; a launcher does not.
                    severity=None if word in options and not one.launch.elsewhere else WARNING,
                )
    yield from _escaped_values(subject)
    yield from _quoted_home(subject)
    yield from _escaped_paths(subject)
    yield from _without_dollar(subject)
    yield from find_ranges(subject)
    yield from find_names_in_lists(subject)
    yield from find_patterns_of_slurm(subject)


def _escaped_values(subject: Subject) -> Iterator[Hit]:
    """Find assignments in the text of `bash -c`, whose value is the name of a variable."""
    for shell in subject.shells[1:]:
        if shell.path != subject.path:
            continue
        own = [(a, c.name) for c in shell.commands for a in c.assignments]
        exported = [(a, "a program") for a in shell.assignments if a.name in shell.exported]
        for assignment, program in (*own, *exported):
            value = assignment.value
            found = _OF_JOB.fullmatch(value.text.removesuffix("}"))
            if found and value.known and not value.uses and program not in _SHELLS:
                yield Hit(
                    at=assignment,
                    what=f"`{assignment.name}` is the text '${found[1]}', not the value. The "
                    "variable is escaped in single quotes, so no shell expands it.",
                    fix=f"{assignment.name}=${found[1]}  # without the backslash",
                    severity=WARNING,
                )


def _escaped_paths(subject: Subject) -> Iterator[Hit]:
    """Find paths that begin with an escaped variable, or name one without `$`."""
    named = {a.name for a in subject.assignments if "_" in a.name and a.name.isupper()}
    for command in subject.batch.commands if subject.batch and subject.is_job else ():
        if command.name not in ("cd", "source", ".", "mkdir", "conda"):
            continue
        for word in command.arguments:
            if word.text in named and command.name in ("cd", "mkdir"):
                yield Hit(
                    at=Place(command.path, word.line or command.line),
                    what=f"{command.name} gets the text '{word.text}', not the value of the "
                    "variable, because `$` is missing.",
                    fix=f'"${word.text}"',
                    severity=WARNING,
                )
            found = _PATH.match(word.text) if word.known and not word.uses else None
            if found:
                yield Hit(
                    at=Place(command.path, word.line or command.line),
                    what=f"{command.name} gets the text '{found[0]}', not the value. The variable "
                    "is escaped or in single quotes.",
                    fix=f"{found[0]}…  # without the backslash or the single quotes",
                    severity=WARNING,
                )


def _without_dollar(subject: Subject) -> Iterator[Hit]:
    """Find the name of a variable in the place of its value: in a path, or in a test."""
    batch = subject.batch
    if batch is None or not subject.is_job:
        return
    lines = batch.text.split("\n")
    for assignment in batch.assignments:
        found = _NAME_IN_PATH.search(subject.line_at(assignment))
        earlier = (a for a in batch.assignments if a.line < assignment.line and "_" in a.name)
        if found and found[1] in {a.name for a in earlier}:
            yield Hit(
                at=assignment,
                what=f"`{assignment.name}` begins with the text '{found[1]}', not with the value "
                "of this variable, because `$` is missing.",
                fix=f"${found[1]}/…",
                severity=ADVICE,
            )
    for command in batch.commands:
        shown = command.arguments[0].text if len(command.words) == _TWO else ""
        if command.name == "echo" and _SLURM_NAME.fullmatch(shown):
            yield Hit(
                at=command,
                what=f"This prints the text '{shown}', because `$` is missing.",
                fix=f'echo "{shown}: ${shown}"',
                severity=ADVICE,
            )
    for number, line in enumerate(lines, start=1):
        found = _TEST_OF_TEXT.match(line)
        if found and not line.lstrip().startswith("#"):
            always = "false" if found[1] == "z" else "true"
            yield Hit(
                at=Place(subject.path, number),
                what=f"This test is always {always}: '{found[2]}' is a text, because `$` is "
                "missing.",
                fix=f'[ -{found[1]} "${found[2]}" ]',
                severity=ADVICE,
            )


def _quoted_home(subject: Subject) -> Iterator[Hit]:
    """Find quoted paths that begin with `~`, which bash does not expand."""
    for assignment in subject.assignments if subject.is_job else ():
        name, line = assignment.name, subject.line_at(assignment)
        if "~/" not in line or not re.search(rf"""(?<!\w){name}=["']~/""", line):
            continue
        made = [
            c
            for c in subject.commands
            if c.name in ("mkdir", "cd", "source", ".", "cp", "ls")
            and any(
                name in w.names and w.text.startswith(("~/", f"${name}", f"${{{name}}}"))
                for w in c.arguments
            )
        ]
        if made:
            yield Hit(
                at=assignment,
                what=f"Bash does not expand ~ in quotes. {made[0].name} (line {made[0].line}) uses "
                "a directory named '~'.",
                fix=f'{name}="$HOME/…"',
                severity=WARNING,
            )


def find_never_set(subject: Subject) -> Iterator[Hit]:
    yield from find_short_arrays(subject)
    yield from _no_background(subject)
    yield from _set_later(subject)
    yield from find_long_names(subject)
    yield from find_old_values(subject)
    yield from _interactive_files(subject)
    yield from _no_devices(subject)
    yield from _never_set(subject)


def _never_set(subject: Subject) -> Iterator[Hit]:
    if not subject.is_job or sources_others(subject):
        return
    code = _code(subject)
    doubtful = bool(_SETS_BY_NAME.search(code))
    assigned = {assignment.name for assignment in subject.assignments}
    read = {name for shell in subject.shells for name in shell.names_read}
    unread = {name for name in assigned - read if name not in subject.exported}
    told = set[str]()
    loads = any(c.name in ("module", "ml", "spack") for c in subject.commands)
    used = [
        (c.path, (*c.words, *(own.value for own in c.assignments))) for c in subject.commands
    ] + [(a.path, (a.value,)) for a in subject.assignments]
    for path, words in used:
        for use in (use for word in words for use in word.uses):
            name = use.name
            if use.guarded or name in assigned or name in told or not _is_long(name):
                continue
            if twin := _twin(subject, name):
                told.add(name)
                yield Hit(
                    at=Place(path, use.line),
                    what=f"Nothing in the script sets `{name}`. It sets `{twin}`.",
                    fix=_use(subject, twin),
                    severity=ADVICE if _is_only_printed(subject, name) else None,
                )
            module = loads and _OF_MODULE.search(name)
            if twin or doubtful or module or _is_set_otherwise(code, name):
                continue
            if path == subject.path and _stops_at(subject, name):
                told.add(name)
                yield Hit(
                    at=Place(path, use.line),
                    what=f"With `set -u`, bash stops here unless `{name}` comes from outside: the "
                    "script does not set it.",
                    fix=f"${{{name}:-}}  # or set it",
                    severity=ADVICE,
                )
            elif near := _nearest(name, unread):
                told.add(name)
                yield Hit(
                    at=Place(path, use.line),
                    what=f"Nothing in the script sets `{name}`, and nothing reads `{near}`, which "
                    "has a similar name.",
                    fix=_use(subject, near),
                )
            elif path == subject.path and _is_own(subject, name):
                told.add(name)
                yield Hit(
                    at=Place(path, use.line),
                    what=f"`${name}` is empty unless it comes from outside: the script does not "
                    "set it.",
                    fix=f"{name}=…",
                    severity=ADVICE,
                )


def _use(subject: Subject, name: str) -> str:
    """Return how to use a variable, which may still need a value."""
    empty = [a.line for a in subject.assigned(name) if a.value.text == ""]
    if not empty or len(empty) < len(subject.assigned(name)):
        return f"${name}"
    return f"${name}  # and give it a value in line {empty[0]}"


def _is_long(name: str) -> bool:
    return name[0].isalpha() and len(name) >= _SHORTEST


def _code(subject: Subject) -> str:
    """Return the text of all shells without comments and very long lines."""
    return "\n".join(line for line in subject.code if len(line) <= _LONGEST)


@lru_cache(maxsize=_MOST_NAMES)
def _is_set_otherwise(code: str, name: str) -> bool:
    """Tell whether a command such as read, or arithmetic, may set a variable."""
    if name in _OF_BASH:
        return True
    commands = r"read|mapfile|readarray|getopts|printf\s+-v|declare|local|typeset|let|select"
    return bool(
        re.search(rf"\b(?:{commands})\b[^\n]{{0,300}}\b{name}\b|\(\([^\n]{{0,99}}\b{name}\b", code)
    )


def _no_devices(subject: Subject) -> Iterator[Hit]:
    """Find the variable with the GPUs behind `set -u`, in a job that requests none."""
    batch, job = subject.batch, subject.job
    if batch is None or not subject.is_job or job.gpus_per_node != 0 or batch.suspect:
        return
    items = subject.directives.items
    if any(
        i.option in ("partition", "constraint", "qos") and _OF_GPUS.search(i.value) for i in items
    ):
        return
    set_here = re.search(
        rf"\b{_DEVICES}(?:=|:?[-=?+])|-[vnz]\s+\S{{0,4}}{_DEVICES}", _code(subject)
    )
    if set_here or any(_DEVICES in text for text in _sourced(subject)):
        return
    words = [(c.line, w) for c in batch.commands if c.certain for w in c.words]
    words += [(a.line, a.value) for a in batch.assignments if a.certain]
    uses = sorted(u.line for _, w in words for u in w.uses if u.name == _DEVICES)
    if not uses or not stops_at_unset(batch, uses[0]):
        return
    comments = [line for line in subject.text.split("\n") if line.lstrip().startswith("#")]
    shown = (*comments, *subject.files.lines_with(subject.path))
    if not any(map(_ASKED_OTHERWISE.search, shown)):
        yield Hit(
            at=Place(subject.path, uses[0]),
            what=f"With `set -u`, bash stops here: the job requests no GPUs, so Slurm does not set "
            f"`{_DEVICES}`.",
            fix=f"${{{_DEVICES}:-}}",
            severity=ADVICE,
        )


def _sourced(subject: Subject) -> Iterator[str]:
    """Yield the texts of the files that a script sources."""
    for command in subject.commands:
        if command.name in ("source", ".") and command.arguments:
            name = command.arguments[0].text
            name = re.sub(r"^\$\{?\w+\}?/", "", name)
            place = find_file(subject.files, name, (subject.path, ""))
            yield subject.files.read(place) or "" if place else ""


def _interactive_files(subject: Subject) -> Iterator[Hit]:
    """Find `source ~/.bashrc` after `set -u`: such files often test variables that are not set."""
    batch = subject.batch
    if batch is None or not subject.is_job or "nounset" not in batch.settings:
        return
    begin = next((c.line for c in batch.commands if c.name == "set" and "u" in c.text), 0)
    off = [c.line for c in batch.commands if c.name == "set" and "+u" in c.text]
    for command in batch.commands:
        path = command.arguments[0].text if command.arguments else ""
        file = command.name in ("source", ".") and _STARTUP_FILE.search(path)
        if file and command.line > begin and not any(begin < line < command.line for line in off):
            yield Hit(
                at=command,
                what=f"With `set -u`, bash stops if {path} uses a variable that is not set, such "
                "as PS1.",
                fix=f"set +u; source {path}; set -u",
                severity=ADVICE,
            )
            return


def _set_later(subject: Subject) -> Iterator[Hit]:
    """Find variables that the script uses before the only line that sets them."""
    batch = subject.batch
    if batch is None or not subject.is_job or batch.suspect or sources_others(subject):
        return
    told = set[str]()
    # The first of several assignments remains.
    set_at = {a.name: a.line for a in sorted(batch.assignments, key=lambda a: -a.line)}
    commands = [c for c in batch.commands if not c.repeated and not c.function]
    words = [(c.line, word) for c in commands for word in c.words]
    words += [(a.line, a.value) for a in batch.assignments if a.certain]
    for line, word in sorted(words, key=itemgetter(0)):
        for use in word.uses:
            name = use.name
            if use.guarded or name in told:
                continue
            first = set_at.get(name, 0)
            own = name.upper() != name or name not in subject.exported
            if first > max(use.line, line) and own and _only_assigned(batch.text, name):
                told.add(name)
                yield Hit(
                    at=Place(subject.path, use.line),
                    what=f"`${name}` is empty here unless it comes from outside: the script sets "
                    f"it later, in line {first}.",
                    fix=f"set {name} before this line",
                    severity=ADVICE,
                )


def _only_assigned(text: str, name: str) -> bool:
    """Tell whether a script sets a variable by assignments only, and not in a loop or by read."""
    other = rf"\b(?:for|select|read|getopts|mapfile|local|declare)\b[^\n]*\b{name}\b|-v\s+{name}\b"
    return not re.search(other, text)


def _no_background(subject: Subject) -> Iterator[Hit]:
    """Find `$!` in a script that starts nothing in the background."""
    batch = subject.batch
    if batch is None or not subject.is_job or "$!" not in batch.text or batch.suspect:
        return
    if any(c.background for c in batch.commands) or _AMPERSAND.search(batch.text):
        return
    for number, line in enumerate(batch.text.split("\n"), start=1):
        if _LAST_BACKGROUND.match(line):
            yield Hit(
                at=Place(subject.path, number),
                what="`$!` is empty, because the script starts nothing in the background.",
                fix="… &  # after the command that is meant, or remove this line",
                severity=ADVICE,
            )
            return


def _is_only_printed(subject: Subject, name: str) -> bool:
    """Tell whether a script uses a variable only to print it."""
    code = [line for shell in subject.shells for line in shell.text.split("\n")]
    used = [line for line in code if re.search(rf"\$\{{?{name}\b", line)]
    return all(re.match(r"\s*(?:#|echo\b|printf\b)", line) for line in used)


def _stops_at(subject: Subject, name: str) -> bool:
    """Tell whether bash stops at a variable: with `set -u`, and a name that the script chose."""
    batch = subject.batch
    if batch is None or "nounset" not in batch.settings or name.upper() == name:
        return False
    return not name.endswith("_proxy") and not _is_set_in_text(_code(subject), name)


def _is_own(subject: Subject, name: str) -> bool:
    """Tell whether only the script can set a variable: a name in lower case, or a rendezvous."""
    chosen = name.lower() == name or name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")
    return chosen and not name.endswith("_proxy") and not _is_set_in_text(_code(subject), name)


@lru_cache(maxsize=_MOST_NAMES)
def _is_set_in_text(code: str, name: str) -> bool:
    """Tell whether a script has text that sets or tests a variable, also text that is not read.

    An argument such as model=… sets nothing.
    """
    start = r"(?:^|[;&|({`'\"]|\b(?:then|do|else|export|readonly|local|declare|typeset)\b)[ \t]*"
    more = r"(?:-\w{1,9}[ \t]{1,9})?(?:\w{1,60}=\S{0,200}[ \t]{1,9}){0,9}"
    other = rf"\b(?:for|export|select)\s+{name}\b|-[vz]\s+\S{{0,3}}{name}\b"
    code = code.replace("\\\n", " ")
    return bool(re.search(rf"(?m){start}{more}[\"']?{name}(?:\+?=|\[)|{other}", code))


def _twin(subject: Subject, name: str) -> str:
    """Return the variable of the script whose name differs only by underscores."""
    found = [a for a in subject.assignments if _joined(a.name) == _joined(name)]
    texts = [shell.text for shell in subject.shells]
    otherwise = rf"\b(?:for|export|select|read|local|declare|mapfile|readarray)\b.*\b{name}\b"
    if not found or any(name in a.value.names for a in found):
        return ""  # it gets the value of one from outside
    loads = (c.text.lower() for c in subject.commands if c.name in ("module", "ml", "spack"))
    if any(name.partition("_")[0].lower() in text for text in loads):
        return ""
    if any(re.search(rf"{otherwise}|\b{name}(?:\+?=|\[)|-v\s+{name}\b", text) for text in texts):
        return ""
    return found[0].name


def _joined(name: str) -> str:
    return name.replace("_", "")


def _nearest(name: str, unread: set[str]) -> str:
    same = [other for other in unread if other.lower() == name.lower()]
    found = same or difflib.get_close_matches(name, sorted(unread), n=1, cutoff=_ALIKE)
    # A number at the end makes another variable, not a misspelt one.
    return next((f for f in found if re.sub(r"\d", "", f) != re.sub(r"\d", "", name)), "")


RULES = (
    Rule(
        code="E313",
        title="variable or `~` that is not expanded",
        severity=ERROR,
        check=find_unexpanded,
        why="In single quotes, a backslash before `$` stays in the text. The shell that srun "
        "starts then takes `\\$NAME` as the text $NAME. Slurm replaces `%j` and `%u` in "
        "the names of its output files only.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=2
 #SBATCH --exclusive
 export MASTER_ADDR=$(hostname)
-srun bash -c 'torchrun --nnodes=2 --node_rank=\\$SLURM_NODEID --master_addr=$MASTER_ADDR \\
-    --master_port=29500 train.py'
+srun bash -c 'torchrun --nnodes=2 --node_rank=$SLURM_NODEID --master_addr=$MASTER_ADDR \\
+    --master_port=29500 train.py'
""",
    ),
    Rule(
        code="E314",
        title="variable that is never set",
        severity=WARNING,
        check=find_never_set,
        why="Bash expands a variable that is not set to nothing, and stops at it after `set -u`. "
        "Without `set -u`, lint reports only names that resemble a variable that the script sets "
        "and never reads, or that differ from a variable only by underscores. Others may come from "
        "outside.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=1
 checkpoint=runs/last.pt
-python train.py --resume $chekpoint    # <- here
+python train.py --resume $checkpoint
""",
    ),
)
