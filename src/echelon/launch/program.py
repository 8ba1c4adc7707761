"""The program that every rank runs."""

import os
from pathlib import Path

from echelon.core.frozen import frozen
from echelon.run.code import ProjectCopy
from echelon.spec.job_spec import JobSpec


@frozen
class Program:
    """A script, module or other program."""

    argv: tuple[str, ...]
    """A script or a module's name, and its arguments."""
    kind: str = "script"
    """`script` or `module` for Python; `binary` for anything else."""
    modules: str = ""
    """Folder of a module, if that is not the working directory."""

    def command(self, python: str) -> list[str]:
        """Return the command that starts it in a new process."""
        # With -P, the working directory is not searched; PYTHONPATH begins with the folder.
        module = [python, *(["-P"] if self.modules else []), "-m"]
        before = {"script": [python], "module": module, "binary": []}[self.kind]
        return [*before, *self.argv]

    def folder(self) -> str:
        """Return the first entry of its `sys.path`."""
        if self.kind == "module":
            return self.modules or os.getcwd()  # noqa: PTH109  the same text as Python uses
        return str(Path(self.argv[0]).resolve().parent)


def find_program(spec: JobSpec, copy: ProjectCopy | None = None) -> Program:
    """Return the program of a request, in the copy of its project if there is one."""
    kind = _kind(spec)
    if copy is None:
        return Program(argv=(spec.script, *spec.args), kind=kind)
    if kind == "module":
        return Program(argv=(spec.script, *spec.args), kind=kind, modules=copy.find(""))
    return Program(argv=(copy.find(spec.script), *spec.args), kind=kind)


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
