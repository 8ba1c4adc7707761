"""E210: scripts that bash cannot parse."""

import re
from collections.abc import Iterator

from echelon.core.frozen import frozen
from echelon.core.shell import Shell as Programs
from echelon.errors import MissingProgramError, TimedOutError
from echelon.lint.bash import Shell
from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.rule import ADVICE, ERROR, WARNING, Hit, Rule
from echelon.lint.source import clean
from echelon.lint.subject import Subject

_BASH = pattern(r"#!\s*(\S*/)?(env\s+(-\S+\s+)*)?(bash|sh)\b")
_SH = pattern(r"#!\s*(?:/usr)?/bin/sh\b(?!.*\bbash)")
_ONLY_BASH = pattern(
    r"\s*(?:(source) |[A-Za-z_]\w*\+?=(\()|(?:if |while |until )?(\[\[) |(function) \w|"
    r"(declare|mapfile|readarray|pushd|shopt) |for (\(\())"
)
_EXIT = pattern(r"exit(?:[ \t]+\d+)?[ \t]*(?:#.*)?")
_TIMEOUT_S = 5.0
_HEREDOC = pattern(r"here-document at line (\d+) delimited by end-of-file \(wanted [`'](.*)'\)")
_COMPLAINT = pattern(
    r"^\S*bash: (?:line (\d+): )?((?:syntax error|unexpected EOF).*)$", re.MULTILINE
)


def find_bash_errors(subject: Subject) -> Iterator[Hit]:
    yield from _bash_in_sh(subject)
    for path, shell in {shell.path: shell for shell in reversed(subject.shells)}.items():
        if shell.too_deep:
            yield Hit(
                at=Place(path, 1),
                what="Commands are nested too deeply. Lint did not check this script.",
                fix="check that the file is a bash script",
                severity=ADVICE,
            )
        if not shell.suspect or not _is_file(subject, shell):
            continue
        # The parser does not know all of bash, so bash itself decides.
        complaint = ask_bash(clean(shell.text), subject.programs)
        if complaint is not None and not _ends_before(shell, complaint, subject.programs):
            line = clean(shell.text).split("\n")[complaint.line - 1]
            placeholder = re.search(r"<[A-Za-z][^<>]*>", line)
            if re.search(r"\{\{.*\}\}|\{%.*%\}", line):
                continue  # a template, which is no script yet
            if placeholder:
                yield Hit(
                    at=Place(path, complaint.line),
                    what=f"Bash stops at the placeholder '{placeholder[0]}': {complaint.message}.",
                    fix=f"replace {placeholder[0]} with your own value",
                    severity=WARNING,
                )
                continue
            yield Hit(
                at=Place(path, complaint.line),
                what="Bash runs at most the commands before this line, then stops: "
                f"{complaint.message}.",
                fix=f"bash -n {path}  # shows where bash stops; the cause may be further up",
            )


def _bash_in_sh(subject: Subject) -> Iterator[Hit]:
    """Find a script for sh that needs bash."""
    batch = subject.batch
    if batch is None or not subject.is_job or not _SH.match(batch.text):
        return
    for number, line in enumerate(batch.text.split("\n"), start=1):
        if found := _ONLY_BASH.match(line):
            shown = next(part for part in found.groups() if part).strip()
            yield Hit(
                at=Place(subject.path, number),
                what=f"The first line chooses sh, and `{shown}` needs bash. It fails where sh is "
                "dash, as on Debian and Ubuntu.",
                fix="#!/bin/bash  # as the first line",
                severity=ADVICE,
            )
            return


def _ends_before(shell: Shell, complaint: "Complaint", programs: Programs) -> bool:
    """Tell whether a script exits before an error, so that bash does not read it."""
    lines = clean(shell.text).split("\n")[: complaint.line - 1]
    ends = next((n for n, line in enumerate(lines, 1) if _EXIT.fullmatch(line)), 0)
    return ends > 0 and ask_bash("\n".join([*lines[:ends], ""]), programs) is None


def _is_file(subject: Subject, shell: Shell) -> bool:
    """Tell whether a script is a complete file for bash, not generated text or another shell."""
    whole = shell is subject.batch or subject.files.read(shell.path) == shell.text
    return whole and (not shell.text.startswith("#!") or bool(_BASH.match(shell.text)))


@frozen
class Complaint:
    line: int
    message: str


def ask_bash(script: str, programs: Programs) -> Complaint | None:
    """Return the first syntax error of a script; None if there is none or bash is missing."""
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


def parse_complaint(said: str, *, lines: int) -> Complaint | None:
    """Return the first error in the output of `bash -n`; `lines` is the length of the script."""
    if match := _HEREDOC.search(said):
        message = f"the here-document that starts here has no end line '{match[2]}'"
        return Complaint(line=int(match[1]), message=message)
    if match := _COMPLAINT.search(said):
        return Complaint(line=min(int(match[1] or lines), lines), message=match[2])
    return None


RULES = (
    Rule(
        code="E210",
        title="bash syntax error",
        severity=ERROR,
        check=find_bash_errors,
        why="Bash reads a script while it runs it. The commands before the error have already run "
        "when the job exits with status 2.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=1
-if [ -d data ] then
+if [ -d data ]; then
     python prepare.py
 fi    # <- here
""",
    ),
)
