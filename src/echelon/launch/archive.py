"""Runs the job-side programs from memory: what was read, and compared with a digest, is what runs.

This file is the first part of every launcher, before an archive of modules. It is executed before
there is anything to import it from, so it uses nothing of Echelon's own.
"""

from __future__ import annotations  # an older Python has to come as far as to say that it is one

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType

_ENTRY = b"PK\3\4"
"""Begins each file in a zip archive."""
_OLDEST = (3, 11)


class Archive:
    """Finds modules among the files of a launcher that was read into memory."""

    def __init__(self, path: str, digest: str, data: bytes) -> None:
        """Read the table of files.

        Args:
            path: where the launcher lies: modules are named as if it were a folder.
            digest: of the data.
            data: this file's text, then a zip archive without compression.
        """
        self.path, self.digest = path, digest
        self.files: dict[str, memoryview] = {}
        """By full path; they share the data's memory."""
        # zipfile would take longer to import than everything else here.
        content, at = memoryview(data), data.index(_ENTRY)
        while data.startswith(_ENTRY, at):
            size, length, extra = (
                int.from_bytes(data[at + begin : at + end], "little")
                for begin, end in ((22, 26), (26, 28), (28, 30))
            )
            name = data[at + 30 : at + 30 + length].decode()
            begin = at + 30 + length + extra
            at = begin + size
            self.files[f"{path}/{name}"] = content[begin:at]

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002  names are enough
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return a module of the archive; never one of the same name on disk."""
        stem = f"{self.path}/{name.replace('.', '/')}"
        for file, is_package in ((f"{stem}/__init__.py", True), (f"{stem}.py", False)):
            if file in self.files:
                loader = ArchiveLoader(name, file, self)
                spec = ModuleSpec(name, loader, origin=file, is_package=is_package)
                spec.has_location = True
                return spec
        return None


class ArchiveLoader(SourceFileLoader):
    """Loads one module, from its bytecode where that is of this Python."""

    def __init__(self, name: str, path: str, archive: Archive) -> None:
        super().__init__(name, path)
        self.archive = archive

    def get_data(self, path: str) -> bytes:
        try:
            return bytes(self.archive.files[path])
        except KeyError:
            raise FileNotFoundError(path) from None

    def path_stats(self, path: str) -> dict[str, float]:
        return {"mtime": 0, "size": len(self.get_data(path))}

    def set_data(self, path: str, data: object, **_mode: int) -> None:
        """Write nothing: bytecode goes into the archive when that is made."""


def find_archive(package: ModuleType) -> Archive | None:
    """Return what a package was loaded from; None where it is installed."""
    # By name: the classes that were executed are not those that are imported from there.
    return getattr(package.__spec__ and package.__spec__.loader, "archive", None)


def load(path: str, digest: str, data: bytes) -> None:
    """Have Echelon's modules imported from a launcher's data."""
    sys.meta_path.insert(0, Archive(path, digest, data))


def run(path: str, digest: str, data: bytes) -> None:
    """Become the program that the arguments name."""
    if sys.version_info < _OLDEST:
        own = ".".join(map(str, sys.version_info[:2]))
        without = ", or --no-snapshot" if sys.argv[3] == "code" else ""
        sys.exit(f"the ranks' Python is {own}; Echelon needs 3.11 or newer{without}")
    # Where Python puts a program's own folder; ranks replace it by theirs (rank.lead_path).
    sys.path.insert(0, os.devnull)
    sys.argv[:3] = [path]
    load(path, digest, data)
    # By name: that module imports this one, and is found only now.
    sys.exit(import_module("echelon.launch.__main__").main())
