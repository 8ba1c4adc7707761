"""E211: paths that do not exist in the copy of the script that Slurm runs."""

from collections.abc import Iterator

from echelon.lint.patterns import pattern
from echelon.lint.rule import WARNING, Hit, Rule
from echelon.lint.subject import Subject

_OWN_PATH = pattern(r"\$\{?(0\b|BASH_SOURCE)")
_READS_ITSELF = pattern(r"\b(?:cat|cp|head|tail|md5sum|sha256sum)\s+\"?\$\((?:readlink|realpath)\b")
_HANDLED = pattern(
    r"scontrol\s+show\s+job|SLURM_SUBMIT_DIR|\bsbatch\b|\[\s*(-[nz]\s+)?\"?\$\{SLURM_JOB_ID:"
)
"""Scripts that look for their directory in another way, or that submit themselves."""


def find_own_directory(subject: Subject) -> Iterator[Hit]:
    batch = subject.batch
    if batch is None or not subject.is_job:
        return
    code = "\n".join(line for line in batch.text.split("\n") if not line.lstrip().startswith("#"))
    if _HANDLED.search(code):
        return
    for command in batch.commands:
        if command.name not in ("dirname", "realpath", "readlink") or not command.substituted:
            continue
        if _READS_ITSELF.search(subject.line_at(command)):
            continue  # the copy has the same text
        if any(_OWN_PATH.search(word.text) for word in command.arguments):
            yield Hit(
                at=command,
                what="This is not the directory of the script. Slurm runs a copy of the script, "
                "usually in /var/spool/slurmd.",
                fix="$SLURM_SUBMIT_DIR  # the directory where sbatch was called, or a full path",
            )
            return


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
