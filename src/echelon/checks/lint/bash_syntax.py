"""What bash itself says of a script's syntax: `bash -n` reads, and runs nothing."""

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
    """Return what bash refuses in a script; None when that is nothing, or there is no bash."""
    try:
        # No other environment: BASH_ENV would be run. Extended patterns: `shopt` is not.
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
    """Return the first cause in what `bash -n` says of a script with so many lines."""
    if match := _HEREDOC.search(said):
        message = f"the heredoc that begins here has no line that is just {match[2]}"
        return Complaint(line=int(match[1]), message=message)
    if match := _COMPLAINT.search(said):
        return Complaint(line=min(int(match[1] or lines), lines), message=match[2])
    return None
