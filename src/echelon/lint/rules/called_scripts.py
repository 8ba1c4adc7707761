"""Failures that a script hides which the job starts; part of E507."""

from dataclasses import replace

from echelon.lint.bash import Command, Shell
from echelon.lint.exit_status import endings
from echelon.lint.rule import ADVICE, Hit
from echelon.lint.rules.programs import QUIET
from echelon.lint.rules.status_fixes import errexit_fix
from echelon.lint.subject import Subject

_BOTH_SUCCEED = "This script, and the line of the job that starts it, succeed"


def of_started(subject: Subject, shell: Shell, hit: Hit) -> Hit:
    """Say what a failure in a script means for the job that starts it."""
    what = hit.what.replace("The job is COMPLETED", _BOTH_SUCCEED)
    what = what.replace("The job has", "The script has")
    calls = [c for c in subject.shells[0].commands if shell in _called(subject, c)]
    lost = any(_is_lost(subject.shells[0], call) for call in calls)
    second = f"\n{_fix_of(subject.shells[0], calls)}" if lost and hit.severity is not ADVICE else ""
    return replace(hit, what=what, fix=hit.fix + second)


def _is_lost(batch: Shell, call: Command) -> bool:
    """Tell whether the job succeeds if a script that it starts fails."""
    ends = endings(batch.text, call.line, call.name, once=call.repeated)
    return bool(ends) and all(end.succeeds for end in ends or ())


def _fix_of(batch: Shell, calls: list[Command]) -> str:
    if len(calls) > 1 or calls[0].repeated:
        return "… || code=1  # for each call in the job script; end it with: exit ${code:-0}"
    return errexit_fix(batch, calls[0], of="the job script")


def with_called(subject: Subject, hit: Hit) -> Hit:
    """Add the fix of the script that a command starts, if that hides failures too."""
    for shell in _called(subject, hit.at) if isinstance(hit.at, Command) else ():
        plain = [c for c in shell.commands if not c.substituted and not c.function]
        end = plain[-1] if plain else None
        work = [c for c in plain if c.name not in QUIET]
        quiet = end and end.certain and end.name in QUIET
        if work and quiet and "errexit" not in shell.settings:
            fix = errexit_fix(shell, work[-1], of=shell.path.rpartition("/")[2])
            return replace(hit, fix=f"{hit.fix}\n{fix}")
    return hit


def _called(subject: Subject, command: Command) -> list[Shell]:
    """Return the script that a command starts."""
    names = {word.text.rpartition("/")[2] for word in command.words}
    others = (shell for shell in subject.shells[1:] if shell.path != subject.path)
    return [shell for shell in others if shell.path.rpartition("/")[2] in names]
