"""Stand-ins for what lint reads."""

import os

from echelon.core.shell import LocalShell, Result
from echelon.errors import MissingProgramError


def without_time(findings):
    """The findings of scripts that leave out the time limit, so as to be short."""
    return [finding for finding in findings if finding.code != "E119"]


class TextFiles:
    """Files in memory."""

    def __init__(self, texts, folders=frozenset()):
        self._texts = texts
        self._folders = folders

    def read(self, path):
        return self._texts.get(os.path.normpath(path))

    def is_folder(self, path):
        return os.path.normpath(path) in self._folders


class SlurmOf(LocalShell):
    """A machine with the given version of Slurm, or without Slurm, whatever this one has."""

    def __init__(self, version=None):
        super().__init__()
        self._version = version

    def run(self, argv, **options):
        if argv[0] != "sinfo":
            return super().run(argv, **options)
        if self._version is None:
            raise MissingProgramError("sinfo")
        return Result(argv=tuple(argv), stdout=f"slurm {self._version}\n")
