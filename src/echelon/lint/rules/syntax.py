"""E210: scripts that bash cannot parse."""

import re
from collections.abc import Iterator

from echelon.lint.bash import Shell
from echelon.lint.bash_syntax import ask_bash
from echelon.lint.rule import ADVICE, ERROR, Hit, Rule
from echelon.lint.source import clean
from echelon.lint.subject import Subject

_BASH = re.compile(r"#!\s*(\S*/)?(env\s+(-\S+\s+)*)?(bash|sh)\b")


def find_bash_errors(subject: Subject) -> Iterator[Hit]:
    for path, shell in {shell.path: shell for shell in reversed(subject.shells)}.items():
        if shell.too_deep:
            yield Hit(
                path=path,
                line=1,
                what="Commands are nested too deeply. Lint did not check this script.",
                fix="check that the file is a bash script",
                severity=ADVICE,
            )
        if not shell.suspect or not _is_file(subject, shell):
            continue
        # The parser does not know all of bash, so bash itself decides.
        complaint = ask_bash(clean(shell.text), subject.programs)
        if complaint is not None:
            yield Hit(
                path=path,
                line=complaint.line,
                what=f"Bash runs the commands before this line, then stops: {complaint.message}.",
                fix=f"bash -n {path}  # shows where bash stops; the cause may be further up",
            )


def _is_file(subject: Subject, shell: Shell) -> bool:
    """Tell whether a script is a complete file for bash, not generated text or another shell."""
    whole = shell is subject.batch or subject.files.read(shell.path) == shell.text
    return whole and (not shell.text.startswith("#!") or bool(_BASH.match(shell.text)))


RULES = (
    Rule(
        code="E210",
        title="bash syntax error",
        severity=ERROR,
        check=find_bash_errors,
        why="Bash reads a script while it runs it. The commands before the error have already run "
        "when the job exits with status 2.",
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
