"""The data loader workers of a rank, from its command line or its Python script."""

import ast
import re

from echelon.core.frozen import frozen
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


@frozen
class Workers:
    """The number of data loader workers of a rank, and where a script sets it."""

    path: str = ""
    line: int = 0
    count: int = 0
    """0 if it is not known."""
    setting: str = ""
    """What is before the number, such as `--num-workers=`."""


def count_workers(subject: Subject, one: Started) -> Workers:
    """Return the number of data loader workers per rank, and where it is set."""
    words = one.launch.arguments
    for place, word in enumerate(words):
        flag, equals, value = word.text.partition("=")
        if flag not in _WORKER_FLAGS and not (equals and _WORKER_KEY.search(flag)):
            continue
        given = value if equals else (words[place + 1].text if place + 1 < len(words) else "")
        path, line = one.launch.place_of(word, subject.path)[:2]
        count = int(given) if re.fullmatch(r"[0-9]{1,9}", given) else 0
        return Workers(path=path, line=line, count=count, setting=_setting(flag))
    if one.python is not None:
        for call in one.python.calls("DataLoader"):
            node = keyword(call, "num_workers")
            number = constant(node)
            if node is not None and isinstance(number, int):
                path, line = one.python.path, node.lineno
                return Workers(path=path, line=line, count=number, setting="num_workers=")
        if all(word.known for word in words):
            return _default_workers(one.python)
    return Workers()


def _setting(flag: str) -> str:
    return f"{flag} " if flag == "-j" else f"{flag}="


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
    count = count_workers(subject, one).count if unparse(node).startswith("args.") else 0
    return count or None


def _default_workers(python: PythonScript) -> Workers:
    """Return the default of the option that data loaders use, and where it is defined."""
    used = {unparse(keyword(call, "num_workers") or call) for call in python.calls("DataLoader")}
    for call in python.calls("add_argument"):
        flags = [flag for argument in call.args if isinstance(flag := constant(argument), str)]
        default = keyword(call, "default")
        names = {flag.lstrip("-").replace("-", "_") for flag in flags}
        number = constant(default)
        if default is None or type(number) is not int or not _WORKER_FLAGS & set(flags):
            continue
        if used & {f"args.{name}" for name in names}:
            path, line = python.path, default.lineno
            return Workers(path=path, line=line, count=number, setting="default=")
    return Workers()
