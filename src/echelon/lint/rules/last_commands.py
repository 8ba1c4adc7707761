"""Whether the last command of a script may itself fail, although the work is before it."""

from collections.abc import Iterable

from echelon.lint.bash import Command, Shell
from echelon.lint.patterns import pattern

COPIES = frozenset({"cp", "mv", "rsync", "tar"})
_FORCES = pattern(r"-\w*f\w*|--force")
_KERNEL_FILE = pattern(r">\s*/(?:proc|sys)/")
"""Files that only root may write."""


def may_fail(batch: Shell, end: Command) -> bool:
    """Tell whether a last command may itself fail."""
    if end.name == "deactivate":  # which `source …/activate` defines
        makers = (c for c in batch.commands if c.name in ("source", ".", "conda"))
        return not any("activate" in c.text for c in makers)
    if end.name == "rm" and not any(map(_FORCES.fullmatch, (w.text for w in end.arguments))):
        return not set(_paths(end)) <= _made(batch.commands)
    return bool(_KERNEL_FILE.search(batch.text.split("\n")[end.line - 1]))


def _paths(command: Command) -> list[str]:
    """Return the arguments of a command that are no options."""
    return [w.text.rstrip("/") for w in command.arguments if not w.text.startswith("-")]


def lists(command: Command) -> bool:
    """Tell whether a command lists a path, and fails if the program has not written it."""
    return command.name == "ls" and bool(_paths(command))


def _made(commands: Iterable[Command]) -> set[str]:
    """Return the directories that the script itself creates."""
    return {path for c in commands if c.name == "mkdir" for path in _paths(c)}


def lists_own(command: Command, commands: list[Command]) -> bool:
    """Tell whether a command lists only directories that the script itself has created."""
    words = set(_paths(command))
    return command.name == "ls" and bool(words) and words <= _made(commands)


def copies_anyway(command: Command, commands: list[Command]) -> bool:
    """Tell whether a command copies directories that the script itself has created."""
    words = _paths(command)
    sources = words[:-1]
    if command.name == "tar":
        sources = words[-1:] if "c" in command.arguments[0].text else []
    return command.name in COPIES and bool(sources) and set(sources) <= _made(commands)
