"""The program that every rank runs."""

import os
from dataclasses import dataclass
from pathlib import Path

from echelon.spec.job_spec import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A script, module or other program."""

    argv: tuple[str, ...]
    """A script or a module's name, and its arguments."""
    kind: str = "script"
    """`script` or `module` for Python; `binary` for anything else."""

    def command(self, python: str) -> list[str]:
        """Return the command that starts it in a new process."""
        before = {"script": [python], "module": [python, "-m"], "binary": []}[self.kind]
        return [*before, *self.argv]

    def folder(self) -> str:
        """Return the first entry of its `sys.path`."""
        if self.kind == "module":
            return os.getcwd()  # noqa: PTH109  the same text as Python uses
        return str(Path(self.argv[0]).resolve().parent)


def find_program(spec: JobSpec) -> Program:
    """Return the program of a request."""
    return Program(argv=(spec.script, *spec.args), kind=_kind(spec))


def _kind(spec: JobSpec) -> str:
    if spec.module:
        return "module"
    if spec.script.endswith(".py"):
        return "script"
    try:
        with Path(spec.chdir, spec.script).open("rb") as file:
            first = file.readline(200)
    except OSError:
        return "binary"
    return "script" if first.startswith(b"#!") and b"python" in first else "binary"
