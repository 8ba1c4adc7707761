"""All rules, ordered by code, and how they are run on a script."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace

from echelon.core.shell import LocalShell
from echelon.core.shell import Shell as Programs
from echelon.lint.codes import MERGED
from echelon.lint.files import Files, Place
from echelon.lint.patterns import pattern
from echelon.lint.rule import ADVICE, Finding, Hit, Rule, Severity, Span
from echelon.lint.rules import THEMES
from echelon.lint.script import Script, read_script
from echelon.lint.source import clean

RULES: tuple[Rule, ...] = tuple(
    sorted((rule for rules in THEMES.values() for rule in rules), key=lambda rule: rule.code)
)
_ORDER = list(Severity)
_OF_FILE = "E101"
"""The rule about line endings and the byte order mark, whose edits come before all others."""
_IGNORE = pattern(
    r"#\s*echelon:\s*ignore(?P<whole>-file)?\b(?P<codes>\s+E\d+(?:[\s,]+E\d+)*)?",
    re.IGNORECASE,
)


def lint(text: str, *, path: str, files: Files, programs: Programs | None = None) -> list[Finding]:
    """Return the findings for a script and the files it starts: errors first, then by line.

    Args:
        text: the script.
        path: the path as given on the command line.
        files: the file system.
        programs: the shell that runs `bash -n` and `sinfo`; None for the real one.
    """
    script = read_script(text, path=path, files=files, programs=programs or LocalShell())
    texts = _texts(script)
    ignored = _Ignored(texts)
    found: dict[tuple[str, ...], list[tuple[Span, Hit]]] = {}
    for rule in RULES:
        for hit in hits(rule, script):
            span = _span(hit, texts.get(hit.at.path, "").split("\n"))
            if not ignored(hit.at.path, span, rule.code):
                severity = ADVICE if script.is_template else hit.severity or rule.severity
                kept = _with_certain_edits(script, rule, hit)
                key = (rule.code, hit.at.path, severity, hit.what)
                found.setdefault(key, []).append((span, kept))
    findings = [_merged(key, same) for key, same in found.items()]
    return sorted(
        findings, key=lambda f: (_ORDER.index(f.severity), f.path != path, f.path, f.line, f.code)
    )


def hits(rule: Rule, script: Script) -> Iterator[Hit]:
    """Yield what a rule finds; too deep an expression does not stop the other rules."""
    with suppress(RecursionError):
        yield from rule.check(script)


def _with_certain_edits(script: Script, rule: Rule, hit: Hit) -> Hit:
    """Leave out the edits of a file that the parser may have misread, or that has others first."""
    if not hit.edits or rule.code == _OF_FILE:
        return hit
    path = hit.at.path
    raw = script.raw_text if path == script.path else script.files.read(path) or ""
    unclear = any(s.suspect or s.too_deep for s in script.shells if s.path == path)
    directive = rule.code.startswith("E1")
    # Columns count in the text without carriage returns, so the other edits follow later.
    return replace(hit, edits=()) if clean(raw) != raw or (unclear and not directive) else hit


def _merged(key: tuple[str, ...], same: list[tuple[Span, Hit]]) -> Finding:
    code, path, severity, what = key
    same = sorted(same, key=lambda one: (not one[1].leads, one[0].line, one[0].column))
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


def _texts(script: Script) -> dict[str, str]:
    """Return the text of each file that was read, by path."""
    texts = {script.path: script.text}
    texts |= {python.path: python.text for python in script.pythons}
    texts |= {path: text for path, text in script.unread if path not in texts}
    for shell in script.shells:
        if shell.path not in texts:
            texts[shell.path] = clean(script.files.read(shell.path) or shell.text)
    return texts


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
                named = re.findall(r"E\d+", (match["codes"] or "").upper()) if match else []
                codes = {MERGED.get(code, code) for code in named}
                if match and match["whole"]:
                    self._files.setdefault(path, set()).update(codes or {""})
                for place in (number, number + 1) if codes else ():
                    self._lines.setdefault((path, place), set()).update(codes)

    def __call__(self, path: str, span: Span, code: str) -> bool:
        whole = self._files.get(path, set())
        return "" in whole or code in whole | self._lines.get((path, span.line), set())


def find_rule(code: str) -> Rule | None:
    code = code.upper()
    return next((rule for rule in RULES if rule.code == MERGED.get(code, code)), None)
