"""Stand-ins for what lint reads."""

import os
from pathlib import PurePath

from echelon.core.shell import LocalShell, Result
from echelon.errors import MissingProgramError
from echelon.lint.files import Root
from echelon.lint.linting import lint
from echelon.lint.repository import Repository


def without_time(findings):
    """The findings of scripts that leave out the time limit, so as to be short."""
    return [finding for finding in findings if finding.code != "E119"]


class TextFiles:
    """Files in memory."""

    def __init__(self, texts, folders=frozenset(), *, repository=False):
        self._texts = texts
        self._repository = repository
        self._folders = folders

    def read(self, path):
        return self._texts.get(os.path.normpath(path))

    def is_folder(self, path):
        return os.path.normpath(path) in self._folders

    def is_executable(self, path):
        return not path.endswith("plain.sh")

    def root(self, path):
        if not self._repository:
            return None
        return Root(path=".", name="own", below=path.rpartition("/")[0])

    def repository(self, path):  # noqa: ARG002
        if not self._repository:
            return None
        above = {f"{folder}/" for path in self._texts for folder in PurePath(path).parents}
        return Repository(name="own", paths=frozenset({*self._texts, *above} - {"./"}))

    def lines_with(self, path):
        name = path.rpartition("/")[2]
        others = (text for other, text in self._texts.items() if other != path)
        return tuple(line for text in others for line in text.split("\n") if name in line)


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


JOB = "#!/bin/bash\n#SBATCH --nodes=1\n"


def codes(body, head=JOB, **beside):
    """Return the codes and severities of what lint finds in a job script."""
    files = TextFiles({f"{name}.py": text for name, text in beside.items()})
    found = lint(head + body, path="job.sh", files=files, programs=SlurmOf())
    return [(f.code, str(f.severity)) for f in found]
