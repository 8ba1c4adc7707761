"""Finds and reads the project file: echelon.toml, or [tool.echelon] in pyproject.toml.

A request can contain commands (`prologue`, `notify`, `python`). Unless the user named the file, it
is therefore parsed only if no other user could have written it.
"""

import os
import re
import shlex
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from echelon.core.ownership import current_user, find_intruder
from echelon.core.records import read_bytes
from echelon.errors import NotPermittedError, UsageError
from echelon.run.directory import FETCHED
from echelon.spec.merging import Layer

PROJECT = "echelon.toml"
PYPROJECT = "pyproject.toml"
_HEADER = re.compile(rb"^\s*\[\s*tool\s*\.\s*echelon\b", re.MULTILINE)
_LOOK = 1 << 20
"""How many bytes of another user's pyproject.toml are searched for our table."""


def read_project(
    folder: Path, environ: Mapping[str, str], warn: Callable[[str], None], *, named: Path | None
) -> Layer:
    """Return the values of the given file, or else of the nearest trusted one.

    Args:
        folder: the working directory, where the search starts.
        environ: has HOME, where the search ends.
        warn: receives one line for each ignored file in a parent directory.
        named: the file of --config, which may belong to any user.

    Raises:
        NotPermittedError: another user could replace the file in the working directory.
        UsageError: a file is not valid.
    """
    if named is not None:
        return _read_named(folder / named)
    for place in list_places(folder, environ.get("HOME", "")):
        for path in (place / PROJECT, place / PYPROJECT):
            why = _find_objection(path)
            if why and place == folder:
                raise NotPermittedError(f"{path} is not trusted: {why}", hint=_suggest(path, why))
            if why:
                warn(f"warning: ignored {path}: {why}; to use it: --config {_quote(path)}")
                continue
            try:
                values = _read_trusted(path)
            except PermissionError:
                if path == folder / PROJECT:
                    raise
                warn(f"warning: ignored {path}: permission denied")
                continue
            if values is not None:
                return Layer(source=str(path), values=values)
    return Layer(source=PROJECT, values={})


def read_own(environ: Mapping[str, str]) -> Layer:
    """Return the user's own settings, which apply to all projects.

    Raises:
        NotPermittedError: another user could replace the file.
        UsageError: the file is not valid.
    """
    home = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "/"), ".config")
    path = Path(home, "echelon", "config.toml").absolute()
    if why := _find_objection(path):
        raise NotPermittedError(
            f"{path} is not trusted: {why}",
            hint=_suggest_chmod(path, why)
            or "move it to a directory that only you can write to, and set XDG_CONFIG_HOME to it",
        )
    return Layer(source=str(path), values=_read_trusted(path) or {})


def has_project_table(folder: Path) -> bool:
    """Tell whether a directory has a trusted pyproject.toml with a table [tool.echelon]."""
    return _read_trusted(folder / PYPROJECT) is not None


def list_places(folder: Path, home: str) -> list[Path]:
    """Return the directories to search, nearest first.

    The last is the repository's root, the home directory or a mount point, whichever comes first.
    """
    places = [folder]
    while not _ends_search(places[-1], home):
        places.append(places[-1].parent)
    return places


def _ends_search(place: Path, home: str) -> bool:
    if place == place.parent or os.path.lexists(place / ".git"):
        return True
    try:
        if place.stat().st_dev != place.parent.stat().st_dev:
            return True
    except OSError:  # the parent directory is not accessible
        return True
    try:
        return bool(home) and place.samefile(home)
    except OSError:  # the home directory does not exist
        return False


# --- trust ------------------------------------------------------------------------------------


def _find_objection(path: Path) -> str:
    """Return why an existing file is not trusted; empty if it is, or has no table for us."""
    if not os.path.lexists(path) or not (why := _explain_distrust(path)):
        return ""
    # Most files named pyproject.toml have no table for us, so there is nothing to warn about.
    return why if path.name != PYPROJECT or _has_header(path) else ""


def _explain_distrust(path: Path) -> str:
    """Return why another user may have written a file; empty if only this user could."""
    if any((folder / FETCHED).exists() for folder in path.parents):
        return "it was fetched from another host"
    return find_intruder(path)


def _has_header(path: Path) -> bool:
    """Tell whether a file has our table, without parsing it or blocking on a special file."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return False
    with os.fdopen(handle, "rb") as file:
        regular = stat.S_ISREG(os.fstat(handle).st_mode)
        return regular and bool(_HEADER.search(file.read(_LOOK)))


def _suggest(path: Path, why: str) -> str:
    fix = _suggest_chmod(path, why)
    return f"{fix}{', or ' if fix else ''}if you trust its content, add: --config {path.name}"


def _suggest_chmod(path: Path, why: str) -> str:
    """Return the chmod command that makes a file trusted; empty if one is not enough."""
    own = current_user().uid
    for step in (path, *path.parents):
        if why.endswith(f" can write to {step}") and step.stat().st_uid == own:
            return f"chmod go-w {_quote(step)}"
    return ""


def _quote(path: Path) -> str:
    return shlex.quote(str(path))


# --- reading ----------------------------------------------------------------------------------


def _read_trusted(path: Path) -> Mapping[str, Any] | None:
    """Return a file's values; None if it has no table for us, or is not trusted."""
    return _read_values(path) if path.is_file() and not _explain_distrust(path) else None


def _read_named(path: Path) -> Layer:
    if path == Path(os.devnull):  # means: no file
        return Layer(source=str(path), values={})
    hint = "pass an echelon.toml, or a pyproject.toml with a table [tool.echelon]"
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise UsageError(f"--config {path} {what}", hint=hint)
    values = _read_values(path)
    if values is None:
        raise UsageError(f"--config {path} has no table [tool.echelon]", hint=hint)
    return Layer(source=str(path), values=values)


def _read_values(path: Path) -> Mapping[str, Any] | None:
    """Return a file's values; None for a pyproject.toml without our table."""
    if path.name == PYPROJECT and b"echelon" not in read_bytes(path):
        return None  # parsing takes longer
    values = _read_toml(path)
    if path.name != PYPROJECT:
        return values
    tool = dict(take_table(values, "tool"))
    return take_table(tool, "echelon", header="tool.echelon") if "echelon" in tool else None


def take_table(values: dict[str, Any], name: str, *, header: str = "") -> Mapping[str, Any]:
    """Remove a table from a file's values and return it."""
    table = values.pop(name, {})
    if not isinstance(table, Mapping):
        raise UsageError(
            f"'{name}' is not a table",
            hint=f"write it as [{header or f'{name}.NAME'}], with its keys below",
        )
    return table


def _read_toml(path: Path) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415

    try:
        return tomllib.loads(read_bytes(path).decode())
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is not valid UTF-8: byte {error.start + 1} is {error.object[error.start]:#x}",
            hint="write a new one: echelon init --force"
            if path.name == PROJECT
            else f"to convert it from Latin-1: iconv -f latin1 -t utf-8 {path}",
        ) from error
    except ValueError as error:
        raise UsageError(
            f"{path} is not valid TOML: {error}",
            hint='correct that line: KEY = 4, or KEY = "text" (see https://toml.io)',
        ) from error
    except RecursionError as error:
        raise UsageError(
            f"{path} is not valid: its values are nested too deeply",
            hint="no key needs more than a list inside a table",
        ) from error
