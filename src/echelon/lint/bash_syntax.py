"""Syntax errors that bash reports: `bash -n` parses a script without running it."""

import re
from dataclasses import dataclass

from echelon.core.shell import Shell as Programs
from echelon.errors import MissingProgramError, TimedOutError

_TIMEOUT_S = 5.0
_HEREDOC = re.compile(r"here-document at line (\d+) delimited by end-of-file \(wanted [`'](.*)'\)")
_COMPLAINT = re.compile(
    r"^\S*bash: (?:line (\d+): )?((?:syntax error|unexpected EOF).*)$", re.MULTILINE
)


@dataclass(frozen=True, slots=True, kw_only=True)
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
