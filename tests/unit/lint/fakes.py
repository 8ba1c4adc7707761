"""Stand-ins for what lint reads."""

import os
from pathlib import PurePath

from echelon.core.shell import LocalShell, Result
from echelon.errors import MissingProgramError
from echelon.lint.choosing import Choice
from echelon.lint.files import Repository
from echelon.lint.linting import lint

DEFAULT = Choice()


def by_default(findings):
    """Return the findings that lint reports unless it is told otherwise."""
    return [finding for finding in findings if DEFAULT.keeps(finding)]


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
        return not path.endswith(".sh")

    def root(self, path):  # noqa: ARG002
        return "." if self._repository else None

    def repository(self, path):  # noqa: ARG002
        if not self._repository:
            return None
        above = {f"{folder}/" for path in self._texts for folder in PurePath(path).parents}
        return Repository(path=".", name="own", paths=frozenset({*self._texts, *above} - {"./"}))


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


def _file_name(name):
    return f"{name.removesuffix('_sh')}.sh" if name.endswith("_sh") else f"{name}.py"


def codes(body, head=JOB, *, version=None, repository=False, **beside):
    """Return the codes and severities of what lint finds in a job script."""
    texts = {_file_name(name): text for name, text in beside.items()} | {"job.sh": head + body}
    files = TextFiles(texts, repository=repository)
    found = lint(head + body, path="job.sh", files=files, programs=SlurmOf(version))
    return [(f.code, str(f.severity)) for f in found]
