"""Renders findings and explanations of rules as text."""

from collections.abc import Sequence

from echelon.core.terminal_escape import in_one_line
from echelon.core.units import counted
from echelon.lint.rule import Finding, Rule, Severity

_MOST_LINES = 8


def render_findings(findings: Sequence[Finding], files: int) -> str:
    """Return each finding with its fix below it, then a summary line."""
    lines = []
    for finding in findings:
        where = f"{in_one_line(finding.path)}:{finding.line}:{finding.column}"
        also = _also(finding)
        lines.append(
            f"{where}: {finding.code} {finding.severity}: {in_one_line(finding.what)}{also}"
        )
        lines += [f"    {in_one_line(line)}" for line in finding.fix.splitlines()]
    return "\n".join([*lines, _count(findings, files)])


def _also(finding: Finding) -> str:
    others = sorted({span.line for span in finding.also} - {finding.line})
    shown = ", ".join(map(str, others[:_MOST_LINES])) + (", …" if others[_MOST_LINES:] else "")
    return f" (also line{'s' if others[1:] else ''} {shown})" if others else ""


def _count(findings: Sequence[Finding], files: int) -> str:
    counts = [
        (sum(finding.severity is severity for finding in findings), str(severity))
        for severity in Severity
    ]
    shown = [
        f"{count} {name}" if name == "advice" else counted(count, name)
        for count, name in counts
        if count
    ]
    fixable = sum(bool(finding.edits) for finding in findings)
    more = f" ({fixable} fixable with --fix)" if fixable else ""
    return f"{counted(files, 'file')}: {', '.join(shown) if shown else 'no problems found'}{more}"


def render_rule(rule: Rule) -> str:
    """Return the explanation of a rule with its examples."""
    return "\n".join(
        [
            f"{rule.code} {rule.severity}: {rule.title}",
            "",
            rule.why,
            "",
            "Example:",
            *_indent(rule.bad),
            "",
            "Use instead:",
            *_indent(rule.good),
        ]
    )


def _indent(text: str) -> list[str]:
    return [f"    {line}".rstrip() for line in text.splitlines()]
