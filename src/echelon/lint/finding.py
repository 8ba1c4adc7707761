"""A finding: its position in a script, what is wrong there, and how to fix it."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """How likely and how serious the effect is."""

    ERROR = "error"
    """The job will fail, hang, or do something other than what is written."""
    WARNING = "warning"
    """The job will fail at some point, on some clusters, or beside certain other jobs."""
    ADVICE = "advice"
    """The script runs, but could be safer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    code: str
    """Code of the rule, such as E101."""
    path: str
    """Path of the file as given on the command line."""
    line: int
    """Counted from 1."""
    severity: Severity
    """The severity of the rule, or a lower one."""
    what: str
    """What is wrong and what it causes at run time."""
    fix: str
    """Text to paste, or an instruction."""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "severity": str(self.severity)}
