"""Failures after which the next lines destroy data or work with the wrong one; part of E507."""

import os
import re
from collections.abc import Iterator

from echelon.lint.bash import Command, Shell
from echelon.lint.exit_status import begins_with_errexit
from echelon.lint.files import find_file
from echelon.lint.patterns import pattern
from echelon.lint.rule import ADVICE, Hit
from echelon.lint.rules.failures import is_noticed
from echelon.lint.rules.status_fixes import ending_fix
from echelon.lint.subject import Subject

_ARCHIVE = pattern(r"(?i)\.(?:zip|tar|tgz|tbz2?|txz|tar\.\w{2,4}|7z|rar|gz)$")
_EXTRACTS = pattern(r"-?[a-zA-Z]*x[a-zA-Z]*|--extract|--get")
_CREATES = pattern(r"-?[a-zA-Z]*c[a-zA-Z]*|--create")
_UNPACKERS = frozenset({"unzip", "unrar", "7z", "gunzip", "unxz", "zstd"})
_COPIERS = frozenset({"cp", "rsync", "mv"})
_DOWNLOADS = frozenset({"wget", "curl", "gdown", "aria2c", "scp"})
_BRANCHES = pattern(
    r"&&|\|\||\$\?|\b(?:if|then|else|elif|fi|case|esac|exit|return|exec|kill|done|trap|set)\b"
)
"""Parts of lines after which the next command may not run, or which look at a status."""
_TOO_SHORT = frozenset({"", ".", "..", "/", "*"})
_HARMLESS_NAMES = frozenset({"PATH", "HOME", "PYTHONPATH", "LD_LIBRARY_PATH", "TMPDIR", "USER"})
_SETS = pattern(r"(?m)^\s{0,40}(?:export\s+|readonly\s+|declare\s+(?:-\w+\s+)?)?([A-Za-z_]\w*)=")
_FUNCTION = pattern(r"(?m)^\s{0,40}(?:function\s+([\w-]+)|([\w-]+)\s*\(\))")
_RELATIVE = pattern(r"(?:\.{1,2}/)*[A-Za-z0-9_][\w.+-]*(?:/[\w.+-]+)*")
_MOST = 200
"""Maximum number of commands to compare the others with."""
_SHORTEST = 3
_SHOWN = 3
"""Maximum number of names to show."""


def find_spoiled(batch: Shell) -> Iterator[Hit]:
    """Find commands that remove what an earlier command has failed to copy or to unpack."""
    plain = [c for c in batch.commands if not c.substituted and not c.function]
    lines = batch.text.split("\n")
    removals = [(n, c) for n, c in enumerate(plain) if c.name == "rm" and not c.background]
    for number, command in enumerate(plain) if removals else ():
        sources = _sources(command) if command.unchecked and not command.background else []
        for place, later in removals[:_MOST] if sources else ():
            removed = _removed(later, sources) if place > number else ""
            if not removed or later.looped != command.looped or _is_copy(sources, plain[:number]):
                continue
            if not _follows(lines, command, later) or is_noticed(batch, command):
                continue
            unpacks = command.name not in _COPIERS and _ARCHIVE.search(removed)
            yield Hit(
                at=command,
                what=f"If this command fails, line {later.line} still removes "
                + (f"the archive {removed}." if unpacks else f"{removed}, its source."),
                fix=f"{command.name} … && rm …  # or: set -e  near the top of the script",
                severity=ADVICE,
            )
            return


def find_incomplete(batch: Shell) -> Iterator[Hit]:
    """Find archives that are unpacked although the download may have failed."""
    plain = [c for c in batch.commands if not c.substituted and not c.function]
    lines = batch.text.split("\n")
    unpacking = [(n, c, _sources(c)) for n, c in enumerate(plain) if _unpacks(c)][:_MOST]
    for number, command in enumerate(plain):
        if command.name not in _DOWNLOADS or not command.unchecked or command.background:
            continue
        names = {w.text.rpartition("/")[2].partition("?")[0] for w in command.arguments}
        for place, later, texts in unpacking:
            same = any(text.rpartition("/")[2] in names for text in texts)
            if not same or place <= number or not _follows(lines, command, later):
                continue
            if not is_noticed(batch, command):
                yield Hit(
                    at=command,
                    what=f"If this download fails, line {later.line} still unpacks what there is, "
                    "and the script continues without the data.",
                    fix=ending_fix(batch, command),
                    severity=ADVICE,
                )
                return


def _follows(lines: list[str], first: Command, second: Command) -> bool:
    """Tell whether a command runs after another one, whatever the status of that is."""
    if second.line < first.line:
        return False
    between = (re.sub(r"(?:^|\s)#.*", "", line) for line in lines[first.line - 1 : second.line])
    return not any(map(_BRANCHES.search, between))


def _unpacks(command: Command) -> bool:
    if command.name == "tar":
        first = command.arguments[0].text if command.arguments else ""
        return bool(_EXTRACTS.fullmatch(first)) and not _CREATES.fullmatch(first)
    return command.name in _UNPACKERS


def _sources(command: Command) -> list[str]:
    """Return the paths that a command copies or unpacks."""
    words = [w.text.rstrip("/") for w in command.arguments if not w.text.startswith("-")]
    if command.name in _COPIERS:
        return [w for w in words[:-1] if ":" not in w]
    if _unpacks(command):
        return [w for w in words if _ARCHIVE.search(w)]
    if command.name in ("tar", "zip"):
        return [w for w in words[1:] if not _ARCHIVE.search(w)]
    return []


def _removed(command: Command, sources: list[str]) -> str:
    """Return the path that a command removes, if it is or contains a source of another one."""
    for word in command.arguments:
        path = word.text.rstrip("/")
        if path.startswith("-") or path in _TOO_SHORT:
            continue
        if any(source == path or source.startswith(f"{path}/") for source in sources):
            return path
    return ""


def _is_copy(sources: list[str], before: list[Command]) -> bool:
    """Tell whether an earlier command has made the sources as copies of other files."""
    copies = (c for c in before if c.name in ("cp", "rsync", "ln"))
    targets = [c.arguments[-1].text.rstrip("/") for c in copies if c.arguments]
    return any(
        source == target or source.startswith(f"{target}/")
        for source in sources
        for target in targets
    )


def find_missing_source(subject: Subject) -> Iterator[Hit]:
    """Find a sourced file of the repository that sets what the script needs, by a relative path."""
    batch = subject.batch
    if batch is None or not subject.is_job or subject.directives.last("chdir") is not None:
        return
    if "errexit" in batch.settings or begins_with_errexit(batch.text):
        return
    if re.match(r"#!\S*(?:/|env )(?:da)?sh\b", batch.text):
        return
    for command in batch.commands:
        if command.name in ("cd", "pushd"):
            return  # the directory is known
        if command.name not in ("source", ".") or not (command.certain and command.unchecked):
            continue
        path = command.arguments[0].text if command.arguments else ""
        if not _RELATIVE.fullmatch(path) or "||" in subject.line_at(command):
            continue
        place = find_file(subject.files, path, ("", subject.path))
        text = subject.files.read(place) if place else None
        lost = _lost_names(batch, command, text) if text else []
        if lost:
            shown = ", ".join(f"`{name}`" for name in lost[:_SHOWN])
            more = " and others" if len(lost) > _SHOWN else ""
            yield Hit(
                at=command,
                what=f"If the job starts in another directory, bash does not find "
                f"{os.path.normpath(path)} and continues without {shown}{more}.",
                fix=f"source {path} || exit 1",
                severity=ADVICE,
            )
            return


def _lost_names(batch: Shell, source: Command, text: str) -> list[str]:
    """Return the variables and functions that only a sourced file sets, and later lines use."""
    own = {a.name for a in batch.assignments} | _HARMLESS_NAMES
    variables = {name for name in _SETS.findall(text) if len(name) >= _SHORTEST} - own
    functions = {one or other for one, other in _FUNCTION.findall(text)}
    inside = {c.function for c in batch.commands}
    later = [c for c in batch.commands if c.line > source.line]
    words = [word for c in later for word in (*c.words, *(a.value for a in c.assignments))]
    words += [a.value for a in batch.assignments if a.line > source.line]
    used = [use.name for word in words for use in word.uses if not use.guarded]
    called = [c.name for c in later if c.name in functions - inside]
    return list(dict.fromkeys([*(name for name in used if name in variables), *called]))
