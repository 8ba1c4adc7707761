"""E509 and E510: signals without a handler, and what ends or removes that of other jobs."""

import re
from collections.abc import Iterator
from signal import Signals

from echelon.lint.bash import Command, Shell, Where
from echelon.lint.facts import sources_others
from echelon.lint.files import Place
from echelon.lint.harmless import runs_only_scripts
from echelon.lint.patterns import pattern
from echelon.lint.rule import ADVICE, WARNING, Hit, Rule
from echelon.lint.subject import Subject

_TO_THE_SHELL = pattern(r"[RO]*B[RO]*:(?:SIG)?([A-Z]+\d?)(?:@\d+)?")
"""A signal that Slurm sends to the job script, not to its steps."""
_IGNORED = frozenset({"URG", "CHLD", "CONT", "WINCH"})
"""Signals that do not end a process."""
_TO_THE_STEPS = pattern(r"(?:R:)?(?:SIG)?(USR1|USR2|TERM|HUP|10|12|15|1)(?:@\d+)?", re.IGNORECASE)
"""A signal that Slurm sends to the steps, and that ends a process without a handler."""
_STEPS = pattern(r"\b(?:srun|mpirun|mpiexec|ibrun|prun|sattach|ray|dask|nextflow|snakemake)\b")
_SRUN = pattern(r"\bsrun\b")
_HANDLES = (
    *("signal.signal", "import signal", "from signal", "add_signal_handler", "sigaction"),
    *("ightning", "submitit", "transformers", "echelon", "composer", "nemo", "fairseq", "SIGUSR"),
)
"""Words of scripts that handle signals, or that use a framework that does."""
_FRAMEWORKS = ("ightning", "submitit", "echelon")
"""Packages that handle the signal by themselves."""
_OF_OWN_PROCESSES = pattern(r"-[PgsF]|--(?:parent|pgroup|session|pidfile|ns|cgroup)\b")
"""Options of pkill that restrict it to certain processes."""

_ALL_OF = pattern(r"([\w.$~{}][\w.$~{}/-]{0,200}?)/+\*(?:\.\w+)?")
"""All files of a folder."""
_OF_JOB = pattern(r"JOB|TMPDIR|\$\$")
"""Names of folders that belong to one job."""


def find_late_handler(subject: Subject) -> Iterator[Hit]:
    yield from _ends_ranks(subject)
    yield from _reaches_nothing(subject)
    batch, signal = subject.batch, subject.directives.last("signal")
    if batch is None or signal is None or not (sent := _TO_THE_SHELL.fullmatch(signal.value)):
        return
    plain = [c for c in batch.commands if not c.substituted and not c.function]
    traps = [
        c
        for c in plain
        if c.name == "trap" and any(w.text.removeprefix("SIG") == sent[1] for w in c.arguments[1:])
    ]
    launched = {id(one.launch.command) for one in subject.started}
    if not traps:
        yield from _unhandled(subject, batch, sent[1])
    run = [c for c in plain if id(c) in launched and traps and c.line > traps[0].line]
    if run and not any(c.background for c in plain):
        yield Hit(
            at=run[-1],
            what=f"Bash runs the handler of {sent[1]} (line {traps[0].line}) only when this "
            "command has ended. At the time limit, Slurm kills the job before that.",
            fix=f"{run[-1].name} … &\nwait $!  # a signal ends wait",
        )


def _reaches_nothing(subject: Subject) -> Iterator[Hit]:
    """Find a signal to the steps of a job that has none."""
    item = subject.directives.last("signal")
    sent = _TO_THE_STEPS.fullmatch(item.value) if item else None
    if item is None or sent is None or not runs_only_scripts(subject):
        return
    plain = bool(subject.started) and all(
        one.launch.srun is None and not one.launch.mpi and not one.launch.elsewhere
        for one in subject.started
    )
    words = (_full_name(sent[1]), *_FRAMEWORKS)
    handled = any(one.python and one.python.mentions(*words) for one in subject.started)
    if plain and not any(map(_STEPS.search, subject.code)):
        yield Hit(
            at=Place(subject.path, item.line),
            what="Without `B:`, Slurm sends the signal to the steps only, and the script starts "
            "none with srun. Nothing receives the signal.",
            fix="srun …  # for the program that handles the signal"
            if handled
            else "remove this line; or, if a program handles the signal, start it with srun",
            severity=None if handled else ADVICE,
        )


def _full_name(sent: str) -> str:
    return Signals(int(sent)).name if sent.isdecimal() else f"SIG{sent.upper()}"


def _unhandled(subject: Subject, batch: Shell, name: str) -> Iterator[Hit]:
    """Find a signal that ends the job script, because it has no handler."""
    handled = any(c.name in ("trap", "exec") for c in subject.commands if c.text != "trap - EXIT")
    signal = subject.directives.last("signal")
    if handled or sources_others(subject) or name in _IGNORED or not batch.commands or not signal:
        return
    forwards = f"… & pid=$!; trap 'kill -s {name} $pid' {name}; wait $pid || wait $pid"
    yield Hit(
        at=Place(subject.path, signal.line),
        what=f"Slurm sends {name} to the job script, which has no handler. The signal ends the "
        "script, and with it the job, before the time limit.",
        fix=f"#SBATCH --signal={name}@…  # without B:, if the program of srun handles {name}; "
        f"otherwise:\nsrun {forwards}"
        if any(map(_SRUN.search, subject.code))
        else f"exec …  # for the program, if it handles {name} and is the last command; "
        f"otherwise:\n{forwards}",
    )


def _ends_ranks(subject: Subject) -> Iterator[Hit]:
    """Find a signal to the steps that their Python does not handle."""
    item = subject.directives.last("signal")
    sent = _TO_THE_STEPS.fullmatch(item.value) if item else None
    handled = any("trap" in shell.text for shell in subject.shells if shell.where is Where.TASK)
    if item is None or sent is None or handled:
        return
    name = _full_name(sent[1])
    for one in subject.started:
        python = one.python
        if python is None or one.launch.srun is None or python.mentions(*_HANDLES):
            continue
        yield Hit(
            at=Place(subject.path, item.line),
            what=f"Slurm sends {name} to the processes that srun starts. {python.path} has no "
            "handler, so the signal ends the ranks before the time limit.",
            fix=f"signal.signal(signal.{name}, …)  # in {python.path}, or remove the option",
            severity=ADVICE,
        )
        return


def find_killed_by_name(subject: Subject) -> Iterator[Hit]:
    yield from _removed(subject)
    alone = subject.directives.last("exclusive")
    if not subject.is_job or (alone and alone.value not in ("user", "mcs", "topo")):
        return
    for command in subject.commands:
        names = [word.text.rpartition("/")[2] for word in command.words]
        if names[0] == "srun":
            program = next((n for n in names if n in ("pkill", "killall")), "")
        else:
            program = names[0] if names[0] in ("pkill", "killall") else ""
        if program and not _is_restricted(command, names.index(program)):
            yield Hit(
                at=command,
                what=f"{program} ends all of your processes with that name, also those of your "
                "other jobs on the node.",
                fix="server=$!  # after the command, and here:\nkill $server",
            )


def _removed(subject: Subject) -> Iterator[Hit]:
    """Find `rm folder/*` if the script writes files named by the job ID into the folder."""
    written = [*subject.code, *(assignment.value.text for assignment in subject.assignments)]
    for command in subject.commands if subject.is_job else ():
        for word in command.arguments if command.name == "rm" else ():
            found = _ALL_OF.fullmatch(word.text)
            if found is None or any(map(_OF_JOB.search, (found[1], *word.names))):
                continue
            names = [a.name for a in subject.assignments if a.value.text == found[1]]
            folder = "|".join([re.escape(found[1]), *(rf"\$\{{?{name}\}}?" for name in names)])
            named = re.compile(rf"(?<![\w/.])(?:{folder})/[^\s/]{{0,99}}\$\{{?SLURM_\w*JOB_?ID")
            if any(map(named.search, written)):
                yield Hit(
                    at=command,
                    what=f"`{word.text}` also removes the files that other jobs with this script "
                    "have written and still need.",
                    fix=f"rm {found[1]}/$SLURM_JOB_ID…",
                )


def _is_restricted(command: Command, place: int) -> bool:
    """Tell whether pkill or killall signals only processes of the job."""
    given = command.words[place + 1 :]
    own = command.words[place].text.endswith("pkill") and any(
        _OF_OWN_PROCESSES.match(word.text) for word in given
    )
    unique = {name for word in given for name in word.names} - {"USER", "LOGNAME"}
    return own or bool(unique) or not given or any("$" in w.text and not w.uses for w in given)


RULES = (
    Rule(
        code="E509",
        title="signal handler that is missing or runs too late",
        severity=WARNING,
        check=find_late_handler,
        why="With `--signal=B:…`, Slurm sends the signal to the job script only. Bash does not run "
        "a handler while it waits for a command, but the `wait` command ends on a signal. Without "
        "`B:`, Slurm sends the signal to the steps only.",
        example="""\
 #!/bin/bash
 #SBATCH --time=1-00:00:00
 #SBATCH --signal=B:USR1@60
 trap 'scontrol requeue $SLURM_JOB_ID' USR1
-srun python train.py    # <- here
+srun python train.py &
+wait $!
""",
    ),
    Rule(
        code="E510",
        title="processes or files of other jobs",
        severity=ADVICE,
        check=find_killed_by_name,
        why="Without `--exclusive`, a node can run several jobs of a user. pkill and killall find "
        "the processes of all of them. Slurm ends the processes of a job when the job ends. "
        "`rm folder/*` removes the files of all jobs, also of those that still run.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=1
-pkill -f train.py    # <- here
 python train.py
""",
    ),
)
