"""E313: variables and `~` that stay text."""

import re
from collections.abc import Iterator

from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.rule import ERROR, WARNING, Hit, rule
from echelon.lint.script import Script

_OF_JOB = pattern(r"\$\{?(SLURM_\w+|MASTER_(?:ADDR|PORT)|(?:NODE_|LOCAL_)?RANK|WORLD_SIZE)\b")
_PATH = pattern(r"\$\{?[A-Za-z_]\w+\}?(?=/|$)")
_OF_FILES = frozenset({"cd", "source", ".", "mkdir", "cp", "ls", "conda"})
_PATTERN = pattern(r"(?<![%\w])%(?:A_%a|[jAa])(?![\w%])")


@rule("E313", ERROR)
def unexpanded(script: Script) -> Iterator[Hit]:
    r"""Variable or `~` that is not expanded.

    In single quotes, a backslash before `$` stays in the text. The shell that srun starts then
    takes `\$NAME` as the text $NAME. Bash does not expand `~` in quotes. Slurm replaces `%j` and
    `%u` in the names of its output files only.

    Example:
         #!/bin/bash
         #SBATCH --nodes=2
         #SBATCH --ntasks-per-node=4
         #SBATCH --exclusive
        -srun bash -c 'python train.py --rank \$SLURM_PROCID'    # <- here
        +srun bash -c 'python train.py --rank $SLURM_PROCID'
    """
    if any(shell.suspect for shell in script.shells):
        return
    for one in script.started:
        options = one.launch.launcher.options.values() if one.launch.launcher else ()
        for word in (*options, *one.launch.arguments):
            at = one.launch.place_of(word, script.path)
            found = _OF_JOB.search(word.text) if word.known and not word.uses else None
            of_slurm = _PATTERN.search(word.text) if word.known and "/" in word.text else None
            if found:
                yield Hit(
                    at=at,
                    what=f"The program gets the text '${found[1]}', not the value. The variable is "
                    "escaped or in single quotes, so no shell expands it.",
                    fix=f"${found[1]}  # without the backslash, or without the inner quotes",
                    # A program or another shell may expand the text; a launcher does not.
                    severity=None if word in options and not one.launch.elsewhere else WARNING,
                )
            elif of_slurm and script.is_job:
                name = "SLURM_ARRAY_TASK_ID" if "a" in of_slurm[0] else "SLURM_JOB_ID"
                yield Hit(
                    at=at,
                    what=f"The program gets the text '{of_slurm[0]}'. Slurm replaces it in the "
                    "names of its own output files only.",
                    fix=f"${name}",
                    severity=WARNING,
                )
    for command in script.commands if script.is_job else ():
        for word in command.arguments if command.name in _OF_FILES else ():
            found = _PATH.match(word.text) if word.known and not word.uses else None
            if found and command.path == script.path:
                yield Hit(
                    at=Place(command.path, word.line or command.line),
                    what=f"{command.name} gets the text '{found[0]}', not the value. The variable "
                    "is escaped or in single quotes.",
                    fix=f"{found[0]}…  # without the backslash or the single quotes",
                    severity=WARNING,
                )
    yield from _quoted_home(script)


def _quoted_home(script: Script) -> Iterator[Hit]:
    """Find quoted paths that begin with `~`, which bash does not expand."""
    for assignment in script.assignments if script.is_job and "~/" in script.text else ():
        name, line = assignment.name, script.line_at(assignment)
        used = (c for c in script.commands if c.name in _OF_FILES)
        made = [c for c in used if any(name in w.names for w in c.arguments)]
        if made and re.search(rf"""(?<!\w){name}=["']~/""", line):
            yield Hit(
                at=assignment,
                what=f"Bash does not expand ~ in quotes. {made[0].name} (line {made[0].line}) uses "
                "a directory named '~'.",
                fix=f'{name}="$HOME/…"',
                severity=WARNING,
            )
