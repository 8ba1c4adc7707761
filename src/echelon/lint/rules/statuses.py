"""E507: failures that the exit status of the job does not show."""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile

from echelon.lint.bash import Command, Shell, Word
from echelon.lint.exit_status import Ending, endings
from echelon.lint.files import beside
from echelon.lint.harmless import INSTALLS, start_of
from echelon.lint.patterns import pattern
from echelon.lint.rule import ADVICE, WARNING, Hit, Rule
from echelon.lint.rules.called_scripts import of_started, with_called
from echelon.lint.rules.exits import (
    COMPLAINS,
    find_constant_failure,
    find_message_status,
    find_status_of_message,
    find_status_of_test,
)
from echelon.lint.rules.last_commands import COPIES, copies_anyway, lists, lists_own, may_fail
from echelon.lint.rules.programs import (
    QUIET,
    SERVER,
    runs_script,
    starts,
    training_functions,
    waits_for_server,
)
from echelon.lint.rules.prose import is_text
from echelon.lint.rules.spoiled import find_incomplete, find_missing_source, find_spoiled
from echelon.lint.rules.status_fixes import (
    ERREXIT,
    WORDS,
    fix_of,
    is_tolerated,
    script_of,
)
from echelon.lint.subject import Subject

_ENDING = (QUIET - {"kill"}) | {
    *("deactivate", "conda", "module", "rm", "ls", "cd", "nvidia-smi", "squeue", "sacct"),
    *("seff", "sstat"),
    *("uname", "pwd", "whoami", "id", "env", "printenv", "unset", "export", "uptime", "clear"),
    *("set", "touch", "mkdir", "du", "df", "free", "umount", "fusermount", "exit"),
}
"""Commands that succeed whether the training did or not."""
_ASIDE = frozenset(
    {
        *("hostname", "rm", "mkdir", "cp", "mv", "rsync", "tar", "echo", "date", "ls", "cat"),
        *("nvidia-smi", "sleep", "bash", "sh", "env", "ip", "df", "free", "scontrol", "true"),
        *("kill", "pkill", "killall", "sbcast", "test", "printenv", "module", "lscpu"),
        *("numactl", "nproc"),
    }
)
"""Programs of steps that are not the work of the job, or that lint has to look into."""
_PREPARES = frozenset(
    {
        *("source", ".", "ml", "eval", "sbatch", "scancel", "pip", "pip3", "git", "wget", "curl"),
        *("read", "shift", "ulimit", "umask", "alias", "shopt", "declare", "let", "local", "which"),
        *("[", "[[", "pushd", "popd", "ln", "chmod", "unzip", "mail", "find", "grep", "sed", "awk"),
        *(
            "head",
            "tail",
            "sort",
            "tee",
            "wait",
            "time",
            "mapfile",
            "readarray",
            "spack",
            "nvcc",
            "gcc",
            "make",
            "cmake",
        ),
    }
)
"""Commands around the work of a job."""
_RUN_BY_EVAL = pattern(r"(?i)\$\{?(?!\w*(?:conda|mamba|setup|hook|init|env))[a-z_]")
_ENDS = frozenset({"EXIT", "0"})
_SHORTEST_TRAP = 2
_ENDS_JOB = frozenset({"exec", "kill", "scancel"})
_ERREXIT = pattern(r"^\s*set\s+(?:-\w*e|-o\s+errexit)", re.MULTILINE)
_RUNNERS = {
    **dict.fromkeys(("uv", "poetry", "pixi", "pipenv", "rye"), ("run",)),
    **dict.fromkeys(("singularity", "apptainer"), ("exec", "run")),
    **dict.fromkeys(("conda", "mamba", "micromamba"), ("run",)),
    "wandb": ("agent",),
    "docker": ("run",),
    "podman": ("run",),
}
"""Programs that run others, and how."""
_INTERPRETERS = frozenset({"Rscript", "julia", "matlab", "octave", "java", "papermill", "perl"})
_PREPARES_PYTHON = pattern(
    r"-m (?:pip|venv|ensurepip|virtualenv)\b|^(?:\S*/)?python[0-9.]* -(?:c|V|-version)\b"
)
_SPREADS = ("parallel", "xargs")
_AROUND = (
    _ENDING
    | _ASIDE
    | _PREPARES
    | {
        *("ray", "unlink", "readlink", "dirname", "basename", "wandb", "huggingface-cli"),
        *("stty", "shopt", "stat", "wc", "trap", "return", "continue", "break", "exec"),
        *("uuidgen", "getopts", "virtualenv", "activate", "setenv", "mamba", "micromamba"),
        *("sync", "tput", "type", "command", "nproc"),
    }
)
"""Commands that are not the work of a job."""
_OWN_SOURCE = pattern(
    r"(?:source|\.) (?!/|\S*(?:activate|rc$|profile|conda|env|modules?|init))[\w./-]*\w+(?: .*)?"
)
"""A file of the project, which may contain `set -e`."""
_OF_ENVIRONMENT = pattern(
    r"activate|conda|mamba|venv|/env/|modules|lmod|spack|setvars|intel|oneapi|cuda|profile|rc$|HOME|/etc/"
)
"""Sourced files that set up software."""
_MOST = 10
"""How many commands at the start and at the end are examined, because each takes time."""
_BEFORE_PROGRAMS = frozenset({"time", "nice", "numactl", "timeout", "nohup", "stdbuf", "env"})
_KEEPS = frozenset({"wait", "wandb", "ray"})
"""Last commands that wait for others, or that stop them."""
_OR_TRUE = pattern(r"\|\|[ \t]*(true|:|echo\b[^|&;]*)[ \t]*(?:#.*)?$")
_ASKS = pattern(r"\s*(?:(?:el)?if|while|until)\b")
_NOTICES = pattern(r"\$\?|\belse\b")
_LOOP_CONTINUES = (
    "If this command fails, the loop continues. The job has the status of the last command only."
)


def find_lost_status(subject: Subject) -> Iterator[Hit]:
    batch = subject.batch
    if batch is None or not subject.is_job:
        return
    yield from _lost_inside(subject)
    yield from _lost_in_scripts(subject)
    yield from find_missing_source(subject)
    yield from find_message_status(batch)
    yield from find_status_of_message(batch)
    yield from find_status_of_test(batch)
    if any(starts(c) or _works(batch, c) for c in batch.commands):
        plain = [c for c in batch.commands if not c.substituted and not c.function]
        yield from find_constant_failure(batch, plain)
        yield from _cancelled(plain)
    if any(_turns_errexit_on(subject, command) for command in batch.commands):
        return
    spoiled = list(find_spoiled(batch))
    lines = {hit.at.line for hit in spoiled}
    found = _lost(subject, batch)
    hits = [*spoiled, *(h for h in found if h.severity is not ADVICE or h.at.line not in lines)]
    hits = hits or list(find_incomplete(batch))
    hidden = any(_OWN_SOURCE.fullmatch(c.text) for c in batch.commands)
    doubtful = any(_is_unread(subject, command) for command in batch.commands)
    for hit in hits:
        if not (hidden and hit.severity is ADVICE):
            shown = with_called(subject, hit)
            yield replace(shown, severity=ADVICE) if doubtful else shown


def _cancelled(plain: list[Command]) -> Iterator[Hit]:
    """Find a job that cancels itself at its end."""
    end = plain[-1] if plain else None
    own = end is not None and re.search(r"\$\{?SLURM_JOB_?ID\b", end.text)
    if end is not None and own and end.name == "scancel" and end.certain:
        yield Hit(
            at=end,
            what="The job is always CANCELLED, whether it succeeds or not, because scancel cancels "
            "it.",
            fix=f"remove line {end.line}: a job ends with its script"
            if not plain[:-1] or plain[-2].name not in _ENDING
            else f"{ERREXIT}, and remove line {end.line}: a job ends with its script",
        )


def _lost(subject: Subject, batch: Shell) -> Iterator[Hit]:
    if waits_for_server(batch):
        return
    launched = {id(one.launch.command) for one in subject.started}
    plain = [c for c in batch.commands if not c.substituted and not c.function]
    if batch is not subject.batch:
        launched = {id(c) for c in plain if starts(c)}
    functions = training_functions(batch)
    run = {id(c) for c in plain if id(c) in launched or c.name in functions or runs_script(c)}
    run |= {id(c) for c, _, rest in subject.sruns if rest and _is_work(rest[0])}
    run |= {id(c) for c in plain if _runs_program(c)}
    run -= {id(c) for c in plain if _installs(c)}
    inside = [c for c in batch.commands if c.function and starts(c) and not c.substituted]
    known = [c for c in plain if id(c) in run and c.name not in functions]
    known = sorted([*known, *inside], key=lambda c: c.line)
    known = [*known[:_MOST], *known[_MOST:][-_MOST:]]
    lost = [(c, ends) for c in known if (ends := _succeeding(batch, c))]
    unseen = [(c, ends) for c, ends in lost if not any(e.handled or e.lost_in for e in ends)]
    hits = list(
        _continued(batch, unseen, [c for c in known if id(c) in launched or _runs_program(c)])
    )
    for command, ends in unseen[-1:]:
        hits += _hidden(batch, command, ends, plain)
    if not known:
        hits += _always_succeeds(batch, plain)
    hits = hits or [*_in_loop(batch, known[-1:])] or [*_ignored(batch, plain)]
    hits = hits or [*_tolerated(batch, _work(batch, plain, run))]
    for command, ends in () if hits else lost[-1:]:
        hits += _only_reported(batch, command, ends, plain)
    yield from hits


def _only_reported(
    batch: Shell, command: Command, ends: tuple[Ending, ...], plain: list[Command]
) -> Iterator[Hit]:
    """Find a program whose failure the script notices, and then only prints."""
    later = [c for c in plain if c.line > command.line]
    lines = batch.text.split("\n")[command.line - 1 :]
    rest = "\n".join(line for line in lines if line.lstrip()[:1] != "#")
    noticed = COMPLAINS.search(rest) if _ASKS.match(lines[0]) else _NOTICES.search(rest)
    handled = all(e.handled and not e.lost_in for e in ends)
    if later and noticed and handled and not any(_goes_on(batch, c) for c in later):
        yield Hit(
            at=command,
            what="The script notices if this command fails, but the job is COMPLETED anyway, "
            f"because its last command succeeds (line {later[-1].line}).",
            fix="exit 1  # in the branch for the failure",
            severity=ADVICE,
        )


def _goes_on(batch: Shell, command: Command) -> bool:
    """Tell whether a job does more than to print: it ends, works, or comes again."""
    submits = command.name == "sbatch" or "requeue" in command.text
    return submits or command.name in _ENDS_JOB or _works(batch, command)


def _succeeding(batch: Shell, command: Command, *, once: bool = False) -> tuple[Ending, ...]:
    """Return the ends of the script if a command fails, if it succeeds in all of them."""
    ends = endings(batch.text, command.line, command.name, once=once) or ()
    return ends if all(end.succeeds for end in ends) else ()


def _work(batch: Shell, plain: list[Command], run: set[int]) -> list[Command]:
    return [c for c in plain if id(c) in run or (_works(batch, c) and not _installs(c))]


def _turns_errexit_on(subject: Subject, command: Command) -> bool:
    """Tell whether a command sources a file of the repository that contains `set -e`."""
    return any(_ERREXIT.search(text) for text in _sourced(subject, command))


def _is_unread(subject: Subject, command: Command) -> bool:
    """Tell whether a command sources a file of the project that lint does not find."""
    path = command.arguments[0].text if command.arguments else ""
    own = command.name in ("source", ".") and path.endswith((".sh", ".bash"))
    return own and not _OF_ENVIRONMENT.search(path) and not _sourced(subject, command)


def _sourced(subject: Subject, command: Command) -> list[str]:
    """Return the texts that a command may source, also if a variable begins the path."""
    if command.name not in ("source", ".") or not command.arguments[:1]:
        return []
    name, root = command.arguments[0].text, subject.files.root(subject.path)
    below = name.rpartition("}/")[2] if "}/" in name else re.sub(r"^\$\w+/", "", name)
    places = [beside(base, one) for base in ("", command.path) for one in (name, below)]
    places += [f"{root.path}/{below}"] if root else []
    return [text for text in map(subject.files.read, places) if text]


def _lost_inside(subject: Subject) -> Iterator[Hit]:
    """Find failures that the text of `bash -c` hides."""
    launched = {(one.launch.path, one.launch.line) for one in subject.started}
    for shell in subject.shells[1:]:
        plain = [c for c in shell.commands if not c.substituted and not c.function]
        decides = any(c.name in ("trap", "exit", "return") for c in shell.commands)
        if decides or shell.path != subject.path or "errexit" in shell.settings or not plain:
            continue
        run = [c for c in plain if starts(c) and (c.path, c.line) in launched and c.certain]
        run = [c for c in run if not c.background and not c.piped_into]
        end = plain[-1]
        quiet = end.name in ("echo", "printf") or lists_own(end, subject.commands)
        if run and end.line >= run[-1].line and quiet and end.certain:
            yield Hit(
                at=run[-1],
                what="The inner shell succeeds even if this command fails, because "
                f"{end.name} (line {end.line}) succeeds afterwards.",
                fix="set -e; …  # at the start of the inner script",
            )
        elif run[-1:] == [end] and script_of(run[0]) != script_of(end):
            yield Hit(
                at=run[0],
                what="If this command fails, the inner shell continues with line "
                f"{run[1].line}. It has the status of its last command.",
                fix="… || exit 1",
                severity=ADVICE,
            )


def _lost_in_scripts(subject: Subject) -> Iterator[Hit]:
    """Find failures in scripts that the job starts, and that these scripts hide."""
    for shell in subject.shells[1:]:
        name = shell.path.rpartition("/")[2]
        sourced = any(c.name in ("source", ".") and name in c.text for c in subject.commands)
        if shell.path != subject.path and not sourced and not shell.suspect:
            for hit in _lost(subject, shell):
                yield of_started(subject, shell, hit)


def _hidden(
    batch: Shell, command: Command, ends: tuple[Ending, ...], plain: list[Command]
) -> Iterator[Hit]:
    """Report a command whose status is not that of the job."""
    line = max(end.line for end in ends)
    last = next((c for c in reversed(plain) if c.line <= line), command)
    if last.background or line < command.line:
        return
    beside = [c for c in plain if c.background]
    if last.text == "wait" and any(SERVER.search(c.text) for c in beside):
        return  # reported by E508
    if last.text == "wait" and beside:  # perhaps for a server
        yield Hit(
            at=command,
            what=f"The job has the status of wait (line {line}), not of this command.",
            fix=WORDS
            if command.repeated or command.function
            else f"status=$?  # behind this command, and behind line {line}: exit $status",
            severity=ADVICE,
        )
        return
    quiet = last.name in _ENDING and not lists(last) and not may_fail(batch, last)
    if last.line != line or quiet or copies_anyway(last, plain) or last.text == "wait":
        what = _shown(last) if last.line == line else "a command"
        tolerated = is_tolerated(batch, command.function)
        yield Hit(
            at=command,
            what=f"If this command fails, `{command.function}` continues, and its status does not "
            "show the failure."
            if tolerated
            else f"The job is COMPLETED even if this command fails, because {what} (line {line}) "
            "succeeds afterwards.",
            fix=fix_of(batch, command),
            severity=ADVICE if tolerated else None,
        )
    elif last.name in COPIES | {"rmdir", "ls", "rm"}:
        yield Hit(
            at=command,
            what=f"The job has the status of {last.name} (line {line}), not of this command.",
            fix=fix_of(batch, command),
            severity=ADVICE,
        )


def _always_succeeds(batch: Shell, plain: list[Command]) -> Iterator[Hit]:
    """Find a program that lint does not know, in a script that ends with `exit 0`."""
    end = plain[-1] if plain else None
    if end is None or end.text != "exit 0":
        return
    programs = [c for c in plain if c.certain and not c.background and not c.piped_into]
    programs = [c for c in programs if c.name not in _ENDING | _ASIDE | _PREPARES]
    for command in programs[-1:] if _unseen(batch, programs[-1:]) else ():
        yield Hit(
            at=command,
            what=f"The job is COMPLETED even if this command fails, because `exit 0` (line "
            f"{end.line}) succeeds afterwards.",
            # Without the line, the job has the status of the command before it.
            fix=f"remove line {end.line}"
            if plain[-2] is command and not command.repeated
            else fix_of(batch, command),
        )


def _unseen(batch: Shell, commands: list[Command]) -> list[Command]:
    """Return the commands whose failure nothing looks at, in a script that then succeeds."""
    found = ((c, _succeeding(batch, c)) for c in (*commands[:_MOST], *commands[_MOST:][-_MOST:]))
    return [c for c, ends in found if ends and not any(e.handled or e.lost_in for e in ends)]


def _is_work(program: Word) -> bool:
    """Tell whether a step runs a program of its own, such as ./simulate."""
    name = program.text.rpartition("/")[2]
    return program.known and bool(name) and name not in _ASIDE


def _runs_program(command: Command) -> bool:
    """Tell whether a command runs a program through another one, such as `uv run`."""
    first = command.arguments[0].text if command.arguments else ""
    return first in _RUNNERS.get(command.name, ()) or (
        command.name in _INTERPRETERS and bool(first) and first not in ("--version", "-v")
    )


def _in_loop(batch: Shell, commands: list[Command]) -> Iterator[Hit]:
    """Find programs whose first failure in a loop is lost."""
    for command in commands:
        if _is_lost_in_loop(batch, command):
            yield Hit(
                at=command,
                what=_LOOP_CONTINUES,
                fix=fix_of(batch, command),
                severity=ADVICE,
            )


def _is_lost_in_loop(batch: Shell, command: Command) -> bool:
    once = _succeeding(batch, command, once=True) if command.repeated else ()
    return bool(once) and not any(end.handled or end.lost_in for end in once)


def _shown(command: Command) -> str:
    return f"`{command.text}`" if command.name in ("exit", "set") else command.name


def _ignored(batch: Shell, plain: list[Command]) -> Iterator[Hit]:
    """Find a program whose status is lost, also if lint does not know it."""
    end = plain[-1] if plain else None
    waits = end is not None and (end.text == "exit" or end.name in _KEEPS)
    if end is None or batch.suspect or waits or may_fail(batch, end) or is_text(end):
        return
    main = [c for c in batch.commands if not _installs(c)]
    only = not any(starts(c) or _works(batch, c) or runs_script(c) for c in main)
    able = [c for c in plain if not c.background and (only or _works(batch, c))]
    able = [c for c in able if only is _installs(c)]
    work = _unseen(batch, able)
    # A command in a branch may be the last one.
    always = max((c.line for c in plain if c.certain and not c.background), default=0)
    lost = [c for c in work if c.line < always]
    known = [c for c in lost if starts(c) or _runs_program(c)]
    if any(c.name in _ENDS_JOB for c in plain):
        return
    if lost and end.certain and end.name in _ENDING and not lists(end):
        command = lost[-1]
        what = (
            f"The job is COMPLETED even if this command fails, because {_shown(end)} (line "
            f"{end.line}) succeeds afterwards."
        )
    elif lost:
        command = (known or lost)[0]
        what = (
            "If this command fails, the script continues. The job has the status of its last "
            f"command (line {end.line})."
        )
    elif repeated := [c for c in able[-_MOST:] if _is_lost_in_loop(batch, c)]:
        command, what = repeated[-1], _LOOP_CONTINUES
    else:
        return
    yield Hit(at=command, what=what, fix=fix_of(batch, command), severity=ADVICE)


def _installs(command: Command) -> bool:
    """Tell whether a command prepares or tests an environment, and is seldom the work of a job."""
    installs = INSTALLS.match(start_of(command))
    return bool(installs or _PREPARES_PYTHON.search(command.text))


def _works(batch: Shell, command: Command) -> bool:
    """Tell whether a command is the work of a job, or a function that does it."""
    own = command.name
    inside = [c for c in batch.commands if c.function == own]
    if inside:
        exits = any(c.name in ("exit", "return") for c in inside)
        return not exits and any(c.name not in _AROUND | {own} for c in inside)
    if command.name in _INTERPRETERS | _RUNNERS.keys():
        return _runs_program(command)
    if command.name == "eval":
        return any(map(_RUN_BY_EVAL.match, (word.text for word in command.arguments[:1])))
    name = command.name
    if name in _BEFORE_PROGRAMS:
        words = (w.text.rpartition("/")[2] for w in command.arguments)
        name = next((word for word in words if word[:1] not in "-0123456789"), "time")
    return name not in _AROUND and not is_text(command) and not SERVER.search(command.text)


def _tolerated(batch: Shell, commands: list[Command]) -> Iterator[Hit]:
    """Find programs with an alternative that always succeeds, such as `|| true`."""
    lines = batch.text.split("\n")
    for command in (*commands[:_MOST], *commands[_MOST:][-_MOST:]):
        rest = lines[command.line - 1 :]
        more = list(takewhile(lambda line: line.endswith("\\"), rest))
        found = _OR_TRUE.search(rest[len(more)]) if len(more) < len(rest) else None
        ends = _succeeding(batch, command) if found else ()
        if found and ends and all(end.handled for end in ends):
            yield Hit(
                at=command,
                what=f"The job is COMPLETED even if this command fails, because of `{found[1]}`.",
                fix=f"remove `{found[0].strip()}`",
                severity=ADVICE,
            )
            return


def _continued(
    batch: Shell, lost: list[tuple[Command, tuple[Ending, ...]]], programs: list[Command]
) -> Iterator[Hit]:
    """Find a program after which another one runs, whether it succeeds or not."""
    others = {c.line for c in programs}
    for command, ends in lost:
        following = [c for c in programs if c.line > command.line]
        if is_tolerated(batch, command.function):
            continue
        if following and command in programs and {end.line for end in ends} <= others:
            yield Hit(
                at=command,
                what=f"If this command fails, the script continues with line {following[0].line}. "
                "The job has the status of its last command.",
                fix=fix_of(batch, command),
                severity=ADVICE,
            )
            return


RULES = (
    Rule(
        code="E507",
        title="failure hidden by a later command",
        severity=WARNING,
        check=find_lost_status,
        why="The exit status of a job is that of the last command in its script. After `echo`, it "
        "is 0, and jobs that depend on the success of this job start. Without `set -e`, a script "
        "also continues if a copy fails, and may then remove its source.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=1
+set -e
 srun python train.py    # <- here
 echo done
""",
    ),
)
