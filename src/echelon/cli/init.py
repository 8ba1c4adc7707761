"""`echelon init`: write a first echelon.toml from the cluster, the machine and the directory."""

import getpass
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from echelon.cli import console
from echelon.cli.help import PREPARE
from echelon.client.submit.config_file import PROJECT, PYPROJECT, has_project_table
from echelon.client.submit.requests import read_text
from echelon.clusters import proposal
from echelon.clusters.proposal import Environment, Facts, Machine, looks_like_training
from echelon.clusters.slurm.survey import Survey, survey_cluster
from echelon.core.atomic_file import write_atomic
from echelon.core.ownership import find_intruder
from echelon.core.proc import count_cpus
from echelon.core.shell import LocalShell, Shell
from echelon.errors import ConflictError, EchelonError, NotPermittedError
from echelon.spec.job_spec import KEYS

app = typer.Typer(rich_markup_mode=None)

_VENV_NAMES = (".venv", "venv", "env")
"""Usual directory names of virtual environments."""
_LOOK = 200_000
"""Characters of a file that are read to recognise a training script."""


@app.command(rich_help_panel=PREPARE)
def init(
    *,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Use the defaults instead of asking.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an existing echelon.toml.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the file without writing it.")
    ] = False,
) -> None:
    """Write a first echelon.toml for this directory.

    GPUs, CPUs, partition and time limit are taken from Slurm or, without Slurm, from this machine.
    The training script and its Python environment are detected in the current directory. In a
    terminal, the command asks for what it cannot detect.

    Example: echelon init --yes
    """
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
    read_text(text, os.environ)  # raises before an invalid file is written
    if dry_run:
        console.print_file(text)
        return
    try:
        write_atomic(folder / PROJECT, text, mode=0o644)
    except OSError as error:
        raise NotPermittedError(
            f"cannot write {PROJECT} in {folder}: {error.strerror}",
            hint="change to a directory that you can write to, or use: echelon init --dry-run",
        ) from error
    console.print_result(f"wrote {PROJECT}")
    if why := find_intruder(folder / PROJECT):
        console.note(f"warning: {why}, so commands use this file only with --config {PROJECT}")
    console.note(proposal.render_settings(made.settings, "  ").rstrip("\n") or "  (no settings)")
    console.note("next:")
    for command, purpose in proposal.next_commands(facts, made):
        console.note(f"  {command.ljust(36)}# {purpose}")


def _check_free(folder: Path, *, force: bool) -> None:
    """Check that no existing file or table is replaced or overridden without --force."""
    path = folder / PROJECT
    if path.is_dir():
        raise ConflictError(f"{path} is a directory", hint=f"rename it: mv {PROJECT} {PROJECT}.old")
    if force:
        return
    if path.exists() or path.is_symlink():
        raise ConflictError(
            f"{path} already exists",
            hint="edit it, or replace it with: echelon init --force",
        )
    if has_project_table(folder):
        raise ConflictError(
            f"{folder / PYPROJECT} has a table [tool.echelon], which {PROJECT} would override",
            hint="edit that table, or write the file anyway: echelon init --force",
        )


def gather_facts(folder: Path, shell: Shell, environ: Mapping[str, str]) -> Facts:
    """Collect facts about the cluster, this machine, the directory and the user's settings."""
    own = read_text("", environ)
    return Facts(
        machine=_look_at_machine(shell),
        survey=_ask_slurm(shell, environ),
        scripts=_find_scripts(folder),
        environment=_find_environment(folder, environ),
        decided={
            key: KEYS[key].show(own.spec)
            for key, source in own.origins.items()
            if source != "default"
        },
    )


def _ask_slurm(shell: Shell, environ: Mapping[str, str]) -> Survey | None:
    if shell.which("sinfo") is None:
        console.note("Slurm not found; using this machine's CPUs and GPUs")
        return None
    try:
        return survey_cluster(shell, environ, _user())
    except EchelonError as error:
        console.note(f"Slurm does not respond; using this machine's CPUs and GPUs: {error.message}")
        return None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user's number has no name
        return str(os.geteuid())


def _look_at_machine(shell: Shell) -> Machine:
    gpus = 0
    if shell.which("nvidia-smi"):
        try:
            shown = shell.run(["nvidia-smi", "--list-gpus"], timeout_s=15).stdout
        except EchelonError:
            shown = ""  # `echelon doctor` reports a hanging driver
        gpus = sum(line.startswith("GPU ") for line in shown.splitlines())
    return Machine(cpus=count_cpus(), gpus=gpus)


def _find_scripts(folder: Path) -> tuple[str, ...]:
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


def _find_environment(folder: Path, environ: Mapping[str, str]) -> Environment | None:
    """Return the active Python environment, or else one in this directory."""
    active, conda = environ.get("VIRTUAL_ENV", ""), environ.get("CONDA_DEFAULT_ENV", "")
    if active.isprintable() and Path(active, "bin/activate").is_file():
        near = Path(active).is_relative_to(folder)
        value = str(Path(active).relative_to(folder)) if near else active
        return Environment(key="venv", value=value, why="the active environment")
    if conda not in ("", "base") and conda.isprintable():
        return Environment(key="conda", value=conda, why="the active environment")
    for name in _VENV_NAMES:
        if (folder / name / "bin/activate").is_file():
            return Environment(key="venv", value=name, why="the environment in this directory")
    return None
