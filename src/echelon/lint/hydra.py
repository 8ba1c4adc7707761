"""The keys of a Hydra program's configuration, as far as its YAML files tell. Pure.

The files of a group are taken together, because the command line may choose any of them. So a key
that none of them has cannot be overridden, whichever is chosen.
"""

import ast
import os
import re
from functools import lru_cache
from typing import TypeAlias

from echelon.core.frozen import frozen
from echelon.lint.files import Files, Root
from echelon.lint.patterns import pattern
from echelon.lint.python_script import PythonScript, constant, keyword, last_name, unparse

Keys: TypeAlias = dict[str, "Keys | None"]
"""The keys of a mapping; None for a value that may have any keys."""

_KEY = pattern(r"( *)([\"']?)([A-Za-z_][\w.-]*)\2:(?:\s+(.*))?")
_NO_VALUE = pattern(r"(?:#.*)?")
_DEFAULT = pattern(r"\s*-\s+(?:(?:override|optional)\s+)*([\w/.-]+)(?:\s*:\s*([^#]*))?(?:\s+#.*)?")
_ELSEWHERE = pattern(r"@package|@_")
"""Text of files whose keys are in another place than their names say."""
_MORE_FOLDERS = pattern(r"\bsearchpath\b")
_STORED = pattern(r"ConfigStore|hydra_zen|hydra-zen|SearchPath|sys\.argv")
"""Text of programs that add keys, or change their arguments."""
_ABOVE = pattern(r"\.parent\b|\bdirname\b")
_ENDINGS = (".yaml", ".yml")
_DEEPEST = 8
_MOST_KEPT = 32
"""Configurations to keep, because a job often starts the same program several times."""


@frozen
class Config:
    path: str
    """The file that the program names."""
    keys: Keys
    elsewhere: frozenset[str]
    """The groups, from which the command line can choose, that have keys in another place."""

    def lacks(self, key: str) -> bool:
        """Tell whether no file has a key such as `train.lr`."""
        within: Keys | None = self.keys
        for part in key.split("."):
            if within is None:
                return False
            if part not in within:
                return True
            within = within[part]
        return False

    def all_keys(self) -> list[str]:
        return _flat(self.keys)


@lru_cache(maxsize=_MOST_KEPT)
def read_config(python: PythonScript, files: Files, name: str = "") -> Config | None:
    """Return the configuration of a program; None if it has none, or if its keys are not certain.

    Args:
        python: the program.
        files: the file system.
        name: the file that the command line chooses; empty for that of the program.
    """
    call = _main_call(python)
    root, repository = files.root(python.path), files.repository(python.path)
    if call is None or root is None or repository is None:
        return None
    if _STORED.search(python.text) or _STORED.search(python.neighbours):
        return None
    folder = _folder(keyword(call, "config_path", 0))
    chosen = name or constant(keyword(call, "config_name", 1))
    if not folder or not isinstance(chosen, str):
        return None
    below = os.path.dirname(os.path.relpath(python.path, root.path))  # noqa: PTH120
    place = os.path.normpath(os.path.join(below, folder))  # noqa: PTH118
    beside = (one for one in repository.paths if one.startswith(f"{place}/"))
    inside = {one.removeprefix(f"{place}/"): one for one in beside}
    read = {one: _read(files, root, at) for one, at in inside.items() if one.endswith(_ENDINGS)}
    if any(text is None or _MORE_FOLDERS.search(text) for text in read.values()):
        return None
    texts = {one.rpartition(".")[0]: text or "" for one, text in read.items()}
    chosen = chosen.removesuffix(".yaml")
    keys = _Reader(texts).primary(chosen)
    if keys is None:
        return None
    return Config(
        path=f"{place}/{chosen}.yaml",
        keys=keys,
        elsewhere=frozenset(
            one.partition("/")[0] for one in texts if _ELSEWHERE.search(texts[one])
        ),
    )


def _folder(given: ast.expr | None) -> str:
    """Return the folder of the configuration, relative to the program; empty if not certain."""
    text = unparse(given) if given is not None else ""
    names = [n.value for n in ast.walk(given) if isinstance(n, ast.Constant)] if given else []
    if len(names) != 1 or not isinstance(names[0], str) or "://" in names[0]:
        return ""
    if isinstance(given, ast.Constant):
        return names[0]
    above = len(_ABOVE.findall(text)) - 1
    return "../" * above + names[0] if "__file__" in text and above >= 0 else ""


def _read(files: Files, root: Root, path: str) -> str | None:
    return files.read(os.path.normpath(os.path.join(root.path, path)))  # noqa: PTH118


def _main_call(python: PythonScript) -> ast.Call | None:
    """Return the only `hydra.main(…)` of a program."""
    calls = [
        call
        for function in python.nodes
        if isinstance(function, ast.FunctionDef)
        for call in function.decorator_list
        if isinstance(call, ast.Call) and last_name(call.func) == "main"
    ]
    return calls[0] if len(calls) == 1 and "hydra" in python.text else None


class _Reader:
    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = texts
        """By path in the folder of the configuration, without the ending."""

    def primary(self, name: str, depth: int = 0) -> Keys | None:
        """Return the keys of a file and of what its list of defaults adds."""
        text = self._texts.get(name, "")
        keys, defaults = read_keys(text), _defaults(text)
        if not text or keys is None or defaults is None or depth > _DEEPEST or "/" in name:
            return None
        if _ELSEWHERE.search(text) or any(
            self._is_elsewhere(group.lstrip("/")) for group, _ in defaults
        ):
            return None
        for group, option in ((name.lstrip("/"), option) for name, option in defaults):
            if option and not group.startswith("hydra/"):
                _put(keys, group.split("/"), self._group(group))
            elif not option and group != "_self_":
                added = self.primary(group, depth + 1)
                if added is None:
                    return None
                keys = _joined(keys, added)
        return keys

    def _is_elsewhere(self, group: str) -> bool:
        return any(
            _ELSEWHERE.search(text)
            for name, text in self._texts.items()
            if name.rpartition("/")[0] == group
        )

    def _group(self, group: str) -> Keys | None:
        """Return the keys of all files of a group; None if they may be those of groups in it."""
        within = {name: t for name, t in self._texts.items() if name.startswith(f"{group}/")}
        if any("/" in name.removeprefix(f"{group}/") for name in within):
            return None
        found: Keys = {}
        for text in within.values():
            own, defaults = read_keys(text), _defaults(text)
            # Other groups among the defaults of a file are below its own.
            if own is None or defaults is None or any(o or "/" in name for name, o in defaults):
                return None
            found = _joined(found, own)
        return found or None


def _defaults(text: str) -> list[tuple[str, str]] | None:
    """Return the list of defaults: groups with their options, and files with an empty one.

    None if it has another form.
    """
    begin = re.search(r"(?m)^[\"']?defaults\b(:[ \t]*(?:#[^\n]*)?\n)?", text)
    if begin and not begin[1]:
        return None
    found = []
    for line in text[begin.end() :].split("\n") if begin else ():
        if match := _DEFAULT.fullmatch(line):
            found.append((match[1], (match[2] or "").strip()))
        elif line.strip().startswith("-"):
            return None
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return found


def read_keys(text: str) -> Keys | None:
    """Return the keys of a YAML file; None if it has a form other than plain nested keys."""
    keys: Keys = {}
    within: list[tuple[int, Keys]] = [(-1, keys)]
    last, leaf = "", -1  # a key, and its indentation if the next lines are part of its value
    for line in text.split("\n"):
        indent, bare = len(line) - len(line.lstrip(" ")), line.strip()
        if not bare or bare.startswith("#") or bare == "---" or (leaf >= 0 and indent > leaf):
            continue
        if bare == "-" or bare.startswith("- "):
            if not last:
                return None
            if leaf < 0:  # the first item
                leaf, _ = within.pop()
                within[-1][1][last] = None
            continue
        match = _KEY.fullmatch(line)
        if match is None:
            return None
        while within[-1][0] >= indent:
            within.pop()
        last, inner = match[3], Keys()
        if _NO_VALUE.fullmatch((match[4] or "").strip()):
            within[-1][1][last] = inner
            within.append((indent, inner))
            leaf = -1
        else:
            within[-1][1][last] = None
            leaf = indent
    _open_empty(keys)
    return keys


def _open_empty(keys: Keys) -> None:
    """Let keys without a value have any: they are null, or `???`."""
    for name, inner in keys.items():
        if inner:
            _open_empty(inner)
        else:
            keys[name] = None


def _put(keys: Keys, path: list[str], inner: Keys | None) -> None:
    for name in path[:-1]:
        deeper = keys.setdefault(name, {})
        if deeper is None:
            return
        keys = deeper
    before = keys.get(path[-1], {})
    keys[path[-1]] = None if before is None or inner is None else _joined(before, inner)


def _joined(one: Keys, other: Keys) -> Keys:
    found: Keys = dict(one)
    for name, inner in other.items():
        before = found.get(name, {})
        found[name] = None if before is None or inner is None else _joined(before, inner)
    return found


def _flat(keys: Keys, above: str = "") -> list[str]:
    found = []
    for name, inner in keys.items():
        found.append(f"{above}{name}")
        found += _flat(inner, f"{above}{name}.") if inner else []
    return found
