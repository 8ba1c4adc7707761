"""E503 to E505 and E507 to E509: failures that nobody notices."""

import re
from collections.abc import Iterator

from echelon.lint.bash import Command, Shell, Where, Word
from echelon.lint.files import Place, beside
from echelon.lint.patterns import pattern
from echelon.lint.rule import ADVICE, ERROR, WARNING, Hit, Rule
from echelon.lint.rules.world import sources_others
from echelon.lint.subject import Subject

_SPREADS = ("parallel", "xargs")
_STARTERS = ("srun", "torchrun", "mpirun", "mpiexec", "deepspeed", "accelerate")
_QUIET = frozenset({"echo", "date", "printf", "hostname", "true", ":", "kill", "sleep"})
_ENDING = (_QUIET - {"kill"}) | {
    *("deactivate", "conda", "module", "rm", "ls", "cd", "nvidia-smi", "squeue", "sacct", "seff"),
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
        *("head", "tail", "sort", "tee", "wait", "time", "spack", "nvcc", "gcc", "make", "cmake"),
    }
)
"""Commands around the work of a job."""
_ENDS = frozenset({"EXIT", "ERR", "0"})
_COPIES = frozenset({"cp", "mv", "rsync", "tar"})
_ENDS_JOB = frozenset({"exec", "kill", "scancel"})
_SERVER = pattern(
    r"\bvllm serve\b|vllm\.entrypoints|sglang\.launch_server|\btext-generation-launcher\b|"
    r"\btensorboard\b.*--logdir|\bjupyter[- ](lab|notebook)\b|\bray start\b.*--block|"
    r"\bnvidia-smi\b.* (-l|--loop|dmon|pmon)|-m http\.server|\bmlflow (ui|server)\b|"
    r"\bollama serve\b|\bredis-server\b|\btail -[fF]\b"
)
"""Programs that run until something ends them."""
_ENDS_OTHERS = frozenset({"kill", "pkill", "killall", "scancel", "timeout", "exit"})
_TO_THE_SHELL = pattern(r"[RO]*B[RO]*:(?:SIG)?([A-Z]+\d?)(?:@\d+)?")
"""A signal that Slurm sends to the job script, not to its steps."""
_IGNORED = frozenset({"URG", "CHLD", "CONT", "WINCH"})
"""Signals that do not end a process."""
_ERREXIT = pattern(r"^\s*set\s+(?:-\w*e|-o\s+errexit)", re.MULTILINE)
_HARMLESS_PIPES = frozenset({"head", "grep", "wc", "true"})


def find_swallowed_failure(subject: Subject) -> Iterator[Hit]:
    batch = subject.batch
    if batch is None or not subject.is_job:
        return
    functions = _training_functions(batch)
    background = [
        c
        for c in batch.commands
        if c.background and (_starts(c) or _runs_script(c) or c.name in functions)
    ]
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
            )


def find_endless_wait(subject: Subject) -> Iterator[Hit]:
    batch = subject.batch
    if batch is None or not subject.is_job or "trap" in batch.text:
        return
    plain = [c for c in batch.commands if not c.substituted and not c.function]
    if any(c.name in _ENDS_OTHERS for c in batch.commands):
        return
    servers = [c for c in plain if c.background and _SERVER.search(c.text)]
    if any("jupyter" in c.text for c in servers):
        return  # a person works with it, as long as the job runs
    others = [c for c in plain if _starts(c) and not _SERVER.search(c.text)]
    waits = [c for c in plain if c.name == "wait" and len(c.words) == 1 and c.certain]
    if servers and others and waits and waits[-1].line > servers[-1].line:
        yield Hit(
            at=waits[-1],
            what=f"`wait` also waits for the server in line {servers[-1].line}, which does not "
            "exit. The job runs until its time limit.",
            fix="server=$!  # after the server, and here instead of wait:\nkill $server",
        )


def _starts(command: Command) -> bool:
    return command.name in _STARTERS or bool(re.match(r"python|.*\.py$", command.name))


def _runs_script(command: Command) -> bool:
    scripts = (word.text for word in command.arguments if word.text.endswith((".sh", ".bash")))
    return command.name in ("bash", "sh") and any(scripts)


def _training_functions(batch: Shell) -> set[str]:
    """Return the functions of a script that start a program."""
    return {c.function for c in batch.commands if c.function and _starts(c)}


def find_missing_wait(subject: Subject) -> Iterator[Hit]:
    batch = subject.batch
    if batch is None or not subject.is_job:
        return
    commands = [c for c in batch.commands if not c.substituted and not c.function]
    functions = _training_functions(batch)
    background = [c for c in commands if c.background and (_starts(c) or c.name in functions)]
    if not background:
        return
    last = background[-1]
    after = [
        c for c in commands if c.line > last.line or (c.line == last.line and not c.background)
    ]
    if all(c.name in _QUIET for c in after) and not any(c.name == "sleep" for c in after):
        yield Hit(
            at=last,
            what="The script ends while this command is still running. Slurm then kills the "
            "command.",
            fix="wait $!  # as the last line",
        )


def find_swallowing_pipe(subject: Subject) -> Iterator[Hit]:
    batch = subject.batch
    if batch is None or not subject.is_job or "PIPESTATUS" in subject.text:
        return
    launched = {(one.launch.path, one.launch.line) for one in subject.started}
    launched |= {(one.launch.command.path, one.launch.command.line) for one in subject.started}
    plain = [c for shell in subject.shells if "pipefail" not in shell.text for c in shell.commands]
    for command in plain:
        starts = _starts(command) and not command.substituted and not command.background
        into = command.piped_into[:1]
        known = (command.path, command.line) in launched and starts
        script = _runs_script(command) and not command.substituted and not command.background
        if (known or script) and into and into[0] not in _HARMLESS_PIPES:
            yield Hit(
                at=command,
                what=f"The pipe returns the exit status of {into[0]}, so the job is COMPLETED even "
                "if this command fails.",
                fix="set -o pipefail  # near the top of the script"
                if command.where is Where.BATCH
                else "set -o pipefail; …  # at the start of the inner script",
            )


def find_lost_status(subject: Subject) -> Iterator[Hit]:
    batch = subject.batch
    if batch is None or not subject.is_job:
        return
    yield from _lost_inside(subject)
    if "errexit" in batch.settings or re.match(r"#!.*\s-\w*e", batch.text):
        return
    if any(_turns_errexit_on(subject, command) for command in batch.commands):
        return
    launched = {id(one.launch.command) for one in subject.started}
    plain = [c for c in batch.commands if not c.substituted and not c.function]
    decides = [c for c in batch.commands if c.name in ("trap", "exit", "return")]
    functions = _training_functions(batch) - {c.function for c in decides}
    run = {id(c) for c in plain if id(c) in launched or c.name in functions or _runs_script(c)}
    run |= {id(c) for c, _, rest in subject.sruns if rest and _is_work(rest[0])}
    if any(c.background for c in plain if id(c) in run):
        run |= {id(c) for c in plain if c.name == "wait" and len(c.words) > 1}
    last = next((n for n in range(len(plain) - 1, -1, -1) if id(plain[n]) in run), None)
    if last is None:
        yield from _always_succeeds(batch, plain, decides)
        return
    command, after = plain[last], plain[last + 1 :]
    rest = batch.text.split("\n")[command.line - 1 :]
    told = any(map(_uses_status, rest)) or any(map(_handles_failures, batch.commands))
    if told or any(c in decides and c.text != "exit 0" for c in after):
        return
    hits = list(_continued(batch, plain[: last + 1], launched))
    if after and not command.background and not command.piped_into:
        hits += _hidden(command, after, plain)
    yield from hits or _in_loop(command)


def _uses_status(line: str) -> bool:
    """Tell whether a line does something with an exit status, other than to print it."""
    used = re.search(r"\$\?|PIPESTATUS", line)
    return used is not None and not re.match(r"\s*(?:echo|printf)\b[^;&|]*$", line)


def _turns_errexit_on(subject: Subject, command: Command) -> bool:
    """Tell whether a command sources a file of the repository that contains `set -e`."""
    if command.name not in ("source", ".") or not command.arguments[:1]:
        return False
    name = command.arguments[0].text
    texts = (subject.files.read(beside(base, name)) for base in ("", command.path))
    return any(_ERREXIT.search(text) for text in texts if text)


def _lost_inside(subject: Subject) -> Iterator[Hit]:
    """Find failures that the text of `bash -c` hides."""
    launched = {(one.launch.path, one.launch.line) for one in subject.started}
    for shell in subject.shells[1:]:
        plain = [c for c in shell.commands if not c.substituted and not c.function]
        decides = any(c.name in ("trap", "exit", "return") for c in shell.commands)
        if decides or shell.path != subject.path or "errexit" in shell.settings or not plain:
            continue
        run = [c for c in plain if _starts(c) and (c.path, c.line) in launched and c.certain]
        run = [c for c in run if not c.background and not c.piped_into]
        end = plain[-1]
        quiet = end.name in ("echo", "printf") or _lists_own(end, subject.commands)
        if run and end.line >= run[-1].line and quiet and end.certain:
            yield Hit(
                at=run[-1],
                what="The inner shell succeeds even if this command fails, because "
                f"{end.name} (line {end.line}) succeeds afterwards.",
                fix="set -e; …  # at the start of the inner script",
            )


def _hidden(command: Command, after: list[Command], plain: list[Command]) -> Iterator[Hit]:
    """Find a command whose status is not that of the job."""
    end = after[-1]
    sure = (command.certain or command.looped) and (end.certain or end.looped)
    installs = re.search(r"-m (?:pip|venv|ensurepip)\b", command.text)
    if not sure or end.background or (installs and any(c.name not in _ENDING for c in after)):
        return  # a program that lint does not know may be the one that matters
    if end.name == "scancel" and re.search(r"\$\{?SLURM_JOB_?ID\b", end.text):
        yield Hit(
            at=command,
            what=f"The job is always CANCELLED, whether this command fails or not, because scancel "
            f"(line {end.line}) cancels it.",
            fix=f"remove line {end.line}: a job ends with its script",
        )
    elif not any(c.name in _ENDS_JOB for c in after) and (
        (end.name in _ENDING and not _lists(end))
        or _copies_anyway(end, plain)
        or _waits_for_nothing(end, plain)
    ):
        yield Hit(
            at=command,
            what=f"The job is COMPLETED even if this command fails, because "
            f"{_shown(end)} (line {end.line}) succeeds afterwards.",
            fix="set -e  # near the top of the script",
        )
    elif end.name in _COPIES | {"rmdir", "ls"} and end.certain:
        yield Hit(
            at=command,
            what=f"The job has the status of {end.name} (line {end.line}), not of this command.",
            fix="set -e  # near the top of the script",
            severity=ADVICE,
        )


def _always_succeeds(batch: Shell, plain: list[Command], decides: list[Command]) -> Iterator[Hit]:
    """Find a program that lint does not know, in a script that ends with `exit 0`."""
    end = plain[-1] if plain else None
    if end is None or end.text != "exit 0" or decides != [end] or "$?" in batch.text:
        return
    programs = [c for c in plain if c.certain and not c.background and not c.piped_into]
    programs = [c for c in programs if c.name not in _ENDING | _ASIDE | _PREPARES]
    for command in programs[-1:]:
        yield Hit(
            at=command,
            what=f"The job is COMPLETED even if this command fails, because `exit 0` (line "
            f"{end.line}) succeeds afterwards.",
            fix=f"remove line {end.line}",
        )


def _is_work(program: Word) -> bool:
    """Tell whether a step runs a program of its own, such as ./simulate."""
    name = program.text.rpartition("/")[2]
    return program.known and bool(name) and name not in _ASIDE


def _in_loop(command: Command) -> Iterator[Hit]:
    """Find the last program of a script, if it runs several times."""
    if command.looped and not command.background and not command.piped_into:
        yield Hit(
            at=command,
            what="If this command fails, the loop continues. The job has the status of the last "
            "command only.",
            fix="set -e  # near the top of the script",
            severity=ADVICE,
        )


def _handles_failures(command: Command) -> bool:
    """Tell whether a command is a trap that runs when the script fails or ends."""
    return command.name == "trap" and any(w.text in _ENDS for w in command.arguments[1:])


def _waits_for_nothing(command: Command, commands: list[Command]) -> bool:
    """Tell whether a command is `wait` in a script that starts nothing in the background."""
    return command.text == "wait" and not any(c.background for c in commands)


def _lists(command: Command) -> bool:
    """Tell whether a command lists a path, and fails if the program has not written it."""
    return command.name == "ls" and any(not w.text.startswith("-") for w in command.arguments)


def _made(commands: list[Command]) -> set[str]:
    """Return the directories that the script itself creates."""
    return {w.text.rstrip("/") for c in commands if c.name == "mkdir" for w in c.arguments}


def _lists_own(command: Command, commands: list[Command]) -> bool:
    """Tell whether a command lists only directories that the script itself has created."""
    words = {w.text.rstrip("/") for w in command.arguments if not w.text.startswith("-")}
    return command.name == "ls" and bool(words) and words <= _made(commands)


def _copies_anyway(command: Command, commands: list[Command]) -> bool:
    """Tell whether a command copies directories that the script itself has created."""
    words = [w.text.rstrip("/") for w in command.arguments if not w.text.startswith("-")]
    sources = words[:-1]
    if command.name == "tar":
        sources = words[-1:] if "c" in command.arguments[0].text else []
    return command.name in _COPIES and bool(sources) and set(sources) <= _made(commands)


def _shown(command: Command) -> str:
    return f"`{command.text}`" if command.name == "exit" else command.name


def _continued(batch: Shell, commands: list[Command], launched: set[int]) -> Iterator[Hit]:
    """Find programs that run one after the other, whether they succeed or not."""
    run = [c for c in commands if id(c) in launched and c.certain and not c.background]
    if len(run) > 1 and "errexit" not in batch.settings and run[0].name not in _SPREADS:
        yield Hit(
            at=run[0],
            what=f"If this command fails, the script continues with line {run[1].line}. The job "
            "has the status of its last command.",
            fix="set -e  # near the top of the script, or join the commands with &&",
            severity=ADVICE,
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
        code="E507",
        title="failure hidden by a later command",
        severity=WARNING,
        check=find_lost_status,
        why="The exit status of a job is that of the last command in its script. After `echo`, it "
        "is 0, and jobs that depend on the success of this job start.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=1
+set -e
 srun python train.py    # <- here
 echo done
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
