"""`echelon init`: a first echelon.toml, from what there is."""

import getpass
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from echelon.cli import console
from echelon.cli.options import read_text
from echelon.cli.project_file import PROJECT, PYPROJECT, has_project_table
from echelon.core.ownership import find_intruder
from echelon.errors import ConflictError, EchelonError, NotPermittedError
from echelon.spec import show_value

if TYPE_CHECKING:
    from echelon.clusters.proposal import Environment, Facts, Machine
    from echelon.clusters.survey import Survey
    from echelon.core.shell import Shell

app = typer.Typer(rich_markup_mode=None)

_BESIDE = (".venv", "venv", "env")
"""What environments beside a script are called."""
_LOOK = 200_000
"""How much of a file is read to tell what it is, in characters."""


@app.command()
def init(
    *,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Ask nothing, take the guesses.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an echelon.toml that is there.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the file, and write nothing.")
    ] = False,
) -> None:
    """Write a first echelon.toml, from what is here.

    GPUs, CPUs, partition and time are those of the Slurm that answers, else of this machine; the
    script and its Python are looked for in this folder. What cannot be guessed is asked, in a
    terminal.

    Example: echelon init --yes
    """
    from echelon.clusters import proposal  # noqa: PLC0415
    from echelon.core.rundir import write_atomic  # noqa: PLC0415
    from echelon.core.shell import LocalShell  # noqa: PLC0415

    folder = Path.cwd()
    if not dry_run:
        _check_free(folder, force=force)
    facts = gather_facts(folder, LocalShell(), os.environ)
    asking = not yes and console.can_ask()
    answers = {
        one.key: console.ask(one.text, one.choices, one.default) if asking else one.default
        for one in proposal.list_questions(facts)
    }
    made = proposal.propose(facts, answers)
    text = proposal.render_file(made)
    read_text(text, os.environ)  # what would not load is not written
    if dry_run:
        console.print_file(text)
        return
    try:
        write_atomic(folder / PROJECT, text, mode=0o644)
    except OSError as error:
        raise NotPermittedError(
            f"cannot write {PROJECT} in {folder}: {error.strerror}",
            hint="go to a folder of yours, or only look: echelon init --dry-run",
        ) from error
    console.print_result(f"wrote {PROJECT}")
    if why := find_intruder(folder / PROJECT):
        console.note(f"warning: {why}, so commands use this file only with --config {PROJECT}")
    console.note(proposal.render_settings(made.settings, "  ").rstrip("\n") or "  nothing to set")
    console.note("next:")
    for command, purpose in proposal.next_commands(facts, made):
        console.note(f"  {command.ljust(36)}# {purpose}")


def _check_free(folder: Path, *, force: bool) -> None:
    """See to it that nothing is replaced, or overruled, unasked."""
    path = folder / PROJECT
    if path.is_dir():
        raise ConflictError(f"{path} is a folder", hint=f"move it away: mv {PROJECT} somewhere")
    if force:
        return
    if path.exists() or path.is_symlink():
        raise ConflictError(
            f"there is an {PROJECT} in {folder} already; nothing was changed",
            hint="edit it (echelon config shows what it says), or replace it: echelon init --force",
        )
    if has_project_table(folder):
        raise ConflictError(
            f"{PYPROJECT} in {folder} has a table [tool.echelon], which {PROJECT} would overrule",
            hint="edit that table, or write the file all the same: echelon init --force",
        )


def gather_facts(folder: Path, shell: "Shell", environ: Mapping[str, str]) -> "Facts":
    """Look at the cluster, this machine, the folder and the user's own settings."""
    from echelon.clusters.proposal import Facts  # noqa: PLC0415

    own = read_text("", environ)
    return Facts(
        machine=_look_at_machine(shell),
        survey=_ask_slurm(shell, environ),
        scripts=_find_scripts(folder),
        environment=_find_environment(folder, environ),
        decided={
            key: show_value(key, own.spec)
            for key, source in own.origins.items()
            if source != "default"
        },
    )


def _ask_slurm(shell: "Shell", environ: Mapping[str, str]) -> "Survey | None":
    from echelon.clusters.survey import survey_cluster  # noqa: PLC0415

    if shell.which("sinfo") is None:
        console.note("there is no Slurm here: guessing from this machine")
        return None
    try:
        return survey_cluster(shell, environ, _user())
    except EchelonError as error:
        console.note(f"Slurm does not answer, so this machine has to do: {error.message}")
        return None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number without a name
        return str(os.geteuid())


def _look_at_machine(shell: "Shell") -> "Machine":
    from echelon.clusters.proposal import Machine  # noqa: PLC0415

    gpus = 0
    if shell.which("nvidia-smi"):
        try:
            shown = shell.run(["nvidia-smi", "--list-gpus"], timeout_s=15).stdout
        except EchelonError:
            shown = ""  # a driver that hangs: doctor is for that
        gpus = sum(line.startswith("GPU ") for line in shown.splitlines())
    return Machine(cpus=len(os.sched_getaffinity(0)), gpus=gpus)


def _find_scripts(folder: Path) -> tuple[str, ...]:
    from echelon.clusters.proposal import looks_like_training  # noqa: PLC0415

    found = []
    for path in sorted(folder.glob("*.py")):
        try:
            with path.open(errors="replace") as file:
                text = file.read(_LOOK)
        except OSError:
            continue
        if path.name.isprintable() and looks_like_training(path.name, text):
            found.append(path.name)
    return tuple(found)


def _find_environment(folder: Path, environ: Mapping[str, str]) -> "Environment | None":
    """Return the Python environment that is active, or else lies here."""
    from echelon.clusters.proposal import Environment  # noqa: PLC0415

    active, conda = environ.get("VIRTUAL_ENV", ""), environ.get("CONDA_DEFAULT_ENV", "")
    if active.isprintable() and Path(active, "bin/activate").is_file():
        near = Path(active).is_relative_to(folder)
        value = str(Path(active).relative_to(folder)) if near else active
        return Environment(key="venv", value=value, why="the environment that is active now")
    if conda not in ("", "base") and conda.isprintable():
        return Environment(key="conda", value=conda, why="the environment that is active now")
    for name in _BESIDE:
        if (folder / name / "bin/activate").is_file():
            return Environment(key="venv", value=name, why="the environment in this folder")
    return None
