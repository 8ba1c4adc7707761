"""E116: placeholders in configuration files, and in scripts that the job sources."""

import re
from collections.abc import Iterator

from echelon.core.frozen import frozen
from echelon.lint.bash import Shell
from echelon.lint.files import Place, find_file
from echelon.lint.patterns import pattern
from echelon.lint.rule import ADVICE, Hit
from echelon.lint.rules.wanted import OF_OUTPUT
from echelon.lint.source import clean
from echelon.lint.subject import Subject

_CONFIGS = (".toml", ".yaml", ".yml", ".json", ".ini", ".cfg", ".conf", ".env")
_INTO_LOOP = pattern(r"(?m)^[^#\n]*\bdone\s*<\s*\"?([\w./${}-]+\.(?:conf|cfg|ini|env|txt))\b")
_VARIABLE = pattern(r"\$\{?(\w+)\}?")
_PAIR = pattern(
    r"[ \t]*(?:export[ \t]+|-[ \t]+)?[\"']?([A-Za-z_][\w.-]*)[\"']?(?:[ \t]*[:=]|[ \t])[ \t]*(\S.*)"
)
"""A line of a configuration file with a name and a value."""
_PLACEHOLDER = pattern(r"/?path/to/[^\s\"',\]]*|<your[^<>]*>|YOUR_[A-Z]\w*", re.IGNORECASE)
_COMMENT = pattern(r"[ \t](?:#|//).*")
_PROSE = pattern(r"(?i)desc|help|comment|note|example|usage|doc|echo|printf|alias")
"""Names of texts for people, and commands that print them."""
_NO_READERS = frozenset(
    {
        *("echo", "printf", "cat", "grep", "ls", "rm", "mkdir", "touch", "test", "[", "[[", "git"),
        *("head", "tail", "diff", "chmod", "wget", "curl", "tar", "zip", "unzip", "exit", "export"),
    }
)
_EDITORS = frozenset(
    {"sed", "envsubst", "yq", "jq", "cp", "mv", "tee", "awk", "perl", "rsync", "ln", "crudini"}
)
"""Programs that may fill in a file."""


@frozen
class _Read:
    """A file that the job reads."""

    path: str
    at: Place
    command: str
    """The text of the command that reads it; it may replace values."""


def find_unfilled_files(subject: Subject) -> Iterator[Hit]:
    told = set[str]()
    for one in _files_read(subject):
        if one.path in told or _is_edited(subject, one.path):
            continue
        told.add(one.path)
        text = clean(subject.files.read(one.path) or "")
        found = [p for p in _placeholders(text) if not _is_given(p[1], one.command)]
        if not found:
            continue
        number, name, value = found[0]
        others = f" (and {len(found) - 1} more)" if found[1:] else ""
        yield Hit(
            at=one.at,
            what=f"`{name}` in line {number} of {one.path} is still the placeholder "
            f"{value}{others}.",
            fix=f"replace it in {one.path} with your own value",
            severity=ADVICE,
        )


def _files_read(subject: Subject) -> Iterator[_Read]:
    """Yield the configuration files of commands, the sourced scripts, and those read in loops."""
    for command in subject.commands:
        if command.name in _NO_READERS | _EDITORS:
            continue
        sources = command.name in ("source", ".")
        words = command.arguments[:1] if sources else command.arguments
        before = ""
        for word in words:
            name, _, path = word.text.rpartition("=")
            option, before = name or before, word.text
            if OF_OUTPUT.search(option) or not (sources or path.endswith(_CONFIGS)):
                continue
            if place := find_file(subject.files, path.removeprefix("@"), (command.path, "")):
                at = Place(command.path, word.line or command.line)
                yield _Read(path=place, at=at, command=command.text)
    for shell in subject.shells[:1]:
        yield from _read_in_loops(subject, shell)


def _read_in_loops(subject: Subject, shell: Shell) -> Iterator[_Read]:
    """Yield the files of loops such as `while read name value; do …; done < settings.conf`."""
    for found in _INTO_LOOP.finditer(shell.text):
        values = {a.name: a.value.text for a in shell.assignments if a.value.known and a.certain}
        path = _VARIABLE.sub(lambda use: values.get(use[1], use[0]), found[1])  # noqa: B023
        if place := find_file(subject.files, path, (shell.path, "")):
            line = shell.text[: found.end()].count("\n") + 1
            yield _Read(path=place, at=Place(shell.path, line), command="")


def _is_edited(subject: Subject, path: str) -> bool:
    """Tell whether the job may fill in a file before it is read."""
    name = path.rpartition("/")[2]
    edited = any(c.name in _EDITORS and name in c.text for c in subject.commands)
    written = (target for shell in subject.shells for target in shell.written)
    return edited or any(name in target for target in written)


def _placeholders(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the placeholders that are whole values, with their line and name."""
    if not _PLACEHOLDER.search(text):
        return
    for number, line in enumerate(text.split("\n"), start=1):
        pair = _PAIR.match(_COMMENT.sub("", line)) if _PLACEHOLDER.search(line) else None
        if pair is None or _PROSE.search(pair[1]):
            continue
        value = pair[2].strip().rstrip(",").strip("[]{} \t").strip("\"'")
        if _PLACEHOLDER.fullmatch(value):
            yield number, pair[1], value


def _is_given(name: str, command: str) -> bool:
    """Tell whether a command line has a value for a name of a configuration file."""
    last = re.escape(name.rpartition(".")[2]).replace("_", "[-_]")
    return bool(re.search(rf"(?:^|[\s.+/-]){last}(?:[=\s]|$)", command))
