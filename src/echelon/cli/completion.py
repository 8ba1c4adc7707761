"""What the shell offers after Tab, and the scripts that make it ask.

Every key press waits for these: nothing heavy is loaded, and what cannot be known at once is not
offered. A prompt is no place for an error.
"""

import importlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from echelon.cli import console
from echelon.errors import EchelonError, UsageError

SHELLS = ("bash", "zsh", "fish")
FLAGS = ("--show-completion", "--install-completion")


def handle_flags(arguments: Sequence[str]) -> bool:
    """Print or install the script for a shell that is named; tell whether that was asked for.

    Without a name typer finds out which shell this is.

    Raises:
        UsageError: there is none for that shell.
    """
    if len(arguments) != 2 or arguments[0] not in FLAGS:
        return False
    flag, shell = arguments
    if shell not in SHELLS:
        raise UsageError(
            f"there is no completion for '{shell}'",
            hint=f"there is for {', '.join(SHELLS)}: {flag} bash",
        )
    typers = importlib.import_module("typer.completion")
    if flag == "--install-completion":
        _, path = typers.install(shell=shell, prog_name="echelon", complete_var="_ECHELON_COMPLETE")
        console.note(f"installed in {path}; it works in the next shell that you start")
    else:
        console.print_file(
            typers.get_completion_script(
                prog_name="echelon", complete_var="_ECHELON_COMPLETE", shell=shell
            )
        )
    return True


def offer(choices: Sequence[str]) -> Callable[[str], list[str]]:
    """Return what completes one of some words."""

    def complete(incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.startswith(incomplete)]

    return complete


def complete_script(incomplete: str) -> list[str]:
    """Offer Python scripts, and folders on the way to them."""
    folder, slash, _ = incomplete.rpartition("/")
    try:
        entries = sorted(Path(folder or slash or ".").iterdir())
    except OSError:
        return []
    found = [
        f"{folder}{slash}{entry.name}{'/' if entry.is_dir() else ''}"
        for entry in entries
        if not entry.name.startswith(".") and (entry.suffix == ".py" or entry.is_dir())
    ]
    return [path for path in found if path.startswith(incomplete)]


def complete_partition(incomplete: str) -> list[str]:
    """Offer the partitions of the cluster, if it answers at once."""
    from echelon.clusters.slurm.survey import list_partitions  # noqa: PLC0415
    from echelon.core.shell import LocalShell  # noqa: PLC0415

    try:
        names = list_partitions(LocalShell(), os.environ)
    except (EchelonError, OSError):
        return []
    return [name for name in names if name.startswith(incomplete)]


def complete_rule(incomplete: str) -> list[str]:
    """Offer the codes of lint's rules."""
    try:
        from echelon.lint.linting import RULES  # noqa: PLC0415
    except ModuleNotFoundError:
        return []  # tree-sitter is not installed
    codes = ["all", *(rule.code for rule in RULES)]
    return [code for code in codes if code.lower().startswith(incomplete.lower())]
