"""Failures in scripts that the job starts, and that these scripts hide; part of E507."""

import re
from collections.abc import Iterator
from dataclasses import replace

from echelon.lint.bash import Command, Shell
from echelon.lint.exit_status import endings
from echelon.lint.rule import ADVICE, Hit
from echelon.lint.rules.programs import QUIET
from echelon.lint.rules.status_fixes import fix_of_calls, fix_of_other
from echelon.lint.subject import Subject


def of_started(subject: Subject, shell: Shell, hit: Hit) -> Hit:
    """Say what a failure in a script means for the job that starts it."""
    what = hit.what.replace("The job has", "The script has")
    if "The job is COMPLETED" in what:
        what = what.replace("The job is COMPLETED", "This script succeeds").removesuffix(".")
        what += ", so the job does not notice."
    more = _fixes_above(subject, shell) if hit.severity is not ADVICE else []
    return replace(hit, what=what, fix="\n".join([hit.fix, *more]))


def _fixes_above(subject: Subject, shell: Shell) -> list[str]:
    """Return the fixes of the scripts through which the job starts a script."""
    found: list[str] = []
    seen = {shell.path}
    while shell is not subject.shells[0]:
        starting = (
            (s, [c for c in s.commands if shell in _called(subject, c)]) for s in _own(subject)
        )
        caller, calls = next(((s, calls) for s, calls in starting if calls), (shell, []))
        if not calls or caller.path in seen:
            break
        seen.add(caller.path)
        lost = [call for call in calls if _is_lost(caller, call)]
        name = "the job script" if caller is subject.shells[0] else caller.path.rpartition("/")[2]
        found += [fix_of_calls(caller, lost, of=name)] if lost else []
        shell = caller
    return found


def _own(subject: Subject) -> Iterator[Shell]:
    """Yield the job script and the scripts that it starts, without the texts of `bash -c`."""
    yield subject.shells[0]
    yield from (shell for shell in subject.shells[1:] if shell.path != subject.path)


def _is_lost(batch: Shell, call: Command) -> bool:
    """Tell whether a script succeeds if one that it starts fails."""
    ends = endings(batch.text, call.line, call.name, once=call.repeated)
    return bool(ends) and all(end.succeeds for end in ends or ())


def with_called(subject: Subject, hit: Hit) -> Hit:
    """Add the fix of the script that a command starts, if that hides failures too."""
    for shell in _called(subject, hit.at) if isinstance(hit.at, Command) else ():
        plain = [c for c in shell.commands if not c.substituted and not c.function]
        end = plain[-1] if plain else None
        work = [c for c in plain if c.name not in QUIET]
        quiet = end and end.certain and end.name in QUIET
        if work and quiet and "errexit" not in shell.settings:
            fix = fix_of_other(shell, work[-1], of=shell.path.rpartition("/")[2])
            return replace(hit, fix=f"{hit.fix}\n{fix}")
    return hit


def _called(subject: Subject, command: Command) -> list[Shell]:
    """Return the script that a command starts."""
    words = [re.sub(r"^(?:.*\}|\$\w+|\.)/", "", word.text) for word in command.words]
    others = [shell for shell in subject.shells[1:] if shell.path != subject.path]
    named = [s for s in others if any(_ends_with(s.path, word) for word in words)]
    # Otherwise, the repository may be at another place.
    return named or [s for s in others if any(_ends_with(word, s.path) for word in words)]


def _ends_with(path: str, end: str) -> bool:
    return bool(end) and f"/{path}".endswith(f"/{end}")
