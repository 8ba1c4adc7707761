"""All rules, ordered by code, and how they are run on a script."""

import re
from collections.abc import Iterator
from contextlib import suppress

from echelon.core.shell import LocalShell
from echelon.core.shell import Shell as Programs
from echelon.lint.files import Files
from echelon.lint.rule import Finding, Hit, Rule
from echelon.lint.rules import (
    addresses,
    amounts,
    commands,
    cpus,
    data,
    directive_lines,
    environment,
    names,
    output,
    paths,
    ports,
    processes,
    saving,
    start,
    syntax,
    world,
)
from echelon.lint.subject import Subject, read_subject

THEMES = {
    "`#SBATCH` directives": (*directive_lines.RULES, *amounts.RULES),
    "Launching": (*start.RULES, *commands.RULES, *syntax.RULES, *paths.RULES),
    "Rendezvous": (*ports.RULES, *addresses.RULES, *world.RULES),
    "CPUs and environment variables": (*cpus.RULES, *environment.RULES),
    "Output and failures": output.RULES,
    "Python scripts": (*data.RULES, *saving.RULES, *processes.RULES, *names.RULES),
}
RULES: tuple[Rule, ...] = tuple(rule for rules in THEMES.values() for rule in rules)

_IGNORE = re.compile(r"#\s*echelon:\s*ignore\s+(E\d+(?:[\s,]+E\d+)*)", re.IGNORECASE)


def lint(text: str, *, path: str, files: Files, programs: Programs | None = None) -> list[Finding]:
    """Return the findings for a script and the files it starts, sorted by file and line.

    Args:
        text: the script.
        path: the path as given on the command line.
        files: the file system.
        programs: the shell that runs `bash -n` and `sinfo`; None for the real one.
    """
    subject = read_subject(text, path=path, files=files, programs=programs or LocalShell())
    found = {
        Finding(
            code=rule.code,
            path=hit.at.path,
            line=hit.at.line,
            severity=hit.severity or rule.severity,
            what=hit.what,
            fix=hit.fix,
        )
        for rule in RULES
        for hit in hits(rule, subject)
    }
    ignored = _ignored(subject)
    kept = [f for f in found if f.code not in ignored.get((f.path, f.line), ())]
    return sorted(kept, key=lambda f: (f.path != path, f.path, f.line, f.code, f.what))


def hits(rule: Rule, subject: Subject) -> Iterator[Hit]:
    """Yield what a rule finds; too deep an expression does not stop the other rules."""
    with suppress(RecursionError):
        yield from rule.check(subject)


def _ignored(subject: Subject) -> dict[tuple[str, int], set[str]]:
    """Return the ignored codes by file and line: each comment covers its line and the next."""
    texts = {subject.path: subject.text}
    texts |= {python.path: python.text for python in subject.pythons}
    for shell in subject.shells:
        texts.setdefault(shell.path, shell.text)
    ignored: dict[tuple[str, int], set[str]] = {}
    for path, text in texts.items():
        for number, line in enumerate(text.split("\n"), start=1):
            if match := _IGNORE.search(line):
                codes = set(re.findall(r"E\d+", match[1].upper()))
                for place in (number, number + 1):
                    ignored.setdefault((path, place), set()).update(codes)
    return ignored


def find_rule(code: str) -> Rule | None:
    return next((rule for rule in RULES if rule.code == code.upper()), None)
