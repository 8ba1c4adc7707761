"""E503 to E505 and E508: failures that nobody notices, and endless waits."""

import re
from collections.abc import Iterator

from echelon.lint.bash import Command, Shell
from echelon.lint.exit_status import endings
from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.rule import ADVICE, ERROR, WARNING, Hit, Rule
from echelon.lint.rules.programs import (
    ENDS_OTHERS,
    QUIET,
    SERVER,
    runs_script,
    starts,
    training_functions,
)
from echelon.lint.rules.status_fixes import pipefail_fix
from echelon.lint.subject import Subject

_HELPS = pattern(
    r"(?i)monitor|server?\b|daemon|\bserve\b|watch|log|util|stat\b|tunnel|proxy|dashboard|xvfb|"
    r"redis|mongod|postgres|jupyter|code|nohup|scheduler|worker|ray\b|dask|mps-control"
)
"""Programs that run beside the work of a job."""
_NOT_WORK = QUIET | {
    *("cat", "ls", "env", "nvidia-smi", "module", "pip", "time", "{", "sed", "awk", "read"),
}
_PROBE = pattern(
    r"^\s*(?:until|while\s+(?:!|\[\[?\s(?=[^#\n]*(?:!=|-z|-ne))))\s*[^#\n]*?(?:/dev/tcp/|"
    r"(?<![-\w./])(?:curl|wget|nc|ncat|redis-cli|pg_isready)\s)"
)
"""The start of a loop that asks whether a server is ready."""
_GIVES_UP = pattern(
    r"(?<![-\w])(?:break|exit|return|kill|timeout|SECONDS|pgrep|ps|jobs|wait|let|expr)\b|\(\(|"
    r"\s-(?:gt|ge|lt|le|eq|ne)\s"
)
"""Parts of a loop that end it, or that look whether the server still runs."""
_DO = pattern(r"(?:^|;)\s*do(?=\s|$)")
_DONE = pattern(r"(?:^|;)\s*done\b")
_MOST = 20
"""How many commands are examined, because each takes time."""
_HARMLESS_PIPES = frozenset({"head", "grep", "wc", "true"})


def find_swallowed_failure(subject: Subject) -> Iterator[Hit]:
    batch = subject.batch
    if batch is None or not subject.is_job:
        return
    functions = training_functions(batch)
    known = [c for c in batch.commands if starts(c) or runs_script(c) or c.name in functions]
    background = [c for c in known if c.background]
    unknown = [c for c in batch.commands if c.background and not _is_helper(c)]
    servers = [c for c in background if SERVER.search(c.text)]
    severity = None if background and not servers else ADVICE
    background = background or unknown
    waits = [c for c in batch.commands if c.name == "wait" and not c.function]
    bare = [c for c in waits if len(c.words) == 1]
    if not background or len(bare) != len(waits) or batch.suspect:
        return
    ended = [c.line for c in batch.commands if c.name in ("kill", "pkill", "scancel")]
    if any(is_noticed(batch, command) for command in background[:_MOST]):
        return
    for wait in bare[-1:]:
        if any(background[-1].line < line <= wait.line for line in ended):
            continue  # the script has ended them itself
        if wait.line >= background[-1].line:
            yield Hit(
                at=wait,
                what="`wait` without arguments returns 0, so the job is COMPLETED even if a "
                "background command failed.",
                fix="pids+=($!)  # after each &, then replace wait with:\n"
                'for pid in "${pids[@]}"; do wait "$pid" || failed=1; done\n'
                '[ "${failed:-0}" = 0 ] || exit 1',
                severity=severity,
            )


def is_noticed(batch: Shell, command: Command) -> bool:
    """Tell whether the script may fail if a command fails."""
    ends = endings(batch.text, command.line, command.name) if command.path == batch.path else ()
    return not all(end.succeeds for end in ends or ())


def _is_helper(command: Command) -> bool:
    """Tell whether a background command serves others, or is not the work of the job."""
    quiet = command.name in QUIET | {"ssh", "cp", "rsync", "cat", "tail", "nvidia-smi", "wait"}
    return quiet or bool(SERVER.search(command.text) or _HELPS.search(command.text))


def find_endless_wait(subject: Subject) -> Iterator[Hit]:
    yield from find_endless_probe(subject)
    batch = subject.batch
    if batch is None or not subject.is_job or "trap" in batch.text:
        return
    plain = [c for c in batch.commands if not c.substituted and not c.function]
    if any(c.name in ENDS_OTHERS | {"exit"} for c in batch.commands):
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


def find_endless_probe(subject: Subject) -> Iterator[Hit]:
    """Find loops that wait for a server, and do not end if the server fails."""
    batch = subject.batch
    if batch is None or not subject.is_job:
        return
    servers = [c for c in batch.commands if c.background and c.name not in _NOT_WORK | {"tail"}]
    lines = batch.text.split("\n")
    if re.search(r"(?<![-\w])timeout\s+\S+\s+\S*sh\s", batch.text):
        return  # around the loop
    for number, line in enumerate(lines, start=1):
        found = _PROBE.search(line)
        before = [c for c in servers if c.line < number]
        if found and before and not _GIVES_UP.search(_loop(lines[number - 1 :])):
            yield Hit(
                at=Place(subject.path, number),
                what=f"If the server (line {before[-1].line}) fails, this loop never ends. The job "
                "runs until its time limit.",
                fix='server=$!  # after the server, and in the loop:\nkill -0 "$server" || exit 1',
                severity=ADVICE,
            )


def _loop(lines: list[str]) -> str:
    """Return the text of the loop that starts in the first line."""
    open_loops = 0
    for number, line in enumerate(lines):
        open_loops += len(_DO.findall(line)) - len(_DONE.findall(line))
        if _DONE.search(line) and open_loops <= 0:
            return "\n".join(lines[: number + 1])
    return "break"  # lint cannot read it


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
    shells = [one for one in subject.shells if "pipefail" not in one.text]
    asked = 0
    for shell, command in [(one, command) for one in shells for command in one.commands]:
        begins = starts(command) and not command.substituted and not command.background
        into = command.piped_into[:1]
        known = (command.path, command.line) in launched and begins
        script = runs_script(command) and not command.substituted and not command.background
        other = into == ("tee",) and not (command.substituted or command.background)
        other = other and command.name not in _NOT_WORK
        hides = (known or script) and into and into[0] not in _HARMLESS_PIPES
        if hides or other:
            asked += 1
            if asked > _MOST:
                return
            hides, other = (False, False) if is_noticed(batch, command) else (hides, other)
        if hides or other:
            yield Hit(
                at=command,
                what=f"The pipe returns the exit status of {into[0]}, so the job is COMPLETED even "
                "if this command fails.",
                fix=pipefail_fix(shell, command)
                if shell is batch or shell.path != batch.path
                else "set -o pipefail; …  # at the start of the inner script",
                severity=None if known or script else ADVICE,
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
 srun python train.py 2>&1 | tee train-$SLURM_JOB_ID.log    # <- here
""",
    ),
    Rule(
        code="E508",
        title="endless wait for a server",
        severity=WARNING,
        check=find_endless_wait,
        why="`wait` without arguments waits for all background processes. A server or a monitor "
        "does not exit by itself, so the nodes stay allocated until the time limit. A loop that "
        "waits until a server answers does not end if the server has failed.",
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
)
