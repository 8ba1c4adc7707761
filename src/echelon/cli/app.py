"""The command line: all commands, the options before them, and errors of a call.

Each command is in a module, which is loaded when the command is called. A fast start matters twice
for a command on a login host: it starts on both machines.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from echelon._version import __version__
from echelon.cli import console
from echelon.cli.completion import handle_flags
from echelon.cli.help import LOOK, PREPARE, START, SectionedGroup
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

_MODULES = {
    "runs": ("submit", "run", "ps", "status", "logs", "stop", "cancel", "resume", "why"),
    "code": ("diff", "rerun"),
    "watch": ("watch",),
    "report": ("report", "export"),
    "dash": ("dash",),
    "fetch": ("fetch",),
    "clean": ("clean",),
    "lint": ("lint",),
    "doctor": ("doctor",),
    "nodes": ("nodes",),
    "init": ("init",),
    "options": ("script", "config"),
    "pack": ("pack",),
}
"""Module of this package → its commands, in the order of the help."""
_GROUPS = {"sweep": START, "checkpoint": LOOK, "sandbox": PREPARE, "image": PREPARE}
"""Modules whose commands have a second word → section of the help."""


class Commands(Mapping[str, Any]):
    """Commands by name, loaded when they are looked up."""

    def __init__(self) -> None:
        self._modules = {name: module for module, names in _MODULES.items() for name in names}
        self._modules |= {name: name for name in _GROUPS}
        self._loaded: dict[str, Any] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(self._modules[name], name)
        return self._loaded[name]


class LazyGroup(SectionedGroup):
    """The group of all commands."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        commands: Any = Commands()
        self.commands = commands


def _load(module: str, name: str) -> Any:
    part: typer.Typer = import_module(f"echelon.cli.{module}").app
    alone = typer.Typer(rich_markup_mode=None)
    if name in _GROUPS:
        alone.add_typer(part, rich_help_panel=_GROUPS[name])
    else:
        alone.registered_commands += [
            one for one in part.registered_commands if name == (one.name or _name(one.callback))
        ]
    return typer.main.get_group(alone).commands[name]


def _name(callback: Any) -> str:
    return typer.main.get_command_name(callback.__name__)


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
