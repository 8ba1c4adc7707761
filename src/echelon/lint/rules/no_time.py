"""E119: jobs without a time limit."""

from collections.abc import Iterator

from echelon.lint.files import Place
from echelon.lint.rule import ADVICE, Hit, rule
from echelon.lint.script import Script


@rule("E119", ADVICE, off=True)
def no_time(script: Script) -> Iterator[Hit]:
    """No time limit.

    Each partition has a default time limit. On some clusters it is minutes. A shorter limit than
    the default lets Slurm start the job earlier.

    Example:
         #!/bin/bash
         #SBATCH --gpus=1    # <- here
        +#SBATCH --time=04:00:00
         python train.py
    """
    items = script.directives.items
    if items and script.started and not script.directives.last("time"):
        yield Hit(
            at=Place(script.path, items[0].line),
            what="The job has no time limit of its own. It gets the partition's default.",
            fix="#SBATCH --time=1-00:00:00  # days-hours:minutes:seconds",
        )
