"""E215: scripts and configuration files that the repository certainly does not have."""

import re
from collections.abc import Iterator
from itertools import islice, pairwise

from echelon.lint.files import Place, Repository, find_file
from echelon.lint.patterns import pattern
from echelon.lint.placeholders import placeholder_in
from echelon.lint.rule import ERROR, WARNING, Hit, rule
from echelon.lint.script import Script

_CONFIG = pattern(r"(?:\./)?[\w.-]+(?:/[\w.-]+)*/[\w.-]+\.(?:ya?ml|json|toml|cfg|ini|sh)")
_PROGRAM = pattern(r"(?:\.{1,2}/)*[\w-][\w.-]*(?:/[\w.-]+)*\.(?:py|sh)")
_OUTPUT = pattern(r"(?i)out|save|log|dump|result|export|write|target|cache|work")
"""Options that name a file to write."""
_BRINGS_FILES = frozenset(
    {
        *("git", "wget", "curl", "tar", "unzip", "cp", "mv", "ln", "rsync", "scp", "gh", "make"),
        *("gdown", "jupyter", "tee", "sed", "envsubst", "docker", "podman", "shifter", "enroot"),
        *("singularity", "apptainer", "pushd", "cmake", "svn", "hf", "huggingface-cli", "cat"),
    }
)
"""Programs that may create files, or that run in another file system."""
_HOME = pattern(r"[\"']?\$\{?(?:SLURM_SUBMIT_DIR|PWD)\b")
_BELOW = pattern(r"(?:\.{1,2}/)+\$\{?(SLURM_SUBMIT_DIR|HOME|PWD|TMPDIR)\b")
_MOST = 5
"""Maximum number of missing paths to report, because each takes a search of the repository."""


@rule("E215", ERROR)
def missing(script: Script) -> Iterator[Hit]:
    """Script or configuration file that does not exist, or cannot be run.

    Python and bash exit at once if the script does not exist. Lint reports a relative path only if
    no path in the git repository of the job script ends with it, and if no command may create it or
    change to another directory. A program that is not executable is an error,
    and so is `cd` to an absolute path behind `../`.

    Example:
         #!/bin/bash
         #SBATCH --nodes=1
        -./train.sh    # <- here
        +bash train.sh
         --- train.sh
         hostname
    """
    yield from _not_executable(script)
    yield from _absolute_below(script)
    if not script.is_job or script.directives.last("chdir") or "--container-" in script.text:
        return
    repository = script.files.repository(script.path)
    if repository is None or any(shell.suspect for shell in script.shells):
        return
    if any(c.name in _BRINGS_FILES for c in script.commands) or _leaves(script, repository):
        return
    wanted = {path: at for at, path in reversed(list(_wanted(script)))}
    lacking = (p for p in wanted if not placeholder_in(p) and repository.lacks(p))
    for path in islice(lacking, _MOST):
        if re.search(rf">\s*\S*{re.escape(path.rpartition('/')[2])}", script.code):
            continue  # the script writes it
        yield Hit(
            at=wanted[path],
            what=f"No path in this repository ends with {path}. The command fails unless another "
            "program creates it.",
            fix="correct the path",
            severity=WARNING,
        )


def _wanted(script: Script) -> Iterator[tuple[Place, str]]:
    """Yield the relative paths that commands read, and where they are."""
    for one in script.started:
        launch, program = one.launch, one.launch.program
        if launch.elsewhere or program is None:
            continue
        known = one.python is None and program.known and not launch.module
        if known and _PROGRAM.fullmatch(program.text):
            yield launch.place_of(program, script.path), program.text
        for option, word in pairwise((program, *launch.arguments)):
            name, equals, value = word.text.partition("=")
            name, value = (name, value) if equals else (option.text, word.text)
            read = name.startswith("-") and not _OUTPUT.search(name)
            if one.python and read and word.known and _CONFIG.fullmatch(value):
                yield launch.place_of(word, script.path), value
    for command in script.batch.commands if script.batch else ():
        if command.name in ("source", ".", "bash", "sh") and len(command.words) > 1:
            word = command.words[1]
            if word.known and _PROGRAM.fullmatch(word.text) and command.always_runs:
                yield Place(command.path, command.line), word.text


def _leaves(script: Script, repository: Repository) -> bool:
    """Tell whether the job changes to a directory that may be outside the repository."""
    for command in (c for c in script.commands if c.name == "cd"):
        path = command.arguments[0].text if command.arguments else "~"
        inside = not path.startswith(("/", "~", "$", "-")) and not repository.lacks(path)
        named = path.rstrip("/").rpartition("/")[2] == repository.name
        if not inside and not named and not _HOME.match(path):
            return True
    return False


def _not_executable(script: Script) -> Iterator[Hit]:
    started = [(c, c.words) for c in script.commands if c.words[0].text.startswith("./")]
    for command, words in [*started, *((c, rest) for c, _, rest in script.sruns if rest)]:
        plain = words[0].known and "/" in words[0].text and not command.substituted
        place = find_file(script.files, words[0].text, (script.path, "")) if plain else ""
        if place and not script.files.is_executable(place):
            yield Hit(
                at=command,
                what=f"{words[0].text} is not executable: 'Permission denied'.",
                fix=f"chmod +x {words[0].text}",
            )


def _absolute_below(script: Script) -> Iterator[Hit]:
    for command in script.commands:
        path = command.arguments[0].text if command.name == "cd" and command.arguments else ""
        if found := _BELOW.match(path):
            what = f"`${found[1]}` is an absolute path, so {path} does not exist."
            yield Hit(at=command, what=what, fix=f"cd ${found[1]}/..")
