"""The paths of a git repository, and whether another path exists in it. Pure.

A job can start in any directory of the repository or above it, so a path that a script names is
compared with the ends of the repository's paths.
"""

import difflib
import os
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cached_property

from echelon.core.frozen import frozen

SKIPPED = frozenset({".git", "node_modules", "__pycache__", "site-packages", "wandb"})
"""Directories that are not listed."""
_ALIKE = 0.8
"""How similar a name has to be to be suggested."""
_LONG = 8
"""Length of names that are hardly alike by chance."""
_MOST_EDITS = 2
"""Characters in which a name may differ, apart from dashes and underscores."""

_COMMON = frozenset(
    {
        *("project", "projects", "code", "src", "work", "home", "repos", "research", "thesis"),
        *("scratch", "scripts", "examples", "experiments"),
    }
)
"""Names that directories of other projects have as well."""

_SHORTEST = 4
"""Minimum length of a name that is a part of another."""


@frozen
class Repository:
    name: str
    """The name of its directory."""
    paths: frozenset[str]
    """Relative to its directory. Those of folders end in a slash, but not those of links."""
    unlisted: frozenset[str] = SKIPPED
    """Patterns of what may exist although it is not listed, such as what git ignores.

    Those that begin with a slash are paths from the directory of the repository, others are names.
    """

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of all files and folders; those of folders end in a slash."""
        return frozenset(map(_name, self.paths))

    @property
    def has_common_name(self) -> bool:
        """Tell whether a directory of this name may be another one."""
        return self.name.lower() in _COMMON

    def resembles(self, name: str) -> bool:
        """Tell whether the name of a directory is a common one, or has a word of its name."""
        words, own = (set(_plain(one).split("-")) for one in (name, self.name))
        return name.lower() in _COMMON or bool(words & own)

    def is_misspelt(self, name: str) -> bool:
        """Tell whether a long name differs from that of the repository by a slip."""
        if min(len(name), len(self.name)) < _LONG or f"{name}/" in self.names:
            return False
        return _letters(name) != _letters(self.name) and _may_be_typo(name, self.name)

    def is_other_name(self, name: str) -> bool:
        """Tell whether the directory of a clone of the repository may have this name."""
        longer, shorter = sorted((self.name.lower(), name.lower()), key=len, reverse=True)
        if self._is_own(name):
            return True
        if len(shorter) >= _SHORTEST and re.match(rf"{re.escape(shorter)}[-_.]", longer):
            return True
        modules = (f"{name}/__init__.py", f"src/{name}/__init__.py")
        return any(module in self.paths for module in modules)

    def inside(self, path: str) -> list[str]:
        """Return the rest of a path after the name of the repository, for each time it occurs."""
        parts = path.rstrip("/").split("/")
        return ["/".join(parts[n:]) for n, part in enumerate(parts, start=1) if self._is_own(part)]

    def _is_own(self, name: str) -> bool:
        """Tell whether a name is that of the repository, perhaps with other separators."""
        own = _plain(name) == _plain(self.name) and f"{name}/" not in self.names
        return own or name == self.name

    def lacks(self, path: str, *, folder: bool = False) -> bool:
        """Tell whether a relative path does not exist, whichever the current directory is."""
        parts, names = _parts(path), self.names
        if not parts or self.may_hide(path):
            return False
        slash = "/" if folder else ""
        end = "/".join(parts) + slash
        if any(one == end or one.endswith(f"/{end}") for one in self.paths):
            return False
        if f"{parts[0]}/" in names:
            outside = [number for number, part in enumerate(parts, start=1) if part == self.name]
        else:  # it may be the name of the repository's directory
            outside = list(range(1, len(parts)))
        inside = ("/".join(parts[start:]) + slash for start in outside)
        return not any(one in self.paths or one == "/" for one in inside)

    def folders_with(self, path: str) -> list[str]:
        """Return the folders from which a relative path leads to a file, the root as ''.

        Empty if there may be others.
        """
        parts = _parts(path)
        end = "/".join(parts)
        if not parts or self.may_hide(path):
            return []
        found = (one for one in self.paths if one == end or one.endswith(f"/{end}"))
        return sorted(one.removesuffix(end).rstrip("/") for one in found)

    def may_hide(self, path: str) -> bool:
        """Tell whether a path may exist unlisted.

        Git ignores it, it is in a submodule, or a link to a folder is on its way.
        """
        parts, names = _parts(path), self.names
        if any(part in names for part in parts[:-1]):
            return True
        return any(self._hides(pattern, parts, names) for pattern in self.unlisted if parts)

    def _hides(self, pattern: str, parts: list[str], names: frozenset[str]) -> bool:
        """Tell whether a pattern matches a path, or a folder of it."""
        if not pattern.startswith("/"):
            return any(fnmatchcase(part, pattern) for part in parts)
        whole = pattern.strip("/").split("/")
        if any(_begins(parts, whole[number:]) for number in range(len(whole))):
            return True
        above = f"{parts[0]}/" not in names  # it may be the directory of the repository
        return above and any(_begins(parts[number:], whole) for number in range(1, len(parts)))

    def nearest(self, path: str, *, folder: bool = False) -> str:
        """Return the path that is probably meant; empty if none is similar.

        It has the same name in another folder, or a name in the same folder that may be misspelled.
        """
        parts = _parts(path)
        slash = "/" if folder else ""
        kind = [one for one in self.paths if one.endswith("/") == folder]
        same = [one for one in kind if _name(one) == parts[-1] + slash]
        if not same:
            above = "/".join(parts[:-1])
            end = os.path.splitext(parts[-1])[1]  # noqa: PTH122
            beside = (one for one in kind if _is_in(one.removesuffix("/"), above))
            named = {_name(one): one for one in sorted(beside) if one.endswith(end + slash)}
            near = difflib.get_close_matches(parts[-1] + slash, named, n=1, cutoff=_ALIKE)
            return named[near[0]] if near and _may_be_typo(near[0], parts[-1] + slash) else ""
        return max(sorted(same), key=lambda one: likeness(one, "/".join(parts)))


def _parts(path: str) -> list[str]:
    """Return the components of a path, without those that lead out of the current directory."""
    return [part for part in os.path.normpath(path).split("/") if part not in ("", ".", "..")]


def _name(path: str) -> str:
    return path[path.rstrip("/").rfind("/") + 1 :]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]", "-", name.lower())


def _letters(name: str) -> str:
    return re.sub(r"[\W\d_]", "", name.lower())


def _is_in(path: str, folder: str) -> bool:
    above = path.rpartition("/")[0]
    return above == folder or above.endswith(f"/{folder}")


def likeness(one: str, other: str) -> float:
    """Return how similar two paths are, from 0 to 1."""
    return difflib.SequenceMatcher(None, one, other).ratio()


def _may_be_typo(one: str, other: str) -> bool:
    """Tell whether two names differ in a few characters only."""
    first, second = (name.lower().replace("-", "_") for name in (one, other))
    changes = difflib.SequenceMatcher(None, first, second).get_opcodes()
    edits = (max(a1 - a0, b1 - b0) for kind, a0, a1, b0, b1 in changes if kind != "equal")
    return sum(edits) <= _MOST_EDITS


def _begins(parts: list[str], patterns: list[str]) -> bool:
    return len(parts) >= len(patterns) and all(map(fnmatchcase, parts, patterns))


def read_ignored(text: str, folder: str = "") -> Iterable[str]:
    """Yield the patterns of a .gitignore; some match more than git does.

    Args:
        text: its contents.
        folder: its directory, with a slash at the end.
    """
    for line in text.split("\n"):
        pattern = line.strip().rstrip("/")
        if not pattern or pattern.startswith(("#", "!")):
            continue
        name = pattern
        while name.endswith(("/*", "/**")):
            name = name.rpartition("/")[0]
        if name in ("", "*", "**"):
            yield f"/{folder}".rstrip("/") or "*"
        elif "**" in name:
            yield name.rpartition("/")[2]
        else:
            yield f"/{folder}{name.lstrip('/')}" if "/" in pattern else name


def read_submodules(text: str) -> Iterable[str]:
    """Yield the folders in .gitmodules as such patterns."""
    for line in text.split("\n"):
        key, equals, value = line.partition("=")
        if equals and key.strip() == "path":
            yield f"/{value.strip()}"
