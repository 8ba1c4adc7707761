"""E101: files that sbatch does not take for a script."""

import re
from collections.abc import Iterator

from echelon.lint.edits import Edit, insert_line, replace_group
from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.rule import ERROR, Hit, rule
from echelon.lint.script import Script
from echelon.lint.source import BYTE_ORDER_MARK

SHEBANG = pattern(r"(?m)^[ \t]{0,80}#!\s?/")


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
        later = next((n for n, line in enumerate(script.lines, 1) if SHEBANG.match(line)), 0)
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
