"""Lists the files of a project: its code, and the entries beside the code.

With git, the code consists of the files that `git add` would add, also in submodules and nested
repositories. Without git, it is the script's folder without caches, environments, data and runs. In
a workdir, it is the project that was sent (`client/remote/workdir.py`). `.echelonignore` in the
project's directory excludes more files, in the syntax of .gitignore but without `!`.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from echelon.client.code.project import MOST_FILES, OWN_FOLDER, Commit
from echelon.client.code.secret_files import has_secret_name, is_private_key
from echelon.client.code.workdir_record import WorkdirRecord, find_record, is_changed
from echelon.core.files import Entry, folders, walk
from echelon.core.frozen import frozen
from echelon.core.git import list_filters, run_git
from echelon.core.records import read_bytes
from echelon.core.shell import Shell
from echelon.errors import MissingProgramError, UsageError
from echelon.run.directory import FETCHED

IGNORE = ".echelonignore"

_STAGED = re.compile(r"([0-7]{6}) [0-9a-f]{40,64} [0-3]\t")
"""The text before the path of a tracked file in the output of git."""
_SUBMODULE = "160000"
_CACHES = frozenset(
    {
        OWN_FOLDER,
        *("__pycache__", ".git", ".hg", ".svn", ".cache", ".ipynb_checkpoints", ".tox", ".nox"),
        *(".mypy_cache", ".pytest_cache", ".ruff_cache", "node_modules", ".venv", "venv"),
    }
)
"""Folders that are neither copied nor linked."""
_ENVIRONMENT = ("pyvenv.cfg", "conda-meta")
"""Entries of a folder that is a Python environment."""
_RUN = frozenset({"job.sbatch", "spec.toml"})
"""Files that every run directory has."""
_DATA = frozenset(
    {
        *("data", "dataset", "datasets", "checkpoints", "ckpt", "logs", "outputs", "results"),
        *("runs", "wandb", "mlruns", "lightning_logs", "tensorboard"),
    }
)
"""Folders that are data unless they contain Python code; only without git."""


@frozen
class Listing:
    """The files of a project; all paths are relative to its directory."""

    code: tuple[str, ...]
    """Files and links."""
    beside: tuple[str, ...]
    """Files and folders that are not part of the code; these folders contain no code."""


class Kind(StrEnum):
    """How the code of a project is known."""

    WORKDIR = "workdir"
    """A copy that was sent from another machine; its record lists the files."""
    GIT = "git"
    FOLDER = "folder"


def find_root(folder: Path, script: Path | None, shell: Shell) -> tuple[Path, Kind]:
    """Return a project's directory, and what kind of project it is.

    A workdir takes precedence over a repository, unless the repository is inside the workdir.

    Args:
        folder: the working directory.
        script: the training script; None for a module, which Python finds in `folder`.
        shell: runs git.
    """
    place = script.parent if script else folder
    if workdir := find_workdir(place.resolve()):
        return workdir, Kind.WORKDIR
    for start in (folder, place):
        top = _find_repository(start, shell)
        if top is not None and place.resolve().is_relative_to(top):
            return top, Kind.GIT
    return place.resolve(), Kind.FOLDER


def find_kind(root: Path) -> Kind:
    """Return what kind of project a project's directory is."""
    if find_record(root):
        return Kind.WORKDIR
    return Kind.GIT if (root / ".git").exists() else Kind.FOLDER


def find_workdir(folder: Path) -> Path | None:
    """Return the workdir that a folder is in; None if there is none."""
    kinds = ((path, find_kind(path)) for path in (folder, *folder.parents))
    found = next((one for one in kinds if one[1] != Kind.FOLDER), None)
    return found[0] if found and found[1] == Kind.WORKDIR else None


def _find_repository(folder: Path, shell: Shell) -> Path | None:
    folder = folder.resolve()
    # The output of git is not used: a repository's settings can name any folder (core.worktree).
    top = next((path for path in (folder, *folder.parents) if (path / ".git").exists()), None)
    if top is None:
        return None
    try:
        done = run_git(folder, ["rev-parse", "--show-toplevel"], shell)
    except MissingProgramError:
        return None
    if done.code == 0:
        return top
    if "not a git repository" in done.stderr or not done.stderr:
        return None
    raise UsageError(
        f"git cannot read the repository of {folder}: {done.stderr.strip().splitlines()[0]}",
        hint="repair it, or execute the files as they are then: --no-snapshot",
    )


def list_project(root: Path, shell: Shell, *, kind: Kind, runs: Path) -> Listing:
    """List the files of a project.

    Args:
        root: its directory.
        shell: runs git.
        kind: what kind of project it is.
        runs: the directory of runs, which may be inside the project.
    """
    if kind == Kind.WORKDIR:
        listed = _list_workdir(root)
    elif kind == Kind.GIT:
        listed = _list_repository(root, shell, runs=runs)
    else:
        listed = _list_folder(root, runs=runs)
    ignores = read_ignores(root)
    code = [
        path
        for path in listed.code
        if not any(one.fullmatch(path) for one in ignores)
        and not has_secret_name(path)
        and not is_private_key(root / path)
    ]
    excluded = set(listed.code) - set(code)
    in_runs = find_runs(code)
    code = [path for path in code if not path.startswith(in_runs)]
    beside = find_topmost(code, [*listed.beside, *sorted(excluded)])
    return Listing(code=tuple(code), beside=tuple(_linkable(root, beside, runs)))


def _linkable(root: Path, paths: Iterable[str], runs: Path) -> Iterator[str]:
    """Yield paths except caches, and folders in or around the runs.

    A program that follows links would never end in a copy that links to a folder around it.
    """
    for path in paths:
        names = path.split("/")
        inside = runs.is_relative_to(root / path) or (root / path).is_relative_to(runs)
        if not inside and _CACHES.isdisjoint(names):
            yield path


def find_topmost(code: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return `others`, each replaced by the topmost folder around it without code. Pure."""
    holders = {folder for path in code for folder in folders(path)}
    found: dict[str, None] = {}
    for path in others:
        outside = (folder for folder in folders(path) if folder not in holders)
        found[next(outside, path.rstrip("/"))] = None
    return list(found)


def find_runs(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the folders that are runs, each with a slash at its end. Pure."""
    marks: dict[str, set[str]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        if name in _RUN or name == FETCHED:
            marks.setdefault(folder, set()).add(name)
    return tuple(f"{folder}/" for folder, names in marks.items() if folder and _is_run(names))


def _is_run(names: set[str]) -> bool:
    """Tell whether a folder with these entries is a run, or was fetched from another host."""
    return names >= _RUN or FETCHED in names


# --- a workdir --------------------------------------------------------------------------------


def _list_workdir(root: Path) -> Listing:
    project = (find_record(root) or WorkdirRecord()).project
    code = project.identities()
    holders = {folder for path in code for folder in folders(path)}
    found = (entry.path for entry in walk(root, enter=lambda folder: folder.path in holders))
    beside = sorted(path for path in found if path not in code and path not in holders)
    return Listing(code=tuple(code), beside=tuple(beside))


# --- with git ---------------------------------------------------------------------------------


def _list_repository(root: Path, shell: Shell, *, runs: Path) -> Listing:
    listing = ["ls-files", "-z", "--exclude-standard"]
    if runs.is_relative_to(root) and runs != root:
        listing.append(f"--exclude=/{_escape(str(runs.relative_to(root)))}/")
    code: dict[str, None] = {}
    nested: list[str] = []
    for entry in _run_git(root, shell, [*listing, "--cached", "--stage", "--others"]):
        staged = _STAGED.match(entry)
        path = entry[staged.end() :] if staged else entry.rstrip("/")
        if staged[1] == _SUBMODULE if staged else entry.endswith("/"):
            nested.append(path)
        else:
            code[path] = None
    beside = _run_git(root, shell, [*listing, "--others", "--ignored", "--directory"])
    in_runs = find_runs(list(code))  # repositories in runs are not part of the project
    for path in nested:
        if _is_repository(root / path) and not f"{path}/".startswith(in_runs):
            inner = _list_repository(root / path, shell, runs=runs)
            code |= dict.fromkeys(f"{path}/{one}" for one in inner.code)
            beside += [f"{path}/{one}" for one in inner.beside]
    return Listing(code=tuple(code), beside=tuple(beside))


def _escape(text: str) -> str:
    """Quote a path for a pattern of git."""
    return re.sub(r"([\\*?\[\]])", r"\\\1", text)


def _run_git(
    root: Path, shell: Shell, words: Sequence[str], settings: Sequence[str] = ()
) -> list[str]:
    done = run_git(root, words, shell, settings=settings, is_root=True)
    if done.code:
        raise UsageError(
            f"git cannot list the files of {root}: {done.stderr.strip()}",
            hint="repair the repository, or execute the files as they are then: --no-snapshot",
        )
    found = [path for path in done.stdout.split("\0") if path]
    for path in found:
        if "\N{REPLACEMENT CHARACTER}" in path and not os.path.lexists(root / path):
            raise UsageError(
                f"the name of a file in {root} is not UTF-8: {path}",
                hint="rename it, or add it to .gitignore",
            )
    return found


def read_commit(root: Path, shell: Shell, *, kind: Kind, runs: Path) -> Commit:
    """Return the commit that is checked out, and whether files differ from it.

    A workdir has the commit of the project that was sent. Without git, the commit is empty.
    """
    if kind == Kind.WORKDIR:
        record = find_record(root) or WorkdirRecord()
        commit = record.project.commit
        return replace(commit, dirty=commit.dirty or is_changed(root, record))
    if kind == Kind.FOLDER:
        return Commit()
    # Git must not examine submodules: it would execute the filters that their settings name.
    words = ["status", "--porcelain=v2", "--branch", "-z", "--no-renames"]
    words += ["--ignore-submodules=dirty", "--", "."]
    if runs.is_relative_to(root) and runs != root:
        words.append(f":(exclude,literal){runs.relative_to(root)}")
    found = parse_commit(_run_git(root, shell, words, list_filters(root, shell)))
    inner = (
        read_commit(root / path, shell, kind=kind, runs=runs)
        for path in _list_submodules(root, shell)
    )
    return replace(found, dirty=found.dirty or any(one.dirty for one in inner))


def _list_submodules(root: Path, shell: Shell) -> list[str]:
    staged = (
        _STAGED.match(entry) for entry in _run_git(root, shell, ["ls-files", "-z", "--stage"])
    )
    found = (one.string[one.end() :] for one in staged if one and one[1] == _SUBMODULE)
    return [path for path in found if _is_repository(root / path)]


def _is_repository(folder: Path) -> bool:
    """Tell whether a folder is a repository without links in its path, which may be cyclic."""
    return (folder / ".git").exists() and folder.resolve() == folder


def parse_commit(lines: Iterable[str]) -> Commit:
    """Parse the output of `git status --porcelain=v2 --branch -z`. Pure."""
    headers, dirty = {}, False
    for line in lines:
        if line.startswith("# "):
            name, _, value = line[2:].partition(" ")
            headers[name] = value
        else:
            dirty = True
    commit, branch = headers.get("branch.oid", ""), headers.get("branch.head", "")
    return Commit(
        commit="" if commit == "(initial)" else commit,
        branch="" if branch == "(detached)" else branch,
        dirty=dirty,
    )


# --- without git ------------------------------------------------------------------------------


def _list_folder(root: Path, *, runs: Path) -> Listing:
    code: list[str] = []
    beside: list[str] = []

    def enter(folder: Entry) -> bool:
        if root / folder.path != runs and not _is_beside(root / folder.path):
            return True
        beside.append(f"{folder.path}/")
        return False

    try:
        for entry in walk(root, enter=enter):
            if not entry.is_folder:
                (code if entry.is_file or entry.is_link else beside).append(entry.path)
            if len(code) > MOST_FILES:
                break
    except OSError as error:
        raise UsageError(
            f"cannot read {error.filename}: {error.strerror}",
            hint=f"exclude it: echo '/{os.path.relpath(error.filename, root)}' >> {root / IGNORE}",
        ) from error
    return Listing(code=tuple(sorted(code)), beside=tuple(sorted(beside)))


def _is_beside(folder: Path) -> bool:
    """Tell whether a folder is a cache, an environment, data or a run."""
    if folder.name in _CACHES or has_secret_name(folder.name):
        return True
    names = set(os.listdir(folder)) if os.access(folder, os.R_OK) else set()  # noqa: PTH208  names
    if not names.isdisjoint(_ENVIRONMENT) or _is_run(names):
        return True
    return folder.name in _DATA and not any(name.endswith(".py") for name in names)


# --- .echelonignore ---------------------------------------------------------------------------


def read_ignores(root: Path) -> list[re.Pattern[str]]:
    """Return the patterns in a project's `.echelonignore`.

    Raises:
        UsageError: a pattern begins with `!`.
    """
    try:
        lines = read_bytes(root / IGNORE).decode(errors="surrogateescape").splitlines()
    except OSError:
        return []
    if wrong := next((line for line in lines if line.startswith("!")), ""):
        raise UsageError(
            f"{root / IGNORE} has the line '{wrong}', but it does not support '!'",
            hint="remove the line, and make the one before it more specific",
        )
    return [parse_ignore(line) for line in lines if line.strip() and not line.startswith("#")]


def parse_ignore(line: str) -> re.Pattern[str]:
    """Return a pattern for the paths that a line excludes, as in .gitignore. Pure."""
    text = line.strip()
    anchored = "/" in text.rstrip("/")
    body = "".join(map(_translate, re.findall(r"\*\*/|/\*\*$|\*|\?|\[[^\]]+\]|.", text.strip("/"))))
    inside = "/.+" if text.endswith("/") else "(?:/.+)?"
    try:
        return re.compile(f"{'' if anchored else '(?:.+/)?'}{body}{inside}", re.DOTALL)
    except re.error as error:
        raise UsageError(
            f"'{line}' is not a pattern: {error}", hint="write * for any name"
        ) from error


def _translate(piece: str) -> str:
    known = {"**/": "(?:.+/)?", "/**": "/.+", "*": "[^/]*", "?": "[^/]"}
    if piece.startswith("[") and len(piece) > 1:
        return piece.replace("[!", "[^", 1)
    return known.get(piece) or re.escape(piece)
