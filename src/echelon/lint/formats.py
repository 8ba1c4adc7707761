"""Findings for programs: JSON, SARIF 2.1.0 and the annotations of GitHub Actions. Pure."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

from echelon._version import __version__
from echelon.lint.edits import Edit
from echelon.lint.rule import Finding, Rule, Severity, Span

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.ADVICE: "note"}
_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.ADVICE: "notice"}


def render_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Return the findings as a list of plain objects."""
    return [asdict(finding) for finding in findings]


def render_github(findings: Sequence[Finding]) -> str:
    """Return a workflow command for each place, which GitHub shows beside the line."""
    lines = []
    for finding in findings:
        text = _escape(f"{finding.what}\n{finding.fix}")
        for span in _spans(finding):
            place = {
                "file": finding.path,
                "line": span.line,
                "endLine": span.end_line,
                "col": span.column,
                "endColumn": span.end_column,
                "title": finding.code,
            }
            named = ",".join(f"{name}={_escape_property(value)}" for name, value in place.items())
            lines.append(f"::{_COMMANDS[finding.severity]} {named}::{text}")
    return "\n".join(lines)


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(value: object) -> str:
    return _escape(str(value)).replace(":", "%3A").replace(",", "%2C")


def render_sarif(findings: Sequence[Finding], rules: Sequence[Rule]) -> dict[str, Any]:
    """Return a SARIF log of one run, with the rules that have findings."""
    found = {finding.code for finding in findings}
    used = [rule for rule in rules if rule.code in found]
    index = {rule.code: number for number, rule in enumerate(used)}
    driver = {
        "name": "echelon lint",
        "version": __version__,
        "rules": [_rule(rule) for rule in used],
    }
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "columnKind": "unicodeCodePoints",
                "results": [_result(finding, index[finding.code]) for finding in findings],
            }
        ],
    }


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.why},
        "help": {"text": f"echelon lint --explain {rule.code}"},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _result(finding: Finding, number: int) -> dict[str, Any]:
    first, *others = _spans(finding)
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": number,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.what}\n{finding.fix}"},
        "locations": [_location(finding.path, first)],
    }
    if others:
        result["relatedLocations"] = [_location(finding.path, span) for span in others]
    if finding.edits:
        change = {
            "artifactLocation": {"uri": _uri(finding.path)},
            "replacements": [
                {"deletedRegion": _region(edit), "insertedContent": {"text": edit.text}}
                for edit in finding.edits
            ],
        }
        result["fixes"] = [{"description": {"text": finding.fix}, "artifactChanges": [change]}]
    return result


def _location(path: str, span: Span) -> dict[str, Any]:
    return {"physicalLocation": {"artifactLocation": {"uri": _uri(path)}, "region": _region(span)}}


def _region(span: Span | Edit) -> dict[str, int]:
    return {
        "startLine": span.line,
        "startColumn": span.column,
        "endLine": span.end_line,
        "endColumn": span.end_column,
    }


def _uri(path: str) -> str:
    return f"file://{quote(path)}" if path.startswith("/") else quote(path)


def _spans(finding: Finding) -> list[Span]:
    first = Span(
        line=finding.line,
        column=finding.column,
        end_line=finding.end_line,
        end_column=finding.end_column,
    )
    return [first, *finding.also]
