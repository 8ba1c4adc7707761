"""The input of the rules: a script, its request, its launches and the files it starts."""

import re
from collections.abc import Mapping
from dataclasses import field, replace
from functools import cached_property

from echelon.core.frozen import frozen
from echelon.core.shell import Shell as Programs
from echelon.errors import MissingProgramError, TimedOutError
from echelon.lint.bash import Assignment, Command, Shell, Where, Word
from echelon.lint.files import Files, Place, find_file
from echelon.lint.launches import Launch, find_launches
from echelon.lint.patterns import pattern
from echelon.lint.python_script import PythonScript, parse_python
from echelon.lint.reading import read_shell
from echelon.lint.request import Amounts, Directives, known_variables, read_directives, read_request
from echelon.lint.source import clean

_TEMPLATE_NAME = pattern(
    r"(?i)template|skeleton|boilerplate|\.(?:tmpl|tpl|j2|jinja2?|in|mustache|erb|dist|orig)$"
)
_TEMPLATE_TEXT = pattern(
    r"\{%-?\s*[a-z]\w*|\{\{[^.{}\n][^{}\n]*\}\}|<%[=-]?\s|(?<![\w@])@[A-Z_]{3,}@"
)
"""Parts of a text that another program replaces."""
_TEMPLATE_TOLD = pattern(r"(?im)^[ \t]*#.{0,200}\b(?:template|fill[- ]?in|placeholders?)\b")
"""Comments that tell to complete the script first."""
_WORK = pattern(
    r"(?:(?:\S*/)?(?:srun|mpirun|mpiexec|torchrun|deepspeed|Rscript|julia)|(?:uv|poetry|pixi) run|"
    r"(?:singularity|apptainer) (?:exec|run)|(?:\S*/)?accelerate launch|wandb agent|\./\S+|"
    r"(?:bash|sh) \S+\.sh)(?=\s|$)"
)
"""Commands that do the work of a job, also if lint does not find a Python script behind them."""
_ASIDE = pattern(
    r"(?:srun\s+(?:-\S+\s+){0,20})?(?:hostname|nvidia-smi|echo|mkdir|cp|rm|rsync|date|sleep|ls|cat)\b|"
    r".*-m (?:pip|venv|ensurepip|virtualenv)\b|(?:uv|poetry) run (?:pip|which)"
)
_READERS = frozenset({"sed", "grep", "chmod", "test", "[", "find", "git", "source", "head", "cat"})
"""Programs that do not run a Python script among their arguments."""
_TIMEOUT_S = 2.0


@frozen
class Started:
    """A launch with its Python script, if lint found the file."""

    launch: Launch
    python: PythonScript | None


@frozen
class Script:
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

    @cached_property
    def is_template(self) -> bool:
        """Tell whether a person or a program completes the script before it is a job."""
        return bool(
            _TEMPLATE_NAME.search(self.path)
            or _TEMPLATE_TEXT.search(self.text)
            or _TEMPLATE_TOLD.search(self.text)
        )

    @property
    def batch(self) -> Shell | None:
        return self.shells[0] if self.shells else None

    @cached_property
    def commands(self) -> list[Command]:
        return [command for shell in self.shells for command in shell.commands]

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the script itself."""
        return self.text.split("\n")

    @cached_property
    def code(self) -> str:
        """The lines of all shells that are no comments."""
        return "\n".join(line for shell in self.shells for line in shell.code)

    @cached_property
    def assignments(self) -> list[Assignment]:
        """All assignments, including `NAME=value` before a command."""
        found = [assignment for shell in self.shells for assignment in shell.assignments]
        found += [own for command in self.commands for own in command.assignments]
        return sorted(found, key=lambda a: (a.path, a.line))

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
        lines = self.lines_of(at.path)
        return lines[at.line - 1] if 0 < at.line <= len(lines) else ""

    def lines_of(self, path: str) -> list[str]:
        if path not in self._lines:
            text = self.text if path == self.path else clean(self.files.read(path) or "")
            self._lines[path] = text.split("\n")
        return self._lines[path]

    @cached_property
    def _lines(self) -> dict[str, list[str]]:
        """The lines of files, by path, filled in as they are needed."""
        return {}

    def work_in(self, shell: Shell) -> list[Command]:
        """Return the commands of a shell that do the work of the job."""
        starts = {id(c) for o in self.started for c in (o.launch.command, o.launch.inner)}
        plain = (c for c in shell.commands if not c.substituted and not _ASIDE.match(c.text))
        return [
            c
            for c in plain
            if id(c) in starts
            or _WORK.match(c.text)
            or (c.name not in _READERS and any(w.text.endswith(".py") for w in c.arguments))
        ]

    @cached_property
    def sources_others(self) -> bool:
        """Tell whether a script sources a file that may set variables."""
        return any(command.name in ("source", ".") for command in self.commands)

    @property
    def is_exclusive(self) -> bool:
        """Tell whether the job shares its nodes with no other job."""
        given = self.directives.last("exclusive")
        return given is not None and given.value not in ("user", "mcs", "topo")

    def slurm_version(self) -> tuple[int, int] | None:
        """Return the version of this machine's Slurm, such as (23, 11); None if it has none."""
        try:
            done = self.programs.run(["sinfo", "--version"], timeout_s=_TIMEOUT_S)
        except (MissingProgramError, TimedOutError, OSError):
            return None
        found = re.search(r"(\d+)\.(\d+)", done.stdout)
        return (int(found[1]), int(found[2])) if found else None


def read_script(text: str, *, path: str, files: Files, programs: Programs) -> Script:
    """Parse a job script or a Python script, and everything it starts."""
    raw_text, text = text, clean(text)
    script = Script(path=path, text=text, raw_text=raw_text, files=files, programs=programs)
    if _is_python(path, text):
        python = parse_python(text, path=path, files=files)
        if python is None:
            return replace(script, unread=((path, text),))
        return replace(script, pythons=(python,))
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
        script,
        directives=directives,
        job=job,
        shells=tuple(found.shells),
        started=tuple(started),
        sruns=tuple(found.sruns),
        pythons=tuple(python for python in pythons.values() if python),
        unread=tuple(unread),
    )


def _is_python(path: str, text: str) -> bool:
    first = text.split("\n", 1)[0]
    return path.endswith(".py") or (first.startswith("#!") and "python" in first)


def _place(launch: Launch, files: Files) -> str:
    """Return the path of the Python script of a launch; empty if lint cannot find it."""
    if launch.program is None or not (launch.program.known or "/" in launch.program.text):
        return ""
    name = launch.program.text
    if launch.module:
        name = name.replace(".", "/") + ".py"
    # Most jobs are submitted from the directory of their script.
    return find_file(files, name, (launch.command.path, launch.path, ""))
