"""E408: environments that are not activated."""

import re
from collections.abc import Iterator

from echelon.lint.edits import insert_line
from echelon.lint.patterns import pattern
from echelon.lint.rule import WARNING, Hit, rule
from echelon.lint.script import Script

_LOGIN = pattern(r"#!.*\s(?:-\w*[li]\w*|--?login)\b")
_WITHOUT_CONDA = pattern(
    r"(?:module|ml)(?: (?:load|add|purge|list|reset|--force|(?:unload|swap|unuse) \S+|"
    r"use (?:(?:-a|--append) )?\S+|"
    r"(?i:cuda|cudnn|nccl|gcc|cmake|git|openmpi|slurm|shared|ninja)(?:/[\w.-]+)?)){0,20}"
)
"""Commands that load only modules that do not set up conda."""
_HOOK = 'eval "$(conda shell.bash hook)"'


@rule("E408", WARNING)
def not_activated(script: Script) -> Iterator[Hit]:
    """Environment that is not activated.

    A job script is not an interactive shell, so bash does not read the conda setup in `~/.bashrc`.
    `conda activate` then fails, and the script continues with another Python.

    Example:
         #!/bin/bash
         #SBATCH --nodes=1
        +eval "$(conda shell.bash hook)"
         conda activate vision    # <- here
         python train.py
    """
    batch = script.batch
    if batch is None or not script.is_job or _LOGIN.match(script.text):
        return
    for command in batch.commands:
        loads = command.name in ("module", "ml") and not _WITHOUT_CONDA.fullmatch(command.text)
        sets_up = command.name in ("source", ".", "eval", "spack", "conda_init")
        if loads or sets_up or "hook" in command.text or command.words[0].text.endswith("/conda"):
            return
        action = command.words[1].text if len(command.words) > 1 else ""
        if command.name in ("conda", "mamba") and action == "activate":
            line = script.line_at(command)
            own = re.match(r"(\s*)(?:conda|mamba) activate \S+\s*(?:#.*)?$", line)
            yield Hit(
                at=command,
                what=f"`{command.name} activate` fails in a job script ('run conda init'). The "
                "script continues with another Python.",
                fix=f"{_HOOK}  # before this line",
                edits=(insert_line(command.line, f"{own[1]}{_HOOK}"),)
                if own and command.certain
                else (),
            )
            return
