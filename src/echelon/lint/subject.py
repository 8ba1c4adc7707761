"""The input of the rules: a script, its request, its launches and the files it starts."""

import os
from collections.abc import Mapping
from dataclasses import field, replace
from functools import cached_property

from echelon.core.frozen import frozen
from echelon.core.shell import Shell as Programs
from echelon.lint.bash import Assignment, Command, Shell, Where, Word
from echelon.lint.files import Files, Place, find_file
from echelon.lint.launches import Launch, find_launches
from echelon.lint.python_script import PythonScript, parse_python
from echelon.lint.reading import read_shell
from echelon.lint.request import Amounts, Directives, known_variables, read_directives, read_request
from echelon.lint.source import clean


@frozen
class Started:
    """A launch with its Python script, if lint found the file."""

    launch: Launch
    python: PythonScript | None


@frozen
class Subject:
    path: str
    text: str
    """Without a byte order mark, and with Unix line endings."""
    raw_text: str
    """The unmodified text of the file."""
    files: Files
    programs: Programs
    """Runs `bash -n` and `sinfo --version`."""
    directives: Directives = field(default_factory=Directives)
    """Empty for a Python script."""
    job: Amounts = field(default_factory=Amounts)
    shells: tuple[Shell, ...] = ()
    """The job script first, then the scripts it runs; empty for a Python script."""
    started: tuple[Started, ...] = ()
    sruns: tuple[tuple[Command, Mapping[str, Word], tuple[Word, ...]], ...] = ()
    """Each srun command with its options and the command it starts."""
    pythons: tuple[PythonScript, ...] = ()
    """Without duplicates."""
    unread: tuple[tuple[str, str], ...] = ()
    """Path and text of Python scripts that this Python version cannot parse."""

    @property
    def is_job(self) -> bool:
        """True if the script has #SBATCH directives."""
        return bool(self.directives.items or self.directives.broken)

    @property
    def batch(self) -> Shell | None:
        return self.shells[0] if self.shells else None

    @cached_property
    def commands(self) -> list[Command]:
        return [command for shell in self.shells for command in shell.commands]

    @property
    def code(self) -> list[str]:
        """The lines of all shells that are no comments."""
        return [line for shell in self.shells for line in shell.code]

    @cached_property
    def assignments(self) -> list[Assignment]:
        """All assignments, including `NAME=value` before a command."""
        found = [assignment for shell in self.shells for assignment in shell.assignments]
        found += [own for command in self.commands for own in command.assignments]
        return sorted(found, key=lambda a: (a.path, a.line))

    @cached_property
    def starts_in_background(self) -> bool:
        return any(one.launch.command.background for one in self.started)

    @cached_property
    def exported(self) -> frozenset[str]:
        return frozenset(name for shell in self.shells for name in shell.exported)

    def assigned(self, name: str) -> list[Assignment]:
        return self._assigned.get(name, [])

    @cached_property
    def _assigned(self) -> dict[str, list[Assignment]]:
        by_name: dict[str, list[Assignment]] = {}
        for assignment in self.assignments:
            by_name.setdefault(assignment.name, []).append(assignment)
        return by_name

    def line_at(self, at: Assignment | Command | Place) -> str:
        """Return the line of a file, without its line end."""
        if at.path not in self._lines:
            text = self.text if at.path == self.path else clean(self.files.read(at.path) or "")
            self._lines[at.path] = text.split("\n")
        return "".join(self._lines[at.path][at.line - 1 : at.line])

    @cached_property
    def _lines(self) -> dict[str, list[str]]:
        """The lines of files, by path, filled in as they are needed."""
        return {}

    def with_python(self, python: PythonScript) -> list[Launch]:
        """Return the launches of a Python script."""
        return [one.launch for one in self.started if one.python is python]

    @property
    def distributed(self) -> list[PythonScript]:
        """The Python scripts whose ranks form a process group."""
        return [python for python in self.pythons if python.is_distributed]

    @property
    def may_have_several_nodes(self) -> bool:
        """False if the script requests exactly one node."""
        return self.job.fewest_nodes is None or self.job.fewest_nodes > 1 or self.job.nodes is None


def read_subject(text: str, *, path: str, files: Files, programs: Programs) -> Subject:
    """Parse a job script or a Python script, and everything it starts."""
    raw_text, text = text, clean(text)
    subject = Subject(path=path, text=text, raw_text=raw_text, files=files, programs=programs)
    if is_python(path, text):
        python = parse_python(text, path=path, files=files)
        if python is None:
            return replace(subject, unread=((path, text),))
        return replace(subject, pythons=(python,))
    directives = read_directives(text)
    job = read_request(directives)
    known = known_variables(directives, job)
    values = {name: Word(text=value, line=0) for name, value in known.items()}
    shell = read_shell(text, path=path, where=Where.BATCH, values=values)
    found = find_launches(shell, job, files)
    pythons: dict[str, PythonScript | None] = {}
    unread, started = [], []
    for launch in found.launches:
        place = _place(launch, files)
        if place and place not in pythons:
            source = files.read(place)
            pythons[place] = parse_python(source, path=place, files=files) if source else None
            if source and pythons[place] is None:
                unread.append((place, source))
        started.append(Started(launch=launch, python=pythons.get(place)))
    return replace(
        subject,
        directives=directives,
        job=job,
        shells=tuple(found.shells),
        started=tuple(started),
        sruns=tuple(found.sruns),
        pythons=tuple(python for python in pythons.values() if python),
        unread=tuple(unread),
    )


def is_python(path: str, text: str) -> bool:
    first = text.split("\n", 1)[0]
    return path.endswith(".py") or (first.startswith("#!") and "python" in first)


def _place(launch: Launch, files: Files) -> str:
    """Return the path of the Python script of a launch; empty if lint cannot find it."""
    if launch.program is None or not (launch.program.known or "/" in launch.program.text):
        return ""
    name = launch.program.text
    if launch.module:
        name = name.replace(".", "/") + ".py"
    name = os.path.expanduser(name) if name.startswith("~") else name  # noqa: PTH111
    # Most jobs are submitted from the directory of their script.
    return find_file(files, name, (launch.command.path, launch.path, ""))
