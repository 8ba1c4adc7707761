"""E215: files that exist and do not work, such as a script without permission to execute."""

import os
from collections.abc import Iterator

from echelon.lint.bash import Command, Word
from echelon.lint.files import Place, beside, find_file
from echelon.lint.patterns import pattern
from echelon.lint.rule import ADVICE, Hit
from echelon.lint.subject import Subject

_BY_PATH = pattern(r"(?:\./)?[\w.-]+(?:/[\w.-]+)+")
_BY_NAME = pattern(r"\w[\w.-]*\.(?:sh|bash|py)")
"""A name that srun looks up in PATH, and then in the working directory."""
_FOREIGN = {
    "macOS": pattern(r"(?:--?[\w-]+=)?/Users/\w[\w.-]*/"),
    "Windows": pattern(r"(?:--?[\w-]+=)?[A-Z]:(?:\\{1,2}\w|/\w+/|Users)"),
}
_ON_A_LAPTOP = pattern(r"\buname\b|OSTYPE|Darwin")
_NO_PROGRAMS = frozenset(
    {"echo", "printf", "export", "grep", "sed", "awk", "rsync", "scp", "ssh", "alias", "test", "["}
)
_SYMBOLIC = pattern(r"-\w*s\w*|--symbolic")
_OTHER_LINKS = pattern(r"-\w*[rt]\w*|--relative|--target-directory.*")
"""Options with which `ln` computes the target, or the link."""
_BELOW = pattern(r"(?:\./)*\w[\w.-]*/[^\n]+")
"""A relative path below a folder that is given by its name."""


def find_unusable_paths(subject: Subject) -> Iterator[Hit]:
    if subject.batch is None or not subject.is_job:
        return
    if "chmod" not in subject.batch.text:
        yield from _not_executable(subject)
    yield from _foreign(subject)
    yield from _dangling(subject)


def _not_executable(subject: Subject) -> Iterator[Hit]:
    """Find files that the script runs by their path or name, and that are not executable."""
    told = set[str]()
    for command, word, by_srun in _run(subject):
        path = word.text
        named = by_srun and _BY_NAME.fullmatch(path)
        full = path.startswith(("/", "~/", "$"))
        plain = word.known and (named or _BY_PATH.fullmatch(path))
        if path in told or not (full or plain):
            continue
        told.add(path)
        found = _found(subject, path)
        if not found or any(map(subject.files.is_executable, found)):
            continue
        problem = ", so srun cannot start it." if by_srun else ": 'Permission denied'."
        yield Hit(
            at=command,
            what=f"{path} is not executable{problem}",
            fix=f"chmod +x {path}  # or call it with its interpreter",
            # Another clone may have other modes.
            severity=ADVICE if by_srun or full else None,
        )


def _found(subject: Subject, path: str) -> list[str]:
    """Return where a program may be; one with a full path is in a clone of the repository."""
    if path.startswith(("/", "~", "$")):
        place = find_file(subject.files, path, (subject.path,))
        return [place] if place else []
    places = {beside(base, path) for base in (subject.path, "")}
    return [place for place in places if subject.files.read(place) is not None]


def _run(subject: Subject) -> Iterator[tuple[Command, Word, bool]]:
    """Yield each command of the job script with its program, and whether srun starts it."""
    commands = subject.batch.commands if subject.batch else ()
    yield from ((command, command.words[0], False) for command in commands if command.words)
    moves = any(command.name in ("cd", "pushd") for command in commands)
    for command, options, rest in subject.sruns:
        elsewhere = any(name in options for name in ("chdir", "container-image", "bcast"))
        if not rest or command.path != subject.path or elsewhere:
            continue
        if "/" in rest[0].text or not moves:
            yield command, rest[0], True


def _foreign(subject: Subject) -> Iterator[Hit]:
    """Find paths of a laptop in the commands of a job."""
    if any(_ON_A_LAPTOP.search(shell.text) for shell in subject.shells):
        return
    told = set[tuple[str, int]]()
    for command in subject.commands:
        for word in command.words if command.name not in _NO_PROGRAMS else ():
            system = next((s for s, found in _FOREIGN.items() if found.match(word.text)), "")
            at = Place(command.path, word.line or command.line)
            if system and (command.path, at.line) not in told:
                told.add((command.path, at.line))
                path = word.text.rpartition("=")[2]
                yield Hit(
                    at=at,
                    what=f"{path} is a path of {system}. It does not exist on a Linux cluster.",
                    fix="use a path of the cluster",
                    severity=ADVICE,
                )


def _dangling(subject: Subject) -> Iterator[Hit]:
    """Find symbolic links whose relative target begins with the folder of the link."""
    for command in subject.commands:
        options = [word.text for word in command.arguments if word.text.startswith("-")]
        paths = [word for word in command.arguments if not word.text.startswith("-")]
        if command.name != "ln" or len(paths) != 2 or any(map(_OTHER_LINKS.fullmatch, options)):
            continue
        target, link = (word.text for word in paths)
        if not any(map(_SYMBOLIC.fullmatch, options)) or not _BELOW.fullmatch(target):
            continue
        folder = os.path.normpath(os.path.dirname(link))  # noqa: PTH120
        first = os.path.normpath(target).partition("/")[0]
        if not _BELOW.fullmatch(link) or folder.partition("/")[0] != first:
            continue
        end = f"{folder}/{first}"  # the folder where the link looks for the target
        if not any(subject.files.is_folder(beside(base, end)) for base in (command.path, "")):
            yield Hit(
                at=command,
                what="The target of a link is relative to the folder of the link, so this link "
                f"points to {end}/…, which does not exist.",
                fix="ln -r -s …  # or a full path as the target",
                severity=ADVICE,
            )
