"""The data loader workers of a rank, from its command line or its Python script."""

import ast
import re

from echelon.lint.patterns import pattern
from echelon.lint.python_script import (
    PythonScript,
    constant,
    has_spread,
    keyword,
    unparse,
    values_of,
)
from echelon.lint.subject import Started, Subject

_WORKER_KEY = pattern(r"\.(?:num_)?workers$")
"""A key of a configuration, as in data.num_workers=8."""
_WORKER_FLAGS = frozenset(
    {
        *("--num-workers", "--num_workers", "--workers", "-j", "--n_workers", "--n-workers"),
        *("--dataloader_num_workers", "--dataloader-num-workers"),
    }
)
_PLACE = 5
"""The position of num_workers among the arguments of a DataLoader."""


def count_workers(subject: Subject, one: Started) -> tuple[str, int, int]:
    """Return where the number of data loader workers per rank is set, and the number."""
    words = one.launch.arguments
    for number, word in enumerate(words):
        flag, equals, value = word.text.partition("=")
        if flag not in _WORKER_FLAGS and not (equals and _WORKER_KEY.search(flag)):
            continue
        given = value if equals else (words[number + 1].text if number + 1 < len(words) else "")
        path, line = one.launch.place_of(word, subject.path)[:2]
        return path, line, int(given) if re.fullmatch(r"[0-9]{1,9}", given) else 0
    if one.python is not None:
        for call in one.python.calls("DataLoader"):
            count = constant(keyword(call, "num_workers"))
            if isinstance(count, int):
                return one.python.path, call.lineno, count
        if all(word.known for word in words):
            return _default_workers(one.python)
    return "", 0, 0


def worker_option(one: Started) -> str:
    """Return the option of the command line that sets the number of workers."""
    flags = (word.text.partition("=")[0] for word in one.launch.arguments)
    return next((flag for flag in flags if flag in _WORKER_FLAGS - {"-j"}), "--num-workers")


def known_workers(subject: Subject, one: Started) -> int | None:
    """Return the largest number of workers of a data loader; None if it is not certain."""
    python = one.python
    loaders = python.calls("DataLoader") if python is not None else []
    if python is None or not loaders or "DataLoader(" in python.neighbours:
        return None
    if python.text.count("DataLoader(") != len(loaders) or any(map(has_spread, loaders)):
        return None
    given = (keyword(call, "num_workers", _PLACE) for call in loaders)
    numbers = [_number(subject, one, python, node) if node else 0 for node in given]
    known = [number for number in numbers if number is not None]
    return max(known) if len(known) == len(numbers) else None


def _number(subject: Subject, one: Started, python: PythonScript, node: ast.expr) -> int | None:
    """Return the greatest value of an expression; None if it is not known."""
    values = [constant(value) for value in values_of(python, node)]
    numbers = [value for value in values if type(value) is int]
    if numbers and len(numbers) == len(values):
        return max(numbers)
    count = count_workers(subject, one)[2] if unparse(node).startswith("args.") else 0
    return count or None


def _default_workers(python: PythonScript) -> tuple[str, int, int]:
    """Return the default of the option that data loaders use, and where it is defined."""
    used = {unparse(keyword(call, "num_workers") or call) for call in python.calls("DataLoader")}
    for call in python.calls("add_argument"):
        flag, count = constant(call.args[0] if call.args else None), keyword(call, "default")
        name = flag.lstrip("-").replace("-", "_") if isinstance(flag, str) else ""
        number = constant(count)
        if flag in _WORKER_FLAGS and f"args.{name}" in used and type(number) is int:
            return python.path, call.lineno, number
    return "", 0, 0
