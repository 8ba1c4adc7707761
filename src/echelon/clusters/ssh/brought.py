"""Where a version of Echelon is on a login host."""

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
"""Of all versions, in the home directory there."""


def find_id(python: str, memory: Path | None = None) -> str:
    """Return the name of the folder there: of our files, for a Python.

    Args:
        python: the Python that runs them there.
        memory: file that remembers the digest of our files, because to find those of other packages
            takes longer than most commands.
    """
    known = _read_digest(memory) if memory else compute_digest()
    digest = hashlib.sha256(f"{python} {known}".encode()).hexdigest()
    return f"{_version.__version__}-{digest[:16]}"


def compute_digest() -> str:
    """Return the digest of all files to bring.

    It depends on their names, sizes and times, because reading them all takes longer.
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

    def add(path: Path) -> None:
        found = path.stat()
        digest.update(f"{path} {found.st_size} {found.st_mtime_ns}\n".encode())

    here = Path.cwd()  # on the path of `python -m`
    for entry in sys.path:
        if (place := Path(entry).absolute()) != here:
            with contextlib.suppress(OSError):
                add(place)
    for folder, names, files in os.walk(Path(_version.__file__).parent):
        names[:] = sorted(name for name in names if name != "__pycache__")
        for name in sorted(files):
            add(Path(folder, name))
    return digest.hexdigest()
