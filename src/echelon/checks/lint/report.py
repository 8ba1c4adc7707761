"""Findings as a person reads them, and a rule explained."""

from collections.abc import Sequence

from echelon.checks.lint.finding import Finding, Severity
from echelon.checks.lint.rule import Rule
from echelon.core.visible import in_one_line


def render_findings(findings: Sequence[Finding], files: int) -> str:
    """Return each finding with its fix below it, and a line that counts them."""
    lines = []
    for finding in findings:
        where = f"{in_one_line(finding.path)}:{finding.line}"
        lines.append(f"{where}: {finding.code} {finding.severity}: {in_one_line(finding.what)}")
        lines += [f"    {in_one_line(line)}" for line in finding.fix.splitlines()]
    return "\n".join([*lines, _count(findings, files)])


def _count(findings: Sequence[Finding], files: int) -> str:
    looked = f"{files} file" if files == 1 else f"{files} files"
    counts = [
        (sum(finding.severity is severity for finding in findings), str(severity))
        for severity in Severity
    ]
    shown = [
        f"{count} {name}" if count == 1 or name == "advice" else f"{count} {name}s"
        for count, name in counts
        if count
    ]
    return f"{looked}: {', '.join(shown) if shown else 'nothing to say'}"


def render_rule(rule: Rule) -> str:
    """Return what a rule is about, with its examples."""
    return "\n".join(
        [
            f"{rule.code} {rule.severity}: {rule.title}",
            "",
            rule.why,
            "",
            "bad:",
            *_indent(rule.bad),
            "",
            "good:",
            *_indent(rule.good),
        ]
    )


def _indent(text: str) -> list[str]:
    return [f"    {line}".rstrip() for line in text.splitlines()]
