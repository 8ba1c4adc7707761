"""E101 and E102: files that sbatch does not take for a script, and directives that it ignores."""

import re
from collections.abc import Iterator

from echelon.core.units import counted
from echelon.lint.edits import Edit, insert_line, replace_group
from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.rule import ERROR, WARNING, Hit, rule
from echelon.lint.script import Script
from echelon.lint.source import BYTE_ORDER_MARK

_MISSPELT = pattern(
    r"#(?!SBATCH|sbatch)(?i:sbatch)\s+-|"
    r"#\s?(?:SBACTH|SBTACH|SBATH|SBATC|SBTCH|SABTCH|SBATHC|SBACH|BATCH)\s+-|"
    r"#sbatch\s+-(?!.*[\s/]\S+\.(?:sh|bash|sbatch|slurm|job)\b)"  # how to submit a script
)
_SHEBANG = pattern(r"(?m)^[ \t]{0,80}#!\s?/")
_WITHOUT_HASH = pattern(r"SBATCH\s+--?[a-zA-Z]")


@rule("E101", ERROR)
def not_a_script(script: Script) -> Iterator[Hit]:
    """File that sbatch does not accept as a script.

    The first two characters have to be `#!`: no blank line, no comment and no byte order mark may
    come before them. sbatch also rejects Windows line endings ('Batch script contains DOS line
    breaks'), and bash misreads them in a file that the script calls.

    Example:
        +#!/bin/bash
         #SBATCH --nodes=1    # <- here
         python train.py
    """
    files = [(script.path, script.raw_text)] if script.batch else []
    paths = dict.fromkeys(shell.path for shell in script.shells if shell.path != script.path)
    files += [(path, text) for path in paths if (text := script.files.read(path))]
    for path, text in files:
        rejected = script.is_job and path == script.path
        effect = "sbatch rejects the script" if rejected else "Bash misreads it"
        if text.startswith(BYTE_ORDER_MARK):
            yield Hit(
                at=Place(path, 1),
                what=f"The file starts with an invisible byte order mark. {effect}.",
                fix="remove it",
                edits=(Edit(line=1, column=1, end_line=1, end_column=2, text=""),),
            )
        if "\r\n" in text:
            lines = enumerate(text.split("\n"), start=1)
            ends = [(n, m) for n, line in lines if (m := re.search(r"\r$", line))]
            yield Hit(
                at=Place(path, ends[0][0]),
                what=f"The file has Windows line endings (CRLF). {effect}.",
                fix="end lines with LF only",
                edits=tuple(replace_group(number, match, "") for number, match in ends),
            )
    if script.is_job and not script.text.startswith("#!"):
        later = next((n for n, line in enumerate(script.lines, 1) if _SHEBANG.match(line)), 0)
        what = f"The `#!` line is line {later}, not line 1" if later else "There is no `#!` line"
        yield Hit(
            at=Place(script.path, 1),
            what=f"{what}. sbatch rejects the script.",
            fix="make #!/bin/bash the first line of the file",
            edits=_first_line(script.lines, later),
        )


def _first_line(lines: list[str], later: int) -> tuple[Edit, ...]:
    """Return the edit that puts `#!` in line 1, if only blanks are before it."""
    if not later:
        return (insert_line(1, "#!/bin/bash"),)
    if any(line.strip() for line in lines[: later - 1]):
        return ()
    blanks = len(lines[later - 1]) - len(lines[later - 1].lstrip())
    return (Edit(line=1, column=1, end_line=later, end_column=blanks + 1, text=""),)


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
        several = _SHEBANG.search("\n".join(lines[end - 1 : late[0]]))
        yield Hit(
            at=Place(script.path, late[0]),
            what="Slurm ignores this directive because it comes after a command "
            f"(line {end}).{more}",
            fix="move all #SBATCH lines directly below the #! line",
            severity=WARNING if several else None,  # a file of several scripts, to be split
        )
