"""What a rule says about a script: where, what will happen, and the text that mends it."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """How sure a defect is to be felt."""

    ERROR = "error"
    """It will fail, hang, or do something else than what is written."""
    WARNING = "warning"
    """It will bite on some day, some cluster or some job."""
    ADVICE = "advice"
    """It runs; it could be safer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    code: str
    """Of the rule, such as E101."""
    path: str
    """The file, as it was named."""
    line: int
    """Counted from 1."""
    severity: Severity
    """At most the rule's own."""
    what: str
    """What will happen at run time, in one sentence."""
    fix: str
    """Text to paste, or what to do."""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "severity": str(self.severity)}
