"""E102: directives that Slurm ignores."""

import re
from collections.abc import Iterator

from echelon.core.units import counted
from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.rule import ERROR, WARNING, Hit, rule
from echelon.lint.rules.not_a_script import SHEBANG
from echelon.lint.script import Script

_MISSPELT = pattern(
    r"#(?!SBATCH|sbatch)(?i:sbatch)\s+-|"
    r"#\s?(?:SBACTH|SBTACH|SBATH|SBATC|SBTCH|SABTCH|SBATHC|SBACH|BATCH)\s+-|"
    r"#sbatch\s+-(?!.*[\s/]\S+\.(?:sh|bash|sbatch|slurm|job)\b)"  # how to submit a script
)
_WITHOUT_HASH = pattern(r"SBATCH\s+--?[a-zA-Z]")


@rule("E102", ERROR)
def ignored(script: Script) -> Iterator[Hit]:
    """Directive that Slurm ignores.

    Slurm reads `#SBATCH` in capital letters at the start of a line, up to the first line that is
    neither blank nor a comment. Anything else is a comment, and Slurm does not warn about it.

    Example:
         #!/bin/bash
         #SBATCH --nodes=1
        +#SBATCH --gres=gpu:1
         module load cuda
        -#SBATCH --gres=gpu:1    # <- here
         python train.py
    """
    if script.batch is None:
        return
    lines = script.lines
    commands = (
        n for n, li in enumerate(lines, 1) if li.strip() and not li.lstrip().startswith("#")
    )
    end = next(commands, len(lines) + 1)
    if _WITHOUT_HASH.match("".join(lines[end - 1 : end])):
        yield Hit(
            at=Place(script.path, end),
            what="`#` is missing, so bash runs this line as a command. Slurm ignores it and all "
            "later directives.",
            fix=f"#{lines[end - 1]}",
        )
    head = [line for line in lines[: end - 1] if line.startswith("#SBATCH")]
    given = {line[len("#SBATCH") :].split(" #")[0].strip() for line in head}
    for number, line in enumerate(lines[: end - 1], 1):
        indented = re.match(r"[ \t]+#SBATCH\s+-", line)
        if indented or _MISSPELT.match(line.lstrip()):
            yield Hit(
                at=Place(script.path, number),
                what=f"`#SBATCH` is {'indented' if indented else 'misspelled'}, so Slurm treats "
                "this line as a comment.",
                fix=re.sub(r"^\s*#\s?\w+", "#SBATCH", line),
                severity=WARNING if line.startswith("#sbatch") else None,  # may be switched off
            )
    # Lines in a string or a here-document are directives of another script.
    comments = [
        n
        for n, text, column in script.batch.comments
        if text.startswith("#SBATCH -") and not column
    ]
    late = [
        n
        for n in comments
        if n > end and lines[n - 1][len("#SBATCH") :].split(" #")[0].strip() not in given
    ]
    if late:
        more = f" It also ignores {counted(len(late) - 1, 'later directive')}." if late[1:] else ""
        several = SHEBANG.search("\n".join(lines[end - 1 : late[0]]))
        yield Hit(
            at=Place(script.path, late[0]),
            what="Slurm ignores this directive because it comes after a command "
            f"(line {end}).{more}",
            fix="move all #SBATCH lines directly below the #! line",
            severity=WARNING if several else None,  # a file of several scripts, to be split
        )
