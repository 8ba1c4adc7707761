"""E210: whether bash reads the script to its end."""

import re
from collections.abc import Iterator

from echelon.checks.lint.bash import Shell
from echelon.checks.lint.bash_syntax import ask_bash
from echelon.checks.lint.rule import ADVICE, ERROR, Hit, Rule
from echelon.checks.lint.source import clean
from echelon.checks.lint.subject import Subject

_BASH = re.compile(r"#!\s*(\S*/)?(env\s+(-\S+\s+)*)?(bash|sh)\b")


def find_bash_errors(subject: Subject) -> Iterator[Hit]:
    for path, shell in {shell.path: shell for shell in reversed(subject.shells)}.items():
        if shell.too_deep:
            yield Hit(
                path=path,
                line=1,
                what="Commands are nested too deeply here to be read, and were not looked at.",
                fix="is it a script at all?",
                severity=ADVICE,
            )
        if not shell.suspect or not _is_file(subject, shell):
            continue
        # The parser knows less of bash than bash: it only says when to ask.
        complaint = ask_bash(clean(shell.text), subject.programs)
        if complaint is not None:
            yield Hit(
                path=path,
                line=complaint.line,
                what=f"Bash runs what stands before and stops: {complaint.message}.",
                fix=f"bash -n {path}   says where it notices; the cause may be above",
            )


def _is_file(subject: Subject, shell: Shell) -> bool:
    """Tell a whole file for bash from a text that was put together, or is of another shell."""
    whole = shell is subject.batch or subject.files.read(shell.path) == shell.text
    return whole and (not shell.text.startswith("#!") or bool(_BASH.match(shell.text)))


RULES = (
    Rule(
        code="E210",
        title="a syntax error of bash",
        severity=ERROR,
        check=find_bash_errors,
        why="Bash reads a script as it runs it. What is before the error has then been done, and "
        "the job ends with 2.",
        bad="""\
#!/bin/bash
#SBATCH --nodes=1
if [ -d data ] then
    python prepare.py
fi    # <- here
""",
        good="""\
#!/bin/bash
#SBATCH --nodes=1
if [ -d data ]; then
    python prepare.py
fi
""",
    ),
)
