"""Text that a person still has to replace, such as <account>, your_env or /path/to/data."""

from echelon.lint.patterns import pattern
from echelon.lint.request import Directive

_VALUE = pattern(
    r"(?i)\.\.\.|<[^<>]*>|\[[a-z][a-z _-]*\]|\w*x{3,}|your[-_.@]\S*|\S*\{+\s*\w+\s*\}+\S*|%%\w+%%|"
    r"@\w+@|"
    r"__\w+__|#\w+#|your(?:account|partition|project|group|email)\w*|<[^<>]+>@\S+|"
    r"(?-i:X|(?:[A-Z]+_)*(?:ACCOUNT|PARTITION|QOS|PROJECT)(?:_NAME|_HERE)?)"
)
"""A whole value of a directive."""
_FREE_TEXT = frozenset({"comment", "constraint", "job-name", "output", "error", "wckey", "exclude"})
"""Options for which such a value is valid."""
_IN_TEXT = pattern(
    r"(?<![\w$-])(/?path/to/[\w./-]*\w|YOUR_[A-Z]\w+|your[-_]\w[\w-]*|REPLACE_\w+|CHANGE_?ME|"
    r"[Yy]our(?:Path|Name|Account|User)\b|<(?:your|path|user|my|account|project)[\w ./-]*>|"
    r"\{\{[^{}\n]{1,80}\}\})"
)
"""A part of a command or of a path."""


def is_placeholder(item: Directive) -> bool:
    """Tell whether the value of a directive is still to be filled in."""
    if item.option in _FREE_TEXT:
        return False
    return "$" not in item.value and bool(_VALUE.fullmatch(item.value))


def placeholder_in(text: str) -> str:
    """Return the first placeholder in a text; empty if there is none."""
    found = _IN_TEXT.search(text)
    return found[1] if found else ""
