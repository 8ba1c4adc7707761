"""Reads the commands of a job script for `submit --from job.sh`.

If the script has only one launch, the training script and its arguments are taken from it. The
other commands are not executed, so they are listed with the flags that replace them.
"""

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from echelon.core.notes import note
from echelon.core.shell import LocalShell
from echelon.spec.conflicts import SCRIPT_VARIABLES
from echelon.spec.job_spec import JobSpec

if TYPE_CHECKING:
    from echelon.lint.bash import Assignment, Command, Word
    from echelon.lint.launches import Launch
    from echelon.lint.script import Script

_WITHOUT_EFFECT = frozenset(
    {
        *(":", "[", "[[", "break", "cat", "continue", "date", "df", "echo", "env", "exit", "free"),
        *("hostname", "ls", "lscpu", "nvidia-smi", "printenv", "printf", "pwd", "return"),
        *("scontrol",),
        *("set", "shift", "sleep", "squeue", "sstat", "test", "trap", "true", "type", "wait"),
        *("which", "whoami"),
    }
)
"""Commands that only print, or control the script itself."""
_MODULE = ("module", "ml")
_ACTIVATES = r"(?:(?:conda|mamba) +activate|(?:source|\.) +(?:\S*/)?activate) +(\S+)"
_CONDA_SETUP = r"conda\.sh\b|\bconda (?:shell\.|init\b)"
"""Commands that --conda makes unnecessary."""


def read_job_script(path: Path, text: str) -> "Script | None":
    """Return the commands of a job script; None if the extra `lint` is not installed."""
    try:
        from echelon.lint.files import DiskFiles  # noqa: PLC0415
        from echelon.lint.script import read_script  # noqa: PLC0415
    except ModuleNotFoundError:
        return None
    return read_script(text, path=str(path), files=DiskFiles(), programs=LocalShell())


def take_program(job: "Script | None") -> dict[str, object]:
    """Return the training script and its arguments.

    Return nothing unless the job starts exactly one program, with known arguments.
    """
    launches = _launches(job) if job else []
    if len({(_words(one), one.module) for one in launches}) != 1:
        return {}
    script, *args = words = [word for word in _words(launches[0]) if word is not None]
    if len(words) < len(_words(launches[0])):
        return {}
    note(f"{launches[0].path}:{launches[0].line}: running {shlex.join(words)}")
    return {"script": script, "args": args, **({"module": True} if launches[0].module else {})}


def _launches(job: "Script") -> "list[Launch]":
    return [one.launch for one in job.started if one.launch.program]


def _words(launch: "Launch") -> tuple[str | None, ...]:
    """Return script and arguments; None for words that are known only when the job runs."""
    assert launch.program is not None
    words = (launch.program, *launch.arguments)
    return tuple(_literal(word) for word in words if word.text not in ("$@", "$*"))


def _literal(word: "Word") -> str | None:
    """Return the text of a word if it is the same in every job."""
    if word.commands or any(name.startswith("SLURM") for name in word.names):
        return None
    if word.known:
        return None if not word.quoted and re.search(r"[*?[{~]", word.text) else word.text
    same = word.names and word.names <= {"HOME", "USER"}
    return os.path.expandvars(word.text) if same else None


def mention_unused(job: "Script | None", path: Path, spec: JobSpec) -> None:
    """Warn about commands of a job script that have no effect, with the flags that replace them.

    Flags that the request already has are not mentioned.
    """
    if job is None:
        note(
            f"warning: only the #SBATCH lines of {path} are used; install tree-sitter and "
            "tree-sitter-bash to see which of its commands need a flag"
        )
        return
    rows = [row for row in _find_unused(job, spec) if row[1]]
    if rows:
        note(f"warning: {path}: these lines are not executed; add the flags that replace them:")
    for place, flags in rows:
        note(f"  {place}\n      {' '.join(flags)}")


def _find_unused(job: "Script", spec: JobSpec) -> Iterator[tuple[str, list[str]]]:
    """Yield each line of a script, as PATH:LINE: TEXT, with the flags that a request lacks."""
    from echelon.lint.bash import Assignment  # noqa: PLC0415

    found: dict[str, list[str]] = {}
    launches = _launches(job)
    own = [one for one in launches if _is_same(one, spec)] or launches
    last = max((one.line for one in launches if one.path == job.path), default=sys.maxsize)
    exported: list[Assignment | Command] = [a for a in job.assignments if a.name in job.exported]
    commands = [one for one in job.commands if one.words and not one.substituted]
    # With other commands, such as purge, the order matters, so `--load` cannot replace them.
    loads = all(_modules(one) is not None for one in commands if one.name in _MODULE)
    for at in sorted([*exported, *commands], key=lambda o: (o.path != job.path, o.path, o.line)):
        launch = next((one for one in own if (one.path, one.line) == (at.path, at.line)), None)
        text = job.line_at(at).strip()
        program = next((rest for one, _, rest in job.sruns if one is at and not launches), None)
        if launch:
            flags = _launch_flags(launch, spec)
        elif program:  # not Python
            flags = [] if spec.script else [shlex.join(word.text for word in program)]
        elif any(at is one.command for one in own) or text in spec.prologue:
            continue
        elif isinstance(at, Assignment):
            flags = _variable_flags(at, text, spec)
        elif at.path == job.path and at.line > last:
            cleans = spec.notify or at.name in _WITHOUT_EFFECT
            flags = [] if cleans else [f"--notify {shlex.quote(text)}"]
        else:
            flags = _command_flags(at, text, spec, loads=loads)
        known = found.setdefault(f"{at.path}:{at.line}: {text}", [])
        known += flags
    yield from found.items()


def _launch_flags(launch: "Launch", spec: JobSpec) -> list[str]:
    """Return flags for the arguments, ranks and variables of a launch that a request lacks."""
    flags = [
        f"--env {one.name}={shlex.quote(one.value.text)}"
        for one in launch.command.assignments
        if one.name not in spec.env
    ]
    images = [word.text for word in launch.command.words if word.text.endswith(".sif")]
    if launch.srun and "container-image" in launch.srun:
        images.append(launch.srun["container-image"].text)
    flags += [f"--image {_quote(image)}" for image in images[:1] if not spec.image]
    ranks = launch.launcher.option("nproc-per-node") if launch.launcher else None
    if ranks and ranks.number and ranks.number != spec.procs_per_node:
        flags.append(f"--procs {ranks.number}")
    words = [shlex.quote(word) if word else "…" for word in _words(launch)]
    if not spec.script or (len(words) > 1 and not spec.args and _is_same(launch, spec)):
        flags += ["-m", *words] if launch.module else words
    return flags


def _is_same(launch: "Launch", spec: JobSpec) -> bool:
    assert launch.program is not None
    return PurePosixPath(launch.program.text).name == PurePosixPath(spec.script).name


def _variable_flags(one: "Assignment", text: str, spec: JobSpec) -> list[str]:
    if one.name in SCRIPT_VARIABLES or one.name in spec.env:
        return []
    if one.value.known:
        return [f"--env {one.name}={shlex.quote(one.value.text)}"]
    return [f"--prologue {shlex.quote(text)}"]  # the value depends on the job


def _modules(command: "Command") -> list[str] | None:
    """Return the environment modules that a command loads; None if it does something else."""
    words = [word.text for word in command.arguments]
    if words[:1] in (["load"], ["add"]):
        return words[1:]
    short = command.name == "ml" and words and not re.match(r"-|purge|unload|use|swap|rm", words[0])
    return words if short else [] if words[:1] in ([], ["list"], ["avail"]) else None


def _command_flags(command: "Command", text: str, spec: JobSpec, *, loads: bool) -> list[str]:
    """Return the flags that replace a command before the training.

    Args:
        command: the command.
        text: its line.
        spec: the request.
        loads: whether the script uses only `module load`.
    """
    name, words = command.name, [word.text for word in command.arguments]
    chosen = spec.venv or spec.conda or spec.python or spec.image
    if name in _WITHOUT_EFFECT or re.search(_CONDA_SETUP, text):
        return []
    if name in _MODULE and loads:
        return [f"--load {one}" for one in _modules(command) or () if one not in spec.modules]
    if match := re.fullmatch(_ACTIVATES, command.text):
        return [] if chosen else [f"--conda {shlex.quote(match[1])}"]
    if name in ("source", ".") and words[0].endswith("/bin/activate") and len(words) == 1:
        return [] if chosen else [f"--venv {_quote(words[0].removesuffix('/bin/activate'))}"]
    if name == "cd":
        stays = spec.chdir or words[-1:] in ([], ["${SLURM_SUBMIT_DIR}"])
        return [] if stays else [f"--chdir {_quote(words[-1])}"]
    whole = command.certain or re.search(r"[;&|]", text)
    text = re.sub(r"\\$", "…", text)  # the command continues on the next line
    return [f"--prologue {shlex.quote(text)}", *([] if whole else ["(with its condition)"])]


def _quote(text: str) -> str:
    """Quote a path for the user's shell, which still expands its variables."""
    return text if re.fullmatch(r"[~\w./+-]+", text) else f'"{text}"'
