"""E211: the directory of the script, which Slurm runs as a copy."""

from collections.abc import Iterator

from echelon.lint.patterns import pattern
from echelon.lint.rule import WARNING, Hit, rule
from echelon.lint.script import Script

_OWN_PATH = pattern(r"\$\{?(?:0\b|BASH_SOURCE)")
_HANDLED = pattern(r"scontrol\s+show\s+job|SLURM_SUBMIT_DIR|SLURM_JOB_ID:(?:-\}|\+)|\bsbatch\b")
"""Scripts that look for their directory in another way, or submit themselves."""
_READS_ITSELF = pattern(r"\b(?:cat|cp|head|tail|md5sum|sha256sum|basename)\s+\"?\$\(")


@rule("E211", WARNING)
def own_directory(script: Script) -> Iterator[Hit]:
    """Directory of the script taken from `$0`.

    sbatch copies the script, and slurmd runs the copy on the first node. `$0` and `BASH_SOURCE` are
    the path of the copy, and the files beside the original are not there.

    Example:
         #!/bin/bash
         #SBATCH --nodes=1
        -cd "$(dirname "$0")"    # <- here
        +cd "$SLURM_SUBMIT_DIR"
         python train.py
    """
    batch = script.batch
    if batch is None or not script.is_job or _HANDLED.search("\n".join(batch.code)):
        return
    for command in batch.commands:
        wanted = command.name in ("dirname", "realpath", "readlink") and command.substituted
        itself = command.name != "dirname" and "dirname" not in script.line_at(command)
        own = any(_OWN_PATH.search(word.text) for word in command.arguments)
        if wanted and own and not itself and not _READS_ITSELF.search(script.line_at(command)):
            yield Hit(
                at=command,
                what="This is not the directory of the script. Slurm runs a copy of the script, "
                "usually in /var/spool/slurmd.",
                fix="a path that begins with $SLURM_SUBMIT_DIR, where sbatch was called",
            )
            return
