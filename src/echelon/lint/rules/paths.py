"""E211: the directory of the script, which Slurm runs as a copy."""

import re
from collections.abc import Iterator

from echelon.lint.bash import Command, Shell
from echelon.lint.patterns import pattern
from echelon.lint.rule import WARNING, Hit, Rule
from echelon.lint.subject import Subject

_OWN_PATH = pattern(r"\$\{?(0\b|BASH_SOURCE)")
_READS_ITSELF = pattern(r"\b(?:cat|cp|head|tail|md5sum|sha256sum)\s+\"?\$\((?:readlink|realpath)\b")
_HANDLED = pattern(r"scontrol\s+show\s+job|SLURM_SUBMIT_DIR|\[\s*(-[nz]\s+)?\"?\$\{SLURM_JOB_ID:")
"""Scripts that look for their directory in another way."""
_DIRECTORY = pattern(r"\bdirname\b|%/\*|/\.\.|:h\}")
"""How a script gets a directory from a path."""
_SUBMITS = pattern(r"\bsbatch\b")
_DEFAULT = pattern(r"\$\{(\w+):?-\"?\$\(")
_NEAR = 3
"""Lines between sbatch and `exit` in the same branch."""


def find_own_directory(subject: Subject) -> Iterator[Hit]:
    batch = subject.batch
    if batch is None or not subject.is_job:
        return
    code = "\n".join(line for line in batch.text.split("\n") if not line.lstrip().startswith("#"))
    if _HANDLED.search(code):
        return
    submitting = [c.line for c in batch.commands if _SUBMITS.search(c.text)]
    if _SUBMITS.search(code) and not _submits_itself(batch):
        return
    for command in batch.commands:
        if command.name not in ("dirname", "realpath", "readlink") or not command.substituted:
            continue
        if _uses_only_the_text(command, subject.line_at(command), code):
            continue  # the copy has the same text
        default = _DEFAULT.search(subject.line_at(command))
        if default and re.search(rf"^\s*#.*\b{default[1]}=", batch.text, re.MULTILINE):
            continue  # a comment tells to set the variable
        if submitting and (command.line < max(submitting) or not _runs_always(batch, command)):
            continue  # before the job, in a script that submits itself
        if any(_OWN_PATH.search(word.text) for word in command.arguments):
            yield Hit(
                at=command,
                what="This is not the directory of the script. Slurm runs a copy of the script, "
                "usually in /var/spool/slurmd.",
                fix="a path that begins with $SLURM_SUBMIT_DIR, where sbatch was called",
            )
            return


def _uses_only_the_text(command: Command, line: str, code: str) -> bool:
    """Tell whether a script needs the path of its copy, for example to print it."""
    itself = command.name != "dirname" and not _DIRECTORY.search(code)
    return itself or bool(_READS_ITSELF.search(line))


def _submits_itself(batch: Shell) -> bool:
    """Tell whether a script calls sbatch for itself in a branch that ends it."""
    own = [c for c in batch.commands if _SUBMITS.search(c.text)]
    ends = [c.line for c in batch.commands if c.name in ("exit", "exec")]
    return bool(own) and all(
        _OWN_PATH.search(c.text)
        and not c.certain
        and any(c.line <= end <= c.line + _NEAR for end in ends)
        for c in own
    )


def _runs_always(batch: Shell, inner: Command) -> bool:
    """Tell whether the line of a $(…) is outside branches."""
    assigned = any(a.line == inner.line and a.certain for a in batch.assignments)
    return assigned or any(c.line == inner.line and c.certain for c in batch.commands)


RULES = (
    Rule(
        code="E211",
        title="directory of the script taken from `$0`",
        severity=WARNING,
        check=find_own_directory,
        why="sbatch copies the script, and slurmd runs the copy on the first node. `$0` and "
        "`BASH_SOURCE` are the path of the copy, and the files beside the original are not there.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=1
-cd "$(dirname "$0")"    # <- here
+cd "$SLURM_SUBMIT_DIR"
 python train.py
""",
    ),
)
