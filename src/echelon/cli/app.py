"""The command line: all commands, the options before them, and errors of a call."""

import re
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from echelon._version import __version__
from echelon.cli import console
from echelon.cli.commands import LazyGroup
from echelon.cli.completion import handle_flags
from echelon.errors import UsageError

EPILOG = (
    "Example: echelon submit --nodes 2 --gpus 4 train.py\n\n"
    "Exit codes: 0 success, 2 usage error, 66 not found, 69 unavailable, 70 internal error, "
    "73 conflict, 75 stopped and resumable, 77 not permitted, 124 timed out, 130 interrupted."
)

_PLAINER = {
    "is not a valid int range": "is not a whole number",
    "is not a valid int": "is not a whole number",
    "is not a valid float range": "is not a number",
    "is not a valid float": "is not a number",
    # typer 0.29 and newer
    "Input should be a valid integer, unable to parse string as an integer": "not a whole number",
    "Input should be a valid number, unable to parse string as a number": "not a number",
    "Input should be": "must be",
}

app = typer.Typer(
    name="echelon",
    help="Take a PyTorch training script from a laptop to many nodes of a Slurm cluster.",
    epilog=EPILOG,
    cls=LazyGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        console.print_result(f"echelon {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", envvar="ECHELON_DEBUG", help="Show a traceback with every error."),
    ] = False,
) -> None:
    pass


def call(arguments: list[str]) -> int:
    """Run one command, and return its exit code.

    Raises:
        UsageError: the call is wrong.
        KeyboardInterrupt: the user ended a question.
    """
    try:
        if handle_flags(arguments):
            return 0
        code = app(arguments or ["--help"], prog_name="echelon", standalone_mode=False)
    except typer.Abort as error:
        raise KeyboardInterrupt from error
    except typer.TyperException as error:
        raise _explain_call(error, arguments) from error
    return code if isinstance(code, int) else 0


def _explain_call(error: typer.TyperException, arguments: Sequence[str]) -> UsageError:
    """Return the error of an invalid call, with a valid example as the hint."""
    path, command = _find_command(arguments)
    message = error.format_message().strip().rstrip(".") or "missing command"
    for theirs, ours in _PLAINER.items():
        message = message.replace(theirs, ours)
    found = re.search(r"^\s*Example: (.*)$", command.help or "", re.MULTILINE)
    example = f"for example: {found[1]}; " if found else ""
    return UsageError(message[:1].lower() + message[1:], hint=f"{example}see {path} --help")


def _find_command(arguments: Sequence[str]) -> tuple[str, Any]:
    """Return the words that select the called command, and the command."""
    command: Any = typer.main.get_command(app)
    path = ["echelon"]
    for word in arguments:
        if word.startswith("-") and len(path) == 1:
            continue  # --debug
        if word not in getattr(command, "commands", {}):
            break
        command = command.commands[word]
        path.append(word)
    return " ".join(path), command
