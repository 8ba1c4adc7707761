"""Entry point of the command line: runs a command and reports its errors.

Imports stay light, because `echelon --help` must not wait for a library that it does not use. Each
handler imports what it calls, and help texts are plain for the same reason.
"""

import io
import os
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

from echelon._version import __version__
from echelon.cli import console
from echelon.cli.commands import LazyGroup
from echelon.cli.completion import handle_flags
from echelon.errors import EchelonError, NotPermittedError, UnavailableError, UsageError

EPILOG = (
    "Example: echelon submit --nodes 2 --gpus 4 train.py\n\n"
    "Exit codes: 0 success, 2 usage error, 66 not found, 69 unavailable, 70 internal error, "
    "73 conflict, 75 stopped and resumable, 77 not permitted, 124 timed out, 130 interrupted."
)

EXTRAS = {
    **dict.fromkeys(("torch", "numpy", "safetensors"), "train"),
    **dict.fromkeys(("starlette", "uvicorn", "plotly"), "dash"),
    **dict.fromkeys(("tree_sitter", "tree_sitter_bash"), "lint"),
    "PIL": "data",
}
"""The extra that installs a module."""
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


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        # As with Ctrl-C, handlers clean up what they were creating. Signals that nohup ignores
        # stay ignored.
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, lambda n, _frame: sys.exit(128 + n))
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # A rank may print characters that this terminal cannot show; that must not end a run.
        sys.stdout.reconfigure(errors="replace")
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command, print its errors, and return its exit code."""
    wanted = os.environ.get("ECHELON_DEBUG", "").lower()
    debug = arguments[:1] == ["--debug"] or wanted not in ("", "0", "false", "no", "off")
    try:
        if handle_flags(arguments):
            return 0
        code = app(arguments or ["--help"], prog_name="echelon", standalone_mode=False)
        if sys.stdout:  # None when it was closed (>&-)
            sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        return _reader_left()
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # typer exits with 1
            return _reader_left()
        raise
    except Exception as error:  # noqa: BLE001  every error is reported here
        if debug:
            console.note(traceback.format_exc())
        failure = explain(error, arguments)
        console.print_error(failure)
        return failure.exit_code
    return code if isinstance(code, int) else 0


def _explain_call(error: typer.TyperException, arguments: Sequence[str]) -> UsageError:
    """Describe what is wrong with a call, with a valid example as the hint."""
    path, command = _find_command(arguments)
    message = error.format_message().strip().rstrip(".") or "missing command"
    for theirs, ours in _PLAINER.items():
        message = message.replace(theirs, ours)
    found = re.search(r"^\s*Example: (.*)$", command.help or "", re.MULTILINE)
    example = f"for example: {found[1]}; " if found else ""
    return UsageError(message[:1].lower() + message[1:], hint=f"{example}see {path} --help")


def _find_command(arguments: Sequence[str]) -> tuple[str, Any]:
    """Return how the called command is spelled, and the command."""
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


def _reader_left() -> int:
    """Return the exit code for a closed pipe, and discard what is still buffered."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 128 + signal.SIGPIPE


def explain(error: Exception, arguments: Sequence[str]) -> EchelonError:
    """Convert any error to the form that users see."""
    if isinstance(error, EchelonError):
        return error
    if isinstance(error, typer.TyperException):
        return _explain_call(error, arguments)
    if isinstance(error, OSError):
        return _explain_files(error)
    module = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
    if extra := EXTRAS.get(module.partition(".")[0]):
        return UnavailableError(
            f"this command requires {module}, which is not installed",
            hint=f"pip install 'echelon[{extra}]'",
        )
    return EchelonError(
        f"unexpected {type(error).__name__}: {error}",
        hint="this is a bug: please report it with the output of `echelon --debug …`",
    )


def _explain_files(error: OSError) -> EchelonError:
    if isinstance(error, FileNotFoundError) and error.filename is None:
        return UsageError(
            "the current directory has been deleted", hint="change to another one: cd"
        )
    if isinstance(error, PermissionError):
        return NotPermittedError(
            f"{error.filename}: {error.strerror}", hint="check its owner and mode: ls -ld"
        )
    return UnavailableError(
        f"{error.filename or 'standard output'}: {error.strerror}",
        hint="check the path (ls -ld) and free disk space (df -h)",
    )
