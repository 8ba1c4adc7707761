"""Which findings are reported: codes, severities and a baseline of known findings. Pure."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from echelon.core.frozen import frozen
from echelon.errors import UsageError
from echelon.lint.codes import MERGED, REMOVED
from echelon.lint.linting import RULES
from echelon.lint.rule import Finding, Severity

_TEXTS = ("severity", "baseline")
_LISTS = ("select", "ignore")
KEYS = (*_LISTS, *_TEXTS, "strict")
_ORDER = list(Severity)


@frozen
class Choice:
    """What to report. These are the keys of `[lint]` in the project file, too."""

    select: tuple[str, ...] = ()
    """Codes, or how they start; empty for all that are on by default."""
    ignore: tuple[str, ...] = ()
    severity: Severity = Severity.WARNING
    """The lowest severity to report."""
    baseline: str = ""
    """A file of findings that are not reported."""
    strict: bool = False
    """Warnings fail, too."""

    def keeps(self, finding: Finding) -> bool:
        chosen = not self.select or finding.code.startswith(self.select)
        severe = _ORDER.index(finding.severity) <= _ORDER.index(self.severity)
        return chosen and severe and not finding.code.startswith(self.ignore)

    def fails(self, findings: Iterable[Finding]) -> bool:
        failing = {Severity.ERROR, Severity.WARNING} if self.strict else {Severity.ERROR}
        return any(finding.severity in failing for finding in findings)


def read_choice(table: Mapping[str, Any], flags: Mapping[str, Any], *, source: str) -> Choice:
    """Return the choice of a table `[lint]`, with the flags that were given in its place.

    Raises:
        UsageError: a key, a code or a severity does not exist, or a value has the wrong type.
    """
    if unknown := [key for key in table if key not in KEYS]:
        raise UsageError(
            f"{source}: unknown key '{unknown[0]}' in [lint]", hint=f"known keys: {', '.join(KEYS)}"
        )
    values = {**table, **{key: value for key, value in flags.items() if value}}
    for key in _TEXTS:
        if not isinstance(values.get(key, ""), str):
            raise UsageError(f"{source}: '{key}' is not a string", hint=f'{key} = "…"')
    if not isinstance(values.get("strict", False), bool):
        raise UsageError(f"{source}: 'strict' is not true or false", hint="strict = true")
    select = _codes("select", values.get("select", []), source)
    default = Severity.ADVICE if select else Severity.WARNING  # a selected rule is wanted
    return Choice(
        select=select,
        ignore=_codes("ignore", values.get("ignore", []), source),
        severity=_severity(values.get("severity") or default),
        baseline=values.get("baseline", ""),
        strict=values.get("strict", False),
    )


def _codes(key: str, values: Any, source: str) -> tuple[str, ...]:
    """Return the codes of a list whose items may be several, separated by commas."""
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise UsageError(
            f"{source}: '{key}' is not a list of codes: {values!r}", hint=f'{key} = ["E401"]'
        )
    codes = [code.strip().upper() for value in values for code in value.split(",") if code.strip()]
    codes = [MERGED.get(code, code) for code in codes]
    for code in codes:
        if code in REMOVED and key == "select":
            raise UsageError(f"the rule {code} was removed", hint=f"remove {code} from '{key}'")
        if code not in REMOVED and not any(rule.code.startswith(code) for rule in RULES):
            raise UsageError(
                f"unknown rule: {code}", hint="list all rules: echelon lint --explain all"
            )
    return tuple(codes)


def _severity(text: str) -> Severity:
    try:
        return Severity(text)
    except ValueError as error:
        raise UsageError(
            f"invalid value for --severity: '{text}' (choose error, warning or advice)",
            hint="--severity warning",
        ) from error


# --- baseline -------------------------------------------------------------------------------

ReadLine = Callable[[str, int], str]
"""Returns the text of a line of a file."""
Name = Callable[[str], str]
"""Returns the path of a script as a baseline has it."""


def render_baseline(findings: Sequence[Finding], read_line: ReadLine, name: Name) -> str:
    """Return the text of a baseline file: path, code and line of each finding."""
    entries = sorted(key for finding in findings for key in _keys(finding, read_line, name))
    known = [{"path": path, "code": code, "text": text} for path, code, text in entries]
    return json.dumps({"version": 1, "findings": known}, indent=1, ensure_ascii=False) + "\n"


def drop_known(
    findings: Sequence[Finding], text: str, read_line: ReadLine, name: Name
) -> list[Finding]:
    """Return the findings that are not in a baseline; line numbers may have changed.

    Raises:
        UsageError: the text is not a baseline.
    """
    try:
        entries = json.loads(text)["findings"]
        known = Counter((entry["path"], entry["code"], entry["text"]) for entry in entries)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            "the baseline is not valid", hint="write a new one: echelon lint --write-baseline FILE"
        ) from error
    left = []
    for finding in findings:
        new = []
        for span, key in zip(_spans(finding), _keys(finding, read_line, name), strict=True):
            known[key] -= 1
            if known[key] < 0:
                new.append(span)
        if new:
            first = {name: getattr(new[0], name) for name in _SPAN}
            left.append(replace(finding, **first, also=tuple(new[1:])))
    return left


_SPAN = ("line", "column", "end_line", "end_column")


def _spans(finding: Finding) -> list[Any]:
    return [finding, *finding.also]


def _keys(finding: Finding, read_line: ReadLine, name: Name) -> list[tuple[str, str, str]]:
    return [
        (name(finding.path), finding.code, read_line(finding.path, line).strip())
        for line in finding.lines
    ]
