"""All rules, ordered by code, and how they are run on a script."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace

from echelon.core.shell import LocalShell
from echelon.core.shell import Shell as Programs
from echelon.lint.files import Files, Place
from echelon.lint.generated import CODES, generated_jobs
from echelon.lint.patterns import pattern
from echelon.lint.rule import Finding, Hit, Rule, Severity, Span
from echelon.lint.rules import (
    addresses,
    amounts,
    arguments,
    commands,
    cpus,
    data,
    devices,
    directive_lines,
    environment,
    exits,
    failures,
    frameworks,
    gradients,
    hidden,
    idle,
    idle_cpus,
    imports,
    missing,
    names,
    no_gpus,
    nodes,
    output,
    paths,
    placeholders,
    pointless,
    ports,
    processes,
    prose,
    saving,
    signals,
    slips,
    start,
    statuses,
    syntax,
    values,
    variables,
    world,
)
from echelon.lint.source import clean
from echelon.lint.subject import Subject, read_subject
from echelon.lint.unfinished import is_filled_in, is_unfinished

THEMES = {
    "`#SBATCH` directives": (
        directive_lines,
        amounts,
        values,
        no_gpus,
        placeholders,
        pointless,
    ),
    "Launching": (
        start,
        idle,
        devices,
        nodes,
        arguments,
        commands,
        syntax,
        paths,
        missing,
        prose,
        frameworks,
    ),
    "Rendezvous and variables": (ports, addresses, world, variables, slips),
    "CPUs and environment variables": (cpus, idle_cpus, environment),
    "Output and failures": (output, failures, statuses, exits, signals),
    "Python scripts": (data, gradients, saving, processes, names, hidden, imports),
}
RULES: tuple[Rule, ...] = tuple(
    sorted(
        (rule for modules in THEMES.values() for module in modules for rule in module.RULES),
        key=lambda rule: rule.code,
    )
)

_IN_ANY_FILE = frozenset({"E108", "E109"})
"""Rules about line endings and the byte order mark, which remain when a script is completed."""
_OF_VALUES = frozenset({"E113", "E116", "E210", "E215"})
"""Rules about values and paths, which a program that completes a script may replace."""
_IGNORE = pattern(
    r"#\s*echelon:\s*ignore(?P<whole>-file)?\b(?P<codes>\s+E\d+(?:[\s,]+E\d+)*)?",
    re.IGNORECASE,
)


def lint(text: str, *, path: str, files: Files, programs: Programs | None = None) -> list[Finding]:
    """Return the findings for a script and the files it starts, sorted by file and line.

    Args:
        text: the script.
        path: the path as given on the command line.
        files: the file system.
        programs: the shell that runs `bash -n` and `sinfo`; None for the real one.
    """
    programs = programs or LocalShell()
    subject = read_subject(text, path=path, files=files, programs=programs)
    texts = _texts(subject)
    ignored = _Ignored(texts)
    findings = _find(subject, texts, ignored)
    for inner in generated_jobs(subject.text) if subject.shells else ():
        written = read_subject(inner, path=path, files=files, programs=programs)
        found = (f for f in _find(written, _texts(written), ignored) if f.path == path)
        findings += [_in_generated(f) for f in found if f.code in CODES]
    return sorted(findings, key=lambda f: (f.path != path, f.path, f.line, f.code, f.what))


def _in_generated(finding: Finding) -> Finding:
    """Return a finding in a here-document, whose script is not the one that the fix may mean."""
    fix = finding.fix.replace("near the top of the script", "near the top of the generated script")
    return replace(finding, fix=fix, edits=())


def _find(subject: Subject, texts: Mapping[str, str], ignored: "_Ignored") -> list[Finding]:
    unclear = {shell.path for shell in subject.shells if shell.suspect or shell.too_deep}
    # Columns count in the text without these, so the other edits follow when they are gone.
    dirty = {path for path in texts if clean(raw := _raw(subject, path)) != raw}
    found: dict[tuple[str, ...], list[tuple[Span, Hit]]] = {}
    for rule in RULES:
        for hit in hits(rule, subject):
            span = _span(hit, texts.get(hit.at.path, "").split("\n"))
            if ignored(hit.at.path, span, rule.code):
                continue
            cleans = rule.code in ("E108", "E109")
            directive = rule.code.startswith("E1")
            if (hit.at.path in dirty and not cleans) or (hit.at.path in unclear and not directive):
                hit = replace(hit, edits=())  # noqa: PLW2901
            severity = hit.severity or rule.severity
            found.setdefault((rule.code, hit.at.path, severity, hit.what), []).append((span, hit))
    findings = _before_stops([_merged(key, same) for key, same in found.items()])
    return _certain(subject, _without_followers(subject, findings))


def _certain(subject: Subject, findings: list[Finding]) -> list[Finding]:
    """Lower the findings of a script that another program, or a person, completes first."""
    doubtful = [f for f in findings if f.path == subject.path and _is_of_finished(f)]
    if not subject.shells or not doubtful:
        return findings
    told = (subject.path, subject.text, subject.files)
    if not is_unfinished(*told):
        return findings
    filled_in = is_filled_in(*told)
    return [_lowered(f, filled_in=filled_in) if f in doubtful else f for f in findings]


def _is_of_finished(finding: Finding) -> bool:
    """Tell whether a finding is certain only in a finished script."""
    error = finding.severity is Severity.ERROR and finding.code not in _IN_ANY_FILE
    return error or (finding.code in _OF_VALUES and finding.severity is Severity.WARNING)


def _lowered(finding: Finding, *, filled_in: bool) -> Finding:
    if finding.code in _OF_VALUES and filled_in:
        return replace(finding, severity=Severity.ADVICE)
    if finding.severity is Severity.ERROR:
        return replace(finding, severity=Severity.WARNING)
    return finding


def _before_stops(findings: list[Finding]) -> list[Finding]:
    """Leave out commands that bash does not reach, because it stops at a syntax error before."""
    errors = (f for f in findings if f.code == "E210" and f.severity is Severity.ERROR)
    stops = {finding.path: finding.line for finding in errors}
    return [f for f in findings if f.code[:2] == "E1" or f.line <= stops.get(f.path, f.line)]


def _without_followers(subject: Subject, findings: list[Finding]) -> list[Finding]:
    """Lower the errors of commands that do not run, because of an error of the whole script."""
    errors = [f for f in findings if f.severity is Severity.ERROR]
    stopped = {f.path for f in errors if f.code == "E210"}
    rejected = any(f.code == "E101" and f.path == subject.path for f in errors)
    return [
        replace(finding, severity=Severity.WARNING)
        if finding in errors
        and (rejected or finding.path in stopped)
        and finding.code[:2] != "E1"
        and finding.code != "E210"
        else finding
        for finding in findings
    ]


def _merged(key: tuple[str, ...], same: list[tuple[Span, Hit]]) -> Finding:
    code, path, severity, what = key
    same = sorted(same, key=lambda one: (one[0].line, one[0].column))
    spans = list(dict.fromkeys(span for span, _ in same))
    return Finding(
        code=code,
        path=path,
        **asdict(spans[0]),
        severity=Severity(severity),
        what=what,
        fix="\n".join(dict.fromkeys(hit.fix for _, hit in same)),
        also=tuple(spans[1:]),
        edits=tuple(dict.fromkeys(edit for _, hit in same for edit in hit.edits)),
    )


def _span(hit: Hit, lines: list[str]) -> Span:
    """Return the range of a hit: its own, or its line without the blanks around it."""
    line, at = hit.at.line, hit.at
    if isinstance(at, Place) and at.column:
        return Span(line=line, column=at.column, end_line=at.end_line, end_column=at.end_column)
    text = lines[line - 1].rstrip() if 0 < line <= len(lines) else ""
    start = len(text) - len(text.lstrip())
    return Span(line=line, column=start + 1, end_line=line, end_column=max(start, len(text)) + 1)


def hits(rule: Rule, subject: Subject) -> Iterator[Hit]:
    """Yield what a rule finds; too deep an expression does not stop the other rules."""
    with suppress(RecursionError):
        yield from rule.check(subject)


def _texts(subject: Subject) -> dict[str, str]:
    """Return the text of each file that was read, by path."""
    texts = {subject.path: subject.text}
    texts |= {python.path: python.text for python in subject.pythons}
    texts |= {path: text for path, text in subject.unread if path not in texts}
    for shell in subject.shells:
        if shell.path not in texts:
            texts[shell.path] = clean(subject.files.read(shell.path) or shell.text)
    return texts


def _raw(subject: Subject, path: str) -> str:
    return subject.raw_text if path == subject.path else subject.files.read(path) or ""


class _Ignored:
    """The codes that comments ignore: those of a line on it and the next, or those of a file."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._lines: dict[tuple[str, int], set[str]] = {}
        self._files: dict[str, set[str]] = {}
        for path, text in texts.items():
            if "echelon:" not in text:
                continue
            for number, line in enumerate(text.split("\n"), start=1):
                match = _IGNORE.search(line)
                codes = set(re.findall(r"E\d+", (match["codes"] or "").upper())) if match else set()
                if match and match["whole"]:
                    self._files.setdefault(path, set()).update(codes or {""})
                for place in (number, number + 1) if codes else ():
                    self._lines.setdefault((path, place), set()).update(codes)

    def __call__(self, path: str, span: Span, code: str) -> bool:
        whole = self._files.get(path, set())
        return "" in whole or code in whole | self._lines.get((path, span.line), set())


def find_rule(code: str) -> Rule | None:
    return next((rule for rule in RULES if rule.code == code.upper()), None)
