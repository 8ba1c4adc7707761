"""E120 and E512: directives without effect, and jobs without work."""

from collections.abc import Iterator

from echelon.lint.bash import Command
from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.rule import ADVICE, WARNING, Hit, Rule
from echelon.lint.subject import Subject

_PREPARES = frozenset(
    {
        *("echo", "printf", "date", "hostname", "module", "ml", "source", ".", "conda", "mamba"),
        *("micromamba", "deactivate", "activate", "cd", "pwd", "set", "export", "unset", "ulimit"),
        *("mkdir", "nvidia-smi", "env", "printenv", "which", "whoami", "exit", "eval", "cat", "ls"),
        *("true", ":", "umask", "shopt", "declare", "wait", "uname", "free", "lscpu", "df"),
    }
)
"""Commands that are not the work of a job by themselves."""
_SILENT = frozenset(
    {
        *("module", "ml", "source", ".", "conda", "mamba", "micromamba", "activate", "cd", "set"),
        *("export", "unset", "ulimit", "umask", "shopt", "deactivate"),
    }
)
"""Commands that print nothing, so that they are not what a job is for."""
_WORKS = pattern(
    r"^\s*#+\s*(?:srun\b|mpirun\b|torchrun\b|accelerate\b|deepspeed\b|python\d?\b|bash )"
)
"""A command that is commented out."""
_SOURCES = pattern(r"(?m)^\s*(?:source|\.)\s+(?!\S*(?:activate|conda|rc\b|profile|env))")
_ASKS = pattern(r"\b(?:nvidia-smi|env|printenv|free|lscpu|df|module\s+(?:list|avail)|cat|ls)\b")
"""Output that may be what the job is for."""


def find_unused_directives(subject: Subject) -> Iterator[Hit]:
    user, kind = subject.directives.last("mail-user"), subject.directives.last("mail-type")
    if user is not None and (kind is None or kind.value.upper() == "NONE"):
        yield Hit(
            at=Place(subject.path, user.line),
            what="`--mail-user` has no effect without `--mail-type`: Slurm sends no mail.",
            fix="#SBATCH --mail-type=END,FAIL",
        )


def find_no_work(subject: Subject) -> Iterator[Hit]:
    batch, items = subject.batch, subject.directives.items
    if batch is None or not items or batch.suspect or "wrap" in {item.option for item in items}:
        return
    if any(c.name not in _PREPARES for c in batch.commands) or _runs_unseen(batch.text):
        return
    lines = batch.text.split("\n")
    switched_off = next((n for n, line in enumerate(lines, 1) if _WORKS.match(line)), 0)
    if switched_off and not any(_ASKS.search(c.text) for c in batch.commands):
        yield Hit(
            at=Place(subject.path, switched_off),
            what="The commands of the job are comments, so it gets its resources and ends at once.",
            fix=lines[switched_off - 1].lstrip("# \t"),
            severity=ADVICE if batch.commands else None,
        )
    elif batch.commands and all(map(_is_silent, batch.commands)):
        yield Hit(
            at=batch.commands[-1],
            what="The script ends here. It prepares its environment and starts no program.",
            fix="srun python train.py",
            severity=ADVICE,
        )
    elif not batch.commands and not _code(lines):
        yield Hit(
            at=Place(subject.path, items[-1].line),
            what="The script contains no command. The job gets its resources and ends at once.",
            fix="srun python train.py",
            severity=ADVICE,  # another program may add the commands
        )


def _is_silent(command: Command) -> bool:
    works = {word.text for word in command.arguments} & {"run", "create", "install", "env"}
    return command.name in _SILENT and not works


def _code(lines: list[str]) -> bool:
    """Tell whether any line is neither empty nor a comment."""
    return any(line.strip() and not line.lstrip().startswith("#") for line in lines)


def _runs_unseen(text: str) -> bool:
    """Tell whether a sourced file may do the work."""
    return bool(_SOURCES.search(text))


RULES = (
    Rule(
        code="E120",
        title="directive without effect",
        severity=ADVICE,
        check=find_unused_directives,
        why="`--mail-user` is the address, and `--mail-type` chooses the events. By default, it is "
        "NONE.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=1
 #SBATCH --mail-user=me@example.com    # <- here
+#SBATCH --mail-type=END,FAIL
 python train.py
""",
    ),
    Rule(
        code="E512",
        title="job without work",
        severity=WARNING,
        check=find_no_work,
        why="A script without a command, or whose commands are all comments, succeeds without "
        "doing anything.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=1
-# python train.py    # <- here
+python train.py
""",
    ),
)
