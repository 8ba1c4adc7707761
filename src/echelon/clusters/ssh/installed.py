"""The folder of this version of Echelon on a login host."""

import contextlib
import hashlib
import json
import os
import sys
from pathlib import Path

from echelon import _version
from echelon.core.atomic_file import make_private, write_atomic
from echelon.core.records import find_record

FOLDER = ".local/share/echelon/hosted"
"""The folder of all versions, in the home directory there."""


def find_id(python: str, memory: Path | None = None) -> str:
    """Return the folder's name, which follows from the files to install and the Python there.

    Args:
        python: the Python that runs them there.
        memory: file that keeps the digest of the files, because finding the dependencies' files
            takes longer than most commands.
    """
    known = _read_digest(memory) if memory else compute_digest()
    digest = hashlib.sha256(f"{python} {known}".encode()).hexdigest()
    return f"{_version.__version__}-{digest[:16]}"


def compute_digest() -> str:
    """Return a digest of the names, sizes and times of the files to install.

    Reading their contents would take longer.
    """
    from echelon.clusters.ssh.files import find_files  # noqa: PLC0415

    digest = hashlib.sha256()
    for name, path in sorted(find_files().items()):
        found = path.stat()
        digest.update(f"{name} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _read_digest(memory: Path) -> str:
    installed = describe_installation()
    with contextlib.suppress(OSError, ValueError):
        known = find_record(memory)
        if known.get("installed") == installed:
            return str(known["digest"])
    digest = compute_digest()
    with contextlib.suppress(OSError):
        make_private(memory.parent)
        write_atomic(memory, json.dumps({"installed": installed, "digest": digest}), sync=False)
    return digest


def describe_installation() -> str:
    """Return a digest that changes when Echelon is edited, or a package is installed or removed.

    Installers create and remove entries of the folders on Python's path, which changes their times.
    """
    digest = hashlib.sha256(sys.version.encode())

    def add(path: str, found: os.stat_result) -> None:
        digest.update(f"{path} {found.st_size} {found.st_mtime_ns}\n".encode())

    def add_all(folder: str) -> None:
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda one: one.name):
                if not entry.is_dir():
                    add(entry.path, entry.stat())
                elif entry.name != "__pycache__":
                    add_all(entry.path)

    here = os.getcwd()  # noqa: PTH109  on the path of `python -m`
    for entry in sys.path:
        if (place := os.path.abspath(entry)) != here:  # noqa: PTH100  faster than Path
            with contextlib.suppress(OSError):
                add(place, os.stat(place))  # noqa: PTH116
    add_all(os.path.dirname(_version.__file__))  # noqa: PTH120
    return digest.hexdigest()
