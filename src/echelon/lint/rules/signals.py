"""E509: signals that the job script does not handle in time."""

from collections.abc import Iterator

from echelon.lint.bash import Command
from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.rule import WARNING, Hit, rule
from echelon.lint.script import Script

_TO_THE_SHELL = pattern(r"[RO]*B[RO]*:(?:SIG)?([A-Z]+\d?)(?:@\d+)?")
"""A signal that Slurm sends to the job script, not to its steps."""
_IGNORED = frozenset({"URG", "CHLD", "CONT", "WINCH"})
"""Signals that do not end a process."""
_HANDLER = """\
… &  # the training
pid=$!
trap 'kill -s {name} $pid' {name}  # passes the signal on
wait $pid  # ends at the signal
wait $pid  # waits until the training has handled it"""


@rule("E509", WARNING)
def late_handler(script: Script) -> Iterator[Hit]:
    """Signal handler that is missing or runs too late.

    With `--signal=B:…`, Slurm sends the signal to the job script only. Without a handler, it ends
    the script. Bash does not run a handler while it waits for a command, but the `wait` command
    ends on a signal.

    Example:
         #!/bin/bash
         #SBATCH --signal=B:USR1@120
         trap 'scontrol requeue "$SLURM_JOB_ID"' USR1
        -srun python train.py    # <- here
        +srun python train.py &
        +wait $!
    """
    batch, signal = script.batch, script.directives.last("signal")
    sent = _TO_THE_SHELL.fullmatch(signal.value) if signal else None
    if batch is None or signal is None or sent is None:
        return
    plain = [c for c in batch.commands if not c.substituted and not c.function]
    traps = [c for c in plain if c.name == "trap" and _names(c, sent[1])]
    handled = any(c.name in ("trap", "exec") for c in script.commands) or script.sources_others
    if not handled and batch.commands and sent[1] not in _IGNORED:
        yield Hit(
            at=Place(script.path, signal.line),
            what=f"Slurm sends {sent[1]} to the job script, which has no handler. The signal ends "
            "the script, and with it the job, before the time limit.",
            fix=_HANDLER.format(name=sent[1]),
        )
    launched = {id(one.launch.command) for one in script.started}
    run = [c for c in plain if id(c) in launched and traps and c.line > traps[0].line]
    if run and not any(c.background for c in plain):
        yield Hit(
            at=run[-1],
            what=f"Bash runs the handler of {sent[1]} (line {traps[0].line}) only when this "
            "command has ended. At the time limit, Slurm kills the job before that.",
            fix=f"{run[-1].name} … &\nwait $!  # a signal ends wait",
        )


def _names(trap: Command, name: str) -> bool:
    return any(word.text.removeprefix("SIG") == name for word in trap.arguments[1:])
