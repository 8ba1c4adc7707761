"""The files that a job needs, as far as it names them: scripts, and files that these read."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from echelon.core.frozen import frozen
from echelon.lint.bash import Command, Word
from echelon.lint.files import beside, find_file
from echelon.lint.harmless import INSTALLS, start_of
from echelon.lint.launches import Launch
from echelon.lint.patterns import pattern
from echelon.lint.rule import Located
from echelon.lint.subject import Subject

_RELATIVE = r"(?:\.{1,2}/)*[A-Za-z0-9_][\w./+-]*"
_PYTHON_SCRIPT = pattern(rf"{_RELATIVE}\.py")
_SHELL_SCRIPT = pattern(rf"{_RELATIVE}\.(?:sh|bash)")
_CONFIG = pattern(r"(?:\.{1,2}/)*[A-Za-z0-9_][\w.+-]*(?:/[\w.+-]+)+\.(?:toml|ya?ml|json|ini|cfg)")
_OF_CONFIG = pattern(
    r"(?i)conf|cfg|param|spec\b|setting|deepspeed|recipe|^@|ya?ml|^-?-?(?:c|f|file)$"
)
"""Options of configuration files."""
OF_OUTPUT = pattern(r"(?i)out|save|log|result|dump|write|export|dest|pred|report|metric|cache|^-o$")
_OF_PERSON = pattern(
    r"(?i)secret|local|private|credential|token|passw|user|\bkeys?\b|activate|(?:^|/)\.?v?env(?:/|\.sh$|$)"
)
"""Sourced files that are not in a repository on purpose."""
_RUNS_SCRIPTS = frozenset(
    {"bash", "sh", "srun", "mpirun", "mpiexec", "exec", "time", "env", "nohup", "timeout"}
)
_MOST_ARGUMENTS = 50
LISTS_PACKAGES = ("pip", "conda")
"""Programs whose `-r` or `-f` comes before a file that they read."""
_OF_REQUIREMENTS = frozenset({"-r", "--requirement", "--requirements", "-f", "--file"})
_REQUIREMENTS = pattern(rf"{_RELATIVE}\.(?:txt|ya?ml)")
_LONGEST_PATH = 1000
_COPIES = frozenset({"cp", "mv", "ln", "rsync", "scp", "rclone", "sbcast"})
_UNPACKS = frozenset({"tar", "unzip", "git"})
_AT_HOME = pattern(r"~|\$\{HOME\}|(?:/[\w-]+)?/(?:home|users)\d?/")
"""Where people keep the clone that they work in."""


@frozen
class Wanted:
    """A path that has to exist when the job reaches a command."""

    path: str
    at: Located
    reader: str
    """The program that fails without it; empty if another script reads it."""
    certain: bool = True
    """Whether the job always reads it."""
    found: bool = False
    """Whether lint finds it beside the job script, or in the current directory."""
    rooted: bool = False
    """Whether the path begins in the top directory of the repository."""


def find_wanted(subject: Subject) -> list[Wanted]:
    """Return the files that the job needs, as far as it names them."""
    wanted = [
        *_programs(subject),
        *_by_srun(subject),
        *_sourced(subject),
        *_requirements(subject),
        *_configs(subject),
        *_arguments(subject),
    ]
    found = (one.found or bool(_find(subject, one.path)) for one in wanted)
    return [
        *(replace(one, found=known) for one, known in zip(wanted, found, strict=True)),
        *_programs_by_full_path(subject),
    ]


def _find(subject: Subject, path: str) -> str:
    return find_file(subject.files, path, (subject.path, ""))


def _programs(subject: Subject) -> Iterator[Wanted]:
    """Yield the Python and shell scripts that the job runs."""
    for launch, own in ((one.launch, one.python is not None) for one in subject.started):
        word = launch.program
        if word is None or not word.known or launch.looked_up or launch.module or launch.elsewhere:
            continue
        if _PYTHON_SCRIPT.fullmatch(word.text):
            at = launch.place_of(word, subject.path)
            yield Wanted(path=word.text, at=at, reader="Python", found=own)
    told_paths = set[str]()
    for command in subject.batch.commands if subject.batch else ():
        by_shell = command.name in ("bash", "sh")
        run = command.arguments[:1] if by_shell else command.words[:1]
        path = run[0].text if run and run[0].known and not run[0].uses else ""
        if _SHELL_SCRIPT.fullmatch(path) and ("/" in path or by_shell) and path not in told_paths:
            told_paths.add(path)
            always = command.certain or command.looped or bool(command.piped_into)
            yield Wanted(path=path, at=command, reader="Bash", certain=always)


def _programs_by_full_path(subject: Subject) -> Iterator[Wanted]:
    """Yield the Python scripts that the job names by the directory of its repository."""
    repository = subject.files.repository(subject.path)
    if repository is None or repository.has_common_name:
        return
    for launch in (one.launch for one in subject.started if one.python is None):
        word = launch.program
        if word is None or launch.module or launch.elsewhere:
            continue
        full = word.text.startswith(("/", "~/", "$")) and len(word.text) <= _LONGEST_PATH
        inside = repository.inside(word.text) if full else []
        if len(inside) != 1 or not _PYTHON_SCRIPT.fullmatch(inside[0]):
            continue
        if not _find(subject, word.text) and not _is_copied(subject, word.text):
            yield Wanted(
                path=inside[0],
                at=launch.place_of(word, subject.path),
                reader="Python",
                certain=bool(_AT_HOME.match(word.text)),
                rooted=True,
            )


def _is_copied(subject: Subject, path: str) -> bool:
    """Tell whether the job copies files to a path, or to a folder above it."""
    words = list[Word]()
    for command in subject.commands:
        names = {command.name, *(word.text for word in command.words)}
        if names & _COPIES:
            words += command.words[-1:]
        elif names & _UNPACKS:
            words += command.words
    ends = (f"{word.text.rstrip('/')}/" for word in words if word.text)
    return any(f"{path}/".startswith(end) for end in ends)


def _requirements(subject: Subject) -> Iterator[Wanted]:
    """Yield the lists of packages that pip and conda install."""
    for command in subject.batch.commands if subject.batch else ():
        found = INSTALLS.match(start_of(command))
        if found is None or not (found["pip"] or found["env"]):
            continue
        for path in lists_of_packages(command) if command.certain and command.unchecked else ():
            if _REQUIREMENTS.fullmatch(path):
                yield Wanted(path=path, at=command, reader="pip" if found["pip"] else "conda")


def lists_of_packages(command: Command) -> list[str]:
    """Return the files with the packages that a command installs."""
    words = [word.text for word in command.arguments[:_MOST_ARGUMENTS]]
    return [path for option, path in pairwise(words) if option in _OF_REQUIREMENTS]


def _by_srun(subject: Subject) -> Iterator[Wanted]:
    """Yield the shell scripts that srun starts by their path."""
    for command, options, rest in subject.sruns:
        words = rest[1:] if rest and rest[0].text in ("bash", "sh") else rest
        word = words[0] if words and command.path == subject.path else None
        if word is None or not word.known or "chdir" in options or "/" not in word.text:
            continue
        if _SHELL_SCRIPT.fullmatch(word.text):
            reader = "srun" if words is rest else "Bash"
            yield Wanted(path=word.text, at=command, reader=reader, certain=False)


def _sourced(subject: Subject) -> Iterator[Wanted]:
    for command in subject.batch.commands if subject.batch else ():
        word = command.arguments[0] if command.arguments else None
        if command.name not in ("source", ".") or word is None or not word.known or word.uses:
            continue
        sure = command.certain and command.unchecked and not command.substituted
        # Without a slash, bash looks in PATH first.
        if (
            sure
            and "/" in word.text
            and _SHELL_SCRIPT.fullmatch(word.text)
            and not _OF_PERSON.search(word.text)
        ):
            yield Wanted(path=word.text, at=command, reader=f"`{command.name}`")


def _configs(subject: Subject) -> Iterator[Wanted]:
    """Yield the configuration files that a Python script of the repository reads."""
    for launch, own in ((one.launch, one.python is not None) for one in subject.started):
        if launch.elsewhere:
            continue
        for option, word in _options(launch):
            path = word.text.rpartition("=")[2].removeprefix("@")
            if not word.known or not _CONFIG.fullmatch(path) or OF_OUTPUT.search(option):
                continue
            folder = path.rpartition("/")[0]
            known = any(subject.files.is_folder(beside(b, folder)) for b in (subject.path, ""))
            if not own and not (known and _OF_CONFIG.search(option)):
                continue
            if _OF_CONFIG.search(option) or (not option and (known or path[-5:] != ".json")):
                yield Wanted(path=path, at=launch.place_of(word, subject.path), reader="")


def _arguments(subject: Subject) -> Iterator[Wanted]:
    """Yield the scripts, with their folder, that are arguments of a script of the repository."""
    for launch in (one.launch for one in subject.started if one.python is not None):
        if not launch.elsewhere and launch.path == subject.path:
            at = launch.place_of(launch.program, subject.path)
            yield from _scripts_in(list(_options(launch)), at)
    for command in subject.batch.commands if subject.batch else ():
        words = command.words[:_MOST_ARGUMENTS]
        if not words or not (command.name in _RUNS_SCRIPTS or command.name.endswith(".sh")):
            continue
        scripts = [n for n, word in enumerate(words) if _SHELL_SCRIPT.fullmatch(word.text)]
        if scripts and _find(subject, words[scripts[0]].text):
            rest = words[scripts[0] + 1 :]
            before = ("", *(word.text for word in rest))
            yield from _scripts_in(list(zip(before, rest, strict=False)), command)


def _scripts_in(arguments: list[tuple[str, Word]], at: Located) -> Iterator[Wanted]:
    """Yield the scripts among arguments, which come with the word before each."""
    for before, word in arguments:
        name, equals, value = word.text.partition("=")
        option, path = (name, value) if equals else (before, word.text)
        script = _PYTHON_SCRIPT.fullmatch(path) or _SHELL_SCRIPT.fullmatch(path)
        if script and word.known and "/" in path.lstrip("./") and not OF_OUTPUT.search(option):
            yield Wanted(path=path, at=at, reader="")


def _options(launch: Launch) -> Iterator[tuple[str, Word]]:
    """Yield the arguments of a program with the option before each, or its own."""
    if launch.launcher is not None and (word := launch.launcher.option("config-file")):
        yield "--config_file", word
    before = ""
    for word in launch.arguments:
        name, equals, _ = word.text.partition("=")
        own = "@" if word.text.startswith("@") else before
        yield (name if equals else own), word
        before = name if name.startswith("-") and not equals else ""
