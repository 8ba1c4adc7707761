"""Decides what to do with a mirror: which files it lacks, which to remove, which must not be lost.

An identity says what is at a path: the digest of a file, or the target of a link.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from echelon.client.remote.project_description import Project
from echelon.core.files import Stamp, folders
from echelon.core.frozen import frozen

FOLDER = "folder"
"""The identity of a folder."""


class Found(NamedTuple):
    """What is at a path on the host."""

    identity: str = ""
    """Empty if there is nothing."""
    executable: bool = False
    stamp: Stamp | None = None
    """Of a file or link."""
    inside: tuple[str, ...] = ()
    """Of a folder: the paths of all files in it."""
    blocker: str = ""
    """The file or link that is in the place of a folder around this path."""


@frozen
class Plan:
    """What to do with a mirror. If `changed` or `foreign` is not empty: nothing."""

    files: tuple[str, ...]
    """To be sent and written."""
    links: tuple[str, ...]
    """To be created."""
    folders: tuple[str, ...]
    """Folders to remove first, because a file or link takes their place."""
    first: tuple[str, ...]
    """Files and links to remove first: a folder takes their place, or theirs is taken."""
    last: tuple[str, ...]
    """Files and links that are not in the project any more, to remove at the end."""
    kept: tuple[str, ...]
    """The same, but somebody changed them on the host."""
    changed: tuple[str, ...]
    """In the project, but somebody changed them on the host."""
    foreign: tuple[str, ...]
    """In the project, but something else is there that Echelon did not write."""


def identify_file(digest: str) -> str:
    return f"file {digest}"


def identify_link(target: str) -> str:
    return f"link to {target}"


def identify(project: Project) -> dict[str, str]:
    """Return the identities of a project's files and links. Pure."""
    files = {path: identify_file(file.digest) for path, file in project.files.items()}
    return files | {path: identify_link(target) for path, target in project.links.items()}


def make_plan(
    project: Project, ours: Mapping[str, Collection[str]], found: Mapping[str, Found]
) -> Plan:
    """Decide what to do. Pure.

    Args:
        project: what the mirror shall be.
        ours: by path, the identities of what Echelon wrote there.
        found: what is there now, for all paths of both.
    """
    wanted = identify(project)
    removed = {path for path in ours if path not in wanted and found[path].identity in ours[path]}
    kept = [
        path
        for path in ours.keys() - wanted.keys() - removed
        if found[path].identity not in ("", FOLDER)
    ]
    write: list[str] = []
    changed: list[str] = []
    foreign: list[str] = []
    for path, identity in wanted.items():
        there, known = found[path], ours.get(path, ())
        file = project.files.get(path)
        if there.identity == identity and (not file or file.executable == there.executable):
            continue
        if _is_free(there, removed) or there.identity == identity or there.identity in known:
            write.append(path)
        else:
            (changed if known else foreign).append(there.blocker or path)
    holders = {folder for path in wanted for folder in folders(path)}
    first = {
        path for path in removed if path in holders or not wanted.keys().isdisjoint(folders(path))
    }
    return Plan(
        files=tuple(path for path in write if path in project.files),
        links=tuple(path for path in write if path in project.links),
        folders=tuple(path for path in write if found[path].identity == FOLDER),
        first=tuple(sorted(first)),
        last=tuple(sorted(removed - first)),
        kept=tuple(sorted(kept)),
        changed=tuple(dict.fromkeys(changed)),
        foreign=tuple(dict.fromkeys(foreign)),
    )


def _is_free(there: Found, removed: Collection[str]) -> bool:
    """Tell whether nothing is at a path, once some others are removed."""
    if there.blocker:
        return there.blocker in removed
    if there.identity == FOLDER:
        return all(path in removed for path in there.inside)
    return not there.identity
