"""The data loader workers of a rank, from its command line or its Python script."""

import re

from echelon.lint.patterns import pattern
from echelon.lint.python_script import PythonScript, constant, keyword, unparse
from echelon.lint.subject import Started, Subject

_WORKER_KEY = pattern(r"\.(?:num_)?workers$")
"""A key of a configuration, as in data.num_workers=8."""
_WORKER_FLAGS = frozenset(
    {
        *("--num-workers", "--num_workers", "--workers", "-j", "--n_workers", "--n-workers"),
        *("--dataloader_num_workers", "--dataloader-num-workers"),
    }
)


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
