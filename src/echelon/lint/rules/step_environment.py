"""E317: steps that get only one variable of the environment."""

import re
from collections.abc import Iterator

from echelon.lint.files import Place
from echelon.lint.rule import WARNING, Hit, rule
from echelon.lint.script import Script


@rule("E317", WARNING)
def step_environment(script: Script) -> Iterator[Hit]:
    """`--export` without `ALL`.

    With `--export=NAME=value`, srun passes only this variable and those of Slurm to the program. It
    does not see what the script exported or activated before, such as PATH or MASTER_ADDR.

    Example:
         #!/bin/bash
         #SBATCH --nodes=1
         export DATA=/scratch/imagenet
        -srun --export=SEED=3 python train.py    # <- here
        +srun --export=ALL,SEED=3 python train.py
    """
    for command, options, rest in script.sruns:
        word = options.get("export")
        names = word.text.split(",") if word is not None and word.known else []
        whole = {"ALL", "NONE", "NIL"} & set(names)
        absolute = rest and rest[0].text.startswith("/")
        if word is None or not names or whole or absolute or not script.exported:
            continue
        if re.search(r"PATH", word.text):
            continue  # the script passes on what it needs
        yield Hit(
            at=Place(command.path, word.line or command.line),
            what="Without `ALL`, the step gets none of the variables that the script exports "
            f"({', '.join(sorted(script.exported)[:3])}), nor PATH.",
            fix=f"--export=ALL,{word.text}",
        )
