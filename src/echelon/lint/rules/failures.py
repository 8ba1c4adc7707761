"""E503 to E505, E508 and E509: failures that nobody notices, and signals."""

import re
from collections.abc import Iterator

from echelon.lint.bash import Command, Shell, Where
from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.rule import ADVICE, ERROR, WARNING, Hit, Rule
from echelon.lint.rules.world import sources_others
from echelon.lint.subject import Subject

_STARTERS = ("srun", "torchrun", "mpirun", "mpiexec", "deepspeed", "accelerate")
QUIET = frozenset({"echo", "date", "printf", "hostname", "true", ":", "kill", "sleep"})
SERVER = pattern(
    r"\bvllm serve\b|vllm\.entrypoints|sglang\.launch_server|\btext-generation-launcher\b|"
    r"\btensorboard\b.*--logdir|\bjupyter[- ](lab|notebook)\b|\bray start\b.*--block|"
    r"\bnvidia-smi\b.* (-l|--loop|dmon|pmon)|-m http\.server|\bmlflow (ui|server)\b|"
    r"\bollama serve\b|\bredis-server\b|\btail -[fF]\b"
)
"""Programs that run until something ends them."""
_HELPS = pattern(
    r"(?i)monitor|server?\b|daemon|\bserve\b|watch|log|util|stat\b|tunnel|proxy|dashboard|xvfb|"
    r"redis|mongod|postgres|jupyter|code|nohup|scheduler|worker|ray\b|dask|mps-control"
)
"""Programs that run beside the work of a job."""
_ENDS_OTHERS = frozenset({"kill", "pkill", "killall", "scancel", "timeout", "exit"})
_TO_THE_SHELL = pattern(r"[RO]*B[RO]*:(?:SIG)?([A-Z]+\d?)(?:@\d+)?")
"""A signal that Slurm sends to the job script, not to its steps."""
_IGNORED = frozenset({"URG", "CHLD", "CONT", "WINCH"})
"""Signals that do not end a process."""
_NOT_WORK = QUIET | {"cat", "ls", "env", "nvidia-smi", "module", "pip", "time", "{", "sed", "awk"}
_HARMLESS_PIPES = frozenset({"head", "grep", "wc", "true"})


def find_swallowed_failure(subject: Subject) -> Iterator[Hit]:
    batch = subject.batch
    if batch is None or not subject.is_job:
        return
    functions = training_functions(batch)
    known = [c for c in batch.commands if starts(c) or runs_script(c) or c.name in functions]
    background = [c for c in known if c.background]
    unknown = [c for c in batch.commands if c.background and not _is_helper(c)]
    severity = None if background else ADVICE
    background = background or unknown
    waits = [c for c in batch.commands if c.name == "wait" and not c.function]
    bare = [c for c in waits if len(c.words) == 1]
    if not background or len(bare) != len(waits):
        return
    ended = [c.line for c in batch.commands if c.name in ("kill", "pkill", "scancel")]
    for wait in bare[-1:]:
        if any(background[-1].line < line <= wait.line for line in ended):
            continue  # the script has ended them itself
        if wait.line >= background[-1].line:
            yield Hit(
                at=wait,
                what="`wait` without arguments returns 0, so the job is COMPLETED even if a step "
                "failed.",
                fix="pids+=($!)  # after each &, then replace wait with:\n"
                'for pid in "${pids[@]}"; do wait "$pid" || code=1; done; exit "${code:-0}"',
                severity=severity,
            )


def _is_helper(command: Command) -> bool:
    """Tell whether a background command serves others, or is not the work of the job."""
    quiet = command.name in QUIET | {"ssh", "cp", "rsync", "cat", "tail", "nvidia-smi", "wait"}
    return quiet or bool(SERVER.search(command.text) or _HELPS.search(command.text))


def find_endless_wait(subject: Subject) -> Iterator[Hit]:
    batch = subject.batch
    if batch is None or not subject.is_job or "trap" in batch.text:
        return
    plain = [c for c in batch.commands if not c.substituted and not c.function]
    if any(c.name in _ENDS_OTHERS for c in batch.commands):
        return
    servers = [c for c in plain if c.background and SERVER.search(c.text)]
    if any("jupyter" in c.text for c in servers):
        return  # a person works with it, as long as the job runs
    others = [c for c in plain if starts(c) and not SERVER.search(c.text)]
    waits = [c for c in plain if c.name == "wait" and len(c.words) == 1 and c.certain]
    if servers and others and waits and waits[-1].line > servers[-1].line:
        yield Hit(
            at=waits[-1],
            what=f"`wait` also waits for the server in line {servers[-1].line}, which does not "
            "exit. The job runs until its time limit.",
            fix="server=$!  # after the server, and here instead of wait:\nkill $server",
        )


def starts(command: Command) -> bool:
    return command.name in _STARTERS or bool(re.match(r"python|.*\.py$", command.name))


def runs_script(command: Command) -> bool:
    scripts = (word.text for word in command.arguments if word.text.endswith((".sh", ".bash")))
    return command.name in ("bash", "sh") and any(scripts)


def training_functions(batch: Shell) -> set[str]:
    """Return the functions of a script that start a program."""
    return {c.function for c in batch.commands if c.function and starts(c)}


def find_missing_wait(subject: Subject) -> Iterator[Hit]:
    batch = subject.batch
    if batch is None or not subject.is_job:
        return
    commands = [c for c in batch.commands if not c.substituted and not c.function]
    functions = training_functions(batch)
    background = [c for c in commands if c.background and (starts(c) or c.name in functions)]
    if not background:
        yield from _unfinished(batch, commands)
        return
    last = background[-1]
    after = [
        c for c in commands if c.line > last.line or (c.line == last.line and not c.background)
    ]
    if all(c.name in QUIET for c in after) and not any(c.name == "sleep" for c in after):
        yield Hit(
            at=last,
            what="The script ends while this command is still running. Slurm then kills the "
            "command.",
            fix="wait $!  # as the last line",
            severity=None if last.certain or last.looped else WARNING,
        )


def _unfinished(batch: Shell, commands: list[Command]) -> Iterator[Hit]:
    """Find a program in the background that lint does not know, without `wait` after it."""
    background = [c for c in commands if c.background and not _is_helper(c)]
    if not background or any(c.name in ("wait", "fg", "tail") for c in batch.commands):
        return
    last = background[-1]
    after = [c for c in commands if c.line >= last.line and not c.background]
    same = [c for c in after[-1:] if c.name == last.name]
    if same or all(c.name in QUIET - {"sleep", "kill"} for c in after):
        yield Hit(
            at=last,
            what="If this command still runs when the script ends, Slurm kills it.",
            fix="wait  # as the last line",
            severity=ADVICE if same else WARNING,
        )


def find_swallowing_pipe(subject: Subject) -> Iterator[Hit]:
    batch = subject.batch
    if batch is None or not subject.is_job or "PIPESTATUS" in subject.text:
        return
    launched = {(one.launch.path, one.launch.line) for one in subject.started}
    launched |= {(one.launch.command.path, one.launch.command.line) for one in subject.started}
    plain = [c for shell in subject.shells if "pipefail" not in shell.text for c in shell.commands]
    for command in plain:
        begins = starts(command) and not command.substituted and not command.background
        into = command.piped_into[:1]
        known = (command.path, command.line) in launched and begins
        script = runs_script(command) and not command.substituted and not command.background
        other = into == ("tee",) and not (command.substituted or command.background)
        other = other and command.name not in _NOT_WORK
        if ((known or script) and into and into[0] not in _HARMLESS_PIPES) or other:
            yield Hit(
                at=command,
                what=f"The pipe returns the exit status of {into[0]}, so the job is COMPLETED even "
                "if this command fails.",
                fix="set -o pipefail  # near the top of the script"
                if command.where is Where.BATCH
                else "set -o pipefail; …  # at the start of the inner script",
                severity=None if known or script else ADVICE,
            )


def find_late_handler(subject: Subject) -> Iterator[Hit]:
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


def _unhandled(subject: Subject, batch: Shell, name: str) -> Iterator[Hit]:
    """Find a signal that ends the job script, because it has no handler."""
    handled = any(c.name in ("trap", "exec") for c in subject.commands if c.text != "trap - EXIT")
    signal = subject.directives.last("signal")
    if handled or sources_others(subject) or name in _IGNORED or not batch.commands or not signal:
        return
    yield Hit(
        at=Place(subject.path, signal.line),
        what=f"Slurm sends {name} to the job script, which has no handler. The signal ends the "
        "script, and with it the job, before the time limit.",
        fix=f"trap '…' {name}  # before the first command, or --signal={name}@… for the steps",
    )


RULES = (
    Rule(
        code="E503",
        title="`wait` that hides failures",
        severity=WARNING,
        check=find_swallowed_failure,
        why="`wait` without arguments returns 0 even if a background process failed. Jobs that "
        "depend on the success of this job then start.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=2
-srun -N1 -n1 python a.py &
-srun -N1 -n1 python b.py &
-wait    # <- here
+srun -N1 -n1 python a.py & first=$!
+srun -N1 -n1 python b.py & second=$!
+wait $first && wait $second
""",
    ),
    Rule(
        code="E504",
        title="background step without `wait`",
        severity=ERROR,
        check=find_missing_wait,
        why="A job ends when its script ends. Slurm then kills all remaining processes.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=1
 python train.py &    # <- here
+wait $!
""",
    ),
    Rule(
        code="E505",
        title="pipe that hides a failure",
        severity=WARNING,
        check=find_swallowing_pipe,
        why="Without `pipefail`, the exit status of a pipe is that of its last command.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=1
+set -o pipefail
 srun python train.py 2>&1 | tee train.log    # <- here
""",
    ),
    Rule(
        code="E508",
        title="`wait` for a server that does not exit",
        severity=WARNING,
        check=find_endless_wait,
        why="`wait` without arguments waits for all background processes. A server or a monitor "
        "does not exit by itself, so the nodes stay allocated until the time limit.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=1
 nvidia-smi dmon -d 10 > gpu.log &
+monitor=$!
 python train.py
-wait    # <- here
+code=$?
+kill $monitor
+exit $code
""",
    ),
    Rule(
        code="E509",
        title="signal handler that is missing or runs too late",
        severity=WARNING,
        check=find_late_handler,
        why="With `--signal=B:…`, Slurm sends the signal to the job script only. Bash does not run "
        "a handler while it waits for a command, but the `wait` command ends on a signal.",
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
)
