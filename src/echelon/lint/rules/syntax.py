"""E210: scripts that bash cannot parse."""

import re
from collections.abc import Iterator

from echelon.core.shell import Shell as Programs
from echelon.errors import MissingProgramError, TimedOutError
from echelon.lint.bash import Shell
from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.rule import ADVICE, ERROR, WARNING, Hit, rule
from echelon.lint.script import Script
from echelon.lint.source import clean

_BASH = pattern(r"#!\s*(\S*/)?(env\s+(-\S+\s+)*)?(bash|sh)\b")
_EXIT = pattern(r"exit(?:[ \t]+\d+)?[ \t]*(?:#.*)?")
_TIMEOUT_S = 5.0
_HEREDOC = pattern(r"here-document at line (\d+) delimited by end-of-file \(wanted [`'](.*)'\)")
_COMPLAINT = pattern(r"(?m)^\S*bash: (?:line (\d+): )?((?:syntax error|unexpected EOF).*)$")


@rule("E210", ERROR)
def bash_syntax(script: Script) -> Iterator[Hit]:
    """Bash syntax error.

    Bash reads a script while it runs it. The commands before the error have already run when the
    job exits with status 2.

    Example:
         #!/bin/bash
         #SBATCH --nodes=1
        -if [ -d data ] then
        +if [ -d data ]; then
             python prepare.py
         fi    # <- here
    """
    for path, shell in {shell.path: shell for shell in reversed(script.shells)}.items():
        if shell.too_deep:
            yield Hit(
                at=Place(path, 1),
                what="Commands are nested too deeply. Lint did not check this script.",
                fix="check that the file is a bash script",
                severity=ADVICE,
            )
        whole = shell is script.batch or script.files.read(path) == shell.text
        if not shell.suspect or not whole or not _is_bash(shell):
            continue
        # The parser does not know all of bash, so bash itself decides.
        complaint = ask_bash(clean(shell.text), script.programs)
        if complaint is None or _ends_before(shell, complaint[0], script.programs):
            continue
        line, message = complaint
        placeholder = re.search(r"<[A-Za-z][^<>]{0,80}>", clean(shell.text).split("\n")[line - 1])
        yield Hit(
            at=Place(path, line),
            what=f"Bash runs at most the commands before this line, then stops: {message}.",
            fix=f"replace {placeholder[0]} with your own value"
            if placeholder
            else f"bash -n {path}  # shows where bash stops; the cause may be further up",
            severity=WARNING if placeholder else None,
        )


def _is_bash(shell: Shell) -> bool:
    return not shell.text.startswith("#!") or bool(_BASH.match(shell.text))


def _ends_before(shell: Shell, line: int, programs: Programs) -> bool:
    """Tell whether a script exits before an error, so that bash does not read it."""
    lines = clean(shell.text).split("\n")[: line - 1]
    ends = next((n for n, one in enumerate(lines, 1) if _EXIT.fullmatch(one)), 0)
    return ends > 0 and ask_bash("\n".join([*lines[:ends], ""]), programs) is None


def ask_bash(script: str, programs: Programs) -> tuple[int, str] | None:
    """Return line and text of the first syntax error; None if there is none or no bash."""
    try:
        # An empty environment, because bash would run the file in BASH_ENV. With extglob, because
        # `bash -n` does not execute `shopt -s extglob`.
        done = programs.run(
            ["bash", "--norc", "--noprofile", "-O", "extglob", "-n"],
            env={"LC_ALL": "C"},
            stdin=script,
            timeout_s=_TIMEOUT_S,
        )
    except (MissingProgramError, TimedOutError, OSError):
        return None
    return parse_complaint(done.stderr, lines=len(script.splitlines()))


def parse_complaint(said: str, *, lines: int) -> tuple[int, str] | None:
    """Return the first error in the output of `bash -n`; `lines` is the length of the script."""
    if match := _HEREDOC.search(said):
        return int(match[1]), f"the here-document that starts here has no end line '{match[2]}'"
    if match := _COMPLAINT.search(said):
        return min(int(match[1] or lines), lines), match[2]
    return None
