"""The code of a project as a value: the digest of each file, the links and the commit.

A laptop sends this to a host before any content, and the host records it beside the files.
"""

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any, NamedTuple

from echelon.core.codec import decode, encode
from echelon.core.files import check_paths
from echelon.core.frozen import frozen
from echelon.core.records import to_count
from echelon.errors import NotPermittedError, UnavailableError

OWN_FOLDER = ".echelon"
"""The folder of a workdir with Echelon's lock and record."""
RUNS = "runs"
"""The folder of a workdir with the runs."""
RESERVED = (OWN_FOLDER, RUNS)
LINK = "-> "
"""What a link's identity begins with."""
MOST_FILES = 50_000
MOST_BYTES = 200 * 10**6

_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOST_TARGET = 4095
"""Length of the longest target of a link."""


@frozen
class Commit:
    """What git knows about a project."""

    commit: str = ""
    branch: str = ""
    dirty: bool = False


class ProjectFile(NamedTuple):
    """A file of a project."""

    digest: str
    """SHA-256."""
    size: int
    executable: bool


@frozen
class Project:
    """The code of a project, by path."""

    files: Mapping[str, ProjectFile] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    """Targets of links, by path; relative if the target is in the project."""
    commit: Commit = field(default_factory=Commit)
    origin: str = ""
    """The machine from which the project was sent, and its directory there: `HOST:PATH`."""

    def identities(self) -> dict[str, str]:
        """Return by path the digest of a file, or `LINK` and the target of a link."""
        files = {path: file.digest for path, file in self.files.items()}
        return files | {path: f"{LINK}{target}" for path, target in self.links.items()}


def render_project(project: Project) -> dict[str, Any]:
    """Return a project as a record. Pure."""
    return {
        "files": dict(project.files),
        "links": dict(project.links),
        "commit": encode(project.commit),
        "origin": project.origin,
    }


def parse_project(record: Mapping[str, Any]) -> Project:
    """Return the project in a record. Pure.

    Raises:
        UnavailableError: the record does not describe a project.
    """
    files, links = record.get("files"), record.get("links")
    if not isinstance(files, dict) or not isinstance(links, dict):
        raise _refuse("no files or links")
    return Project(
        files={path: _parse_file(path, file) for path, file in files.items()},
        links={path: _parse_target(path, target) for path, target in links.items()},
        commit=decode(Commit, commit if isinstance(commit := record.get("commit"), dict) else {}),
        origin=str(record.get("origin", ""))[:_MOST_TARGET],
    )


def _parse_file(path: str, file: Any) -> ProjectFile:
    digest, size, executable = file if isinstance(file, list) and len(file) == 3 else (0, 0, 0)
    count = to_count(size)
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest) or count is None:
        raise _refuse(f"damaged entry for the file '{path}'")
    return ProjectFile(digest, count, executable is True)


def _parse_target(path: str, target: Any) -> str:
    if not isinstance(target, str) or not 0 < len(target) <= _MOST_TARGET or "\0" in target:
        raise _refuse(f"damaged entry for the link '{path}'")
    return target


def check_project(project: Project) -> None:
    """Check a project that another machine sent. Pure.

    Raises:
        NotPermittedError: a path leads out of the project, or into a folder that Echelon uses.
        UnavailableError: the project is too large.
    """
    paths = [*project.files, *project.links]
    check_paths(paths)
    for path in paths:
        if path.partition("/")[0] in RESERVED:
            raise NotPermittedError(
                f"refused the path '{path}': Echelon uses that folder itself",
                hint="use the same version of Echelon on both ends",
            )
    size = sum(file.size for file in project.files.values())
    if len(paths) > MOST_FILES or size > MOST_BYTES:
        raise _refuse(f"{len(paths):,} files with {size:,} bytes are too many")


def _refuse(what: str) -> UnavailableError:
    return UnavailableError(
        f"cannot read the description of the project: {what}",
        hint="use the same version of Echelon on both ends",
    )
