"""Shell completion: its scripts, and the words that it offers.

The user waits at the prompt, so completions import nothing slow, offer only what is known
immediately, and print no errors.
"""

import importlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from echelon.cli import console
from echelon.errors import EchelonError, UsageError
from echelon.run.listing import list_runs, list_sweeps

SHELLS = ("bash", "zsh", "fish")
FLAGS = ("--show-completion", "--install-completion")


def handle_flags(arguments: Sequence[str]) -> bool:
    """Print or install the completion script of a named shell; tell whether that was requested.

    Without a name, typer detects the shell.

    Raises:
        UsageError: the shell is not supported.
    """
    if len(arguments) != 2 or arguments[0] not in FLAGS:
        return False
    flag, shell = arguments
    if shell not in SHELLS:
        raise UsageError(
            f"no completion for the shell '{shell}'",
            hint=f"choose {', '.join(SHELLS[:-1])} or {SHELLS[-1]}: {flag} bash",
        )
    typers = importlib.import_module("typer.completion")
    if flag == "--install-completion":
        _, path = typers.install(shell=shell, prog_name="echelon", complete_var="_ECHELON_COMPLETE")
        console.note(f"installed completion in {path}; start a new shell to use it")
    else:
        console.print_file(
            typers.get_completion_script(
                prog_name="echelon", complete_var="_ECHELON_COMPLETE", shell=shell
            )
        )
    return True


def offer(choices: Sequence[str]) -> Callable[[str], list[str]]:
    """Return a completion for a fixed set of words."""

    def complete(incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.startswith(incomplete)]

    return complete


def complete_script(incomplete: str) -> list[str]:
    """Offer Python scripts and directories."""
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


def complete_run(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the runs of this machine, then those on hosts, each with the newest first."""
    from echelon.client.remote.register import read_register  # noqa: PLC0415

    elsewhere = [one.run for one in reversed(read_register(os.environ))]
    here = [run.run_id for run in reversed(list_runs(_runs_dir(context)))]
    return offer(["last", *here, *elsewhere])(incomplete)


def complete_sweep(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the sweeps of this machine, the newest first."""
    found = reversed(list_sweeps(_runs_dir(context)))
    return offer(["last", *(sweep.sweep_id for sweep in found)])(incomplete)


def _runs_dir(context: typer.Context) -> Path:
    return Path(context.params.get("runs_dir") or os.environ.get("ECHELON_RUNS_DIR") or "runs")


def complete_partition(incomplete: str) -> list[str]:
    """Offer the partitions of the cluster, if it responds immediately."""
    from echelon.clusters.slurm.survey import list_partitions  # noqa: PLC0415
    from echelon.core.shell import LocalShell  # noqa: PLC0415

    try:
        names = list_partitions(LocalShell(), os.environ)
    except (EchelonError, OSError):
        return []
    return offer(names)(incomplete)


def complete_rule(incomplete: str) -> list[str]:
    """Offer the codes of lint's rules."""
    try:
        from echelon.lint.linting import RULES  # noqa: PLC0415
    except ModuleNotFoundError:
        return []  # tree-sitter is not installed
    codes = ["all", *(rule.code for rule in RULES)]
    return [code for code in codes if code.lower().startswith(incomplete.lower())]
