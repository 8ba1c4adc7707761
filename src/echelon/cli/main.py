"""The frame of the command line: the commands there are, and what becomes of their errors.

Imports stay light: `echelon --help` must not wait for a library that it does not use. Each
handler imports what it calls, and help texts are plain for the same reason.
"""

import io
import os
import signal
import sys
import traceback
from typing import Annotated, NoReturn

import typer

from echelon._version import __version__
from echelon.cli import (
    console,
    dash,
    doctor,
    export,
    lint,
    nodes,
    pack,
    report,
    request,
    runs,
    sandbox,
    watch,
)
from echelon.errors import EchelonError, NotPermittedError, UnavailableError, UsageError

EPILOG = (
    "Exit codes: 0 done, 2 wrong call, 66 not found, 69 unavailable, 70 our fault, 73 conflict, "
    "75 timed out, 77 not permitted, 130 interrupted."
)

app = typer.Typer(
    name="echelon",
    help="Take a PyTorch training script from a laptop to many nodes of a Slurm cluster.",
    epilog=EPILOG,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(request.app)
app.add_typer(runs.app)
app.add_typer(watch.app)
app.add_typer(report.app)
app.add_typer(dash.app)
app.add_typer(export.app)
app.add_typer(nodes.app)
app.add_typer(doctor.app)
app.add_typer(pack.app)
app.add_typer(lint.app)
app.add_typer(sandbox.app)


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
            "--version", callback=_print_version, is_eager=True, help="Print it and exit."
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
        # As with Ctrl-C: whoever was building something takes it down again. What nohup ignores
        # stays ignored.
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, lambda n, _frame: sys.exit(128 + n))
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # A rank may print what this terminal cannot: that is no reason to end a run.
        sys.stdout.reconfigure(errors="replace")
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; errors have been printed."""
    wanted = os.environ.get("ECHELON_DEBUG", "").lower()
    debug = arguments[:1] == ["--debug"] or wanted not in ("", "0", "false", "no", "off")
    try:
        code = app(arguments or ["--help"], prog_name="echelon", standalone_mode=False)
        if sys.stdout:  # None when it was closed (>&-)
            sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        return _reader_left()
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # typer's own word for it is 1
            return _reader_left()
        raise
    except Exception as error:  # noqa: BLE001  the one place where every error ends
        if debug:
            traceback.print_exc()
        failure = _explain(error)
        console.print_error(failure)
        return failure.exit_code
    return code if isinstance(code, int) else 0


def _reader_left() -> int:
    """Return the code for `| head`. What is still buffered must not complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 128 + signal.SIGPIPE


def _explain(error: Exception) -> EchelonError:
    """Return any error in the one form that users see."""
    if isinstance(error, EchelonError):
        return error
    if isinstance(error, typer.TyperException):
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "echelon"
        message = error.format_message().strip().rstrip(".") or "a command is missing"
        return UsageError(message[:1].lower() + message[1:], hint=f"see {command} --help")
    if isinstance(error, PermissionError):
        return NotPermittedError(
            f"may not use {error.filename}: {error.strerror}", hint="check who owns it (ls -ld)"
        )
    if isinstance(error, OSError):
        return UnavailableError(
            f"cannot use {error.filename or 'the output'}: {error.strerror}",
            hint="check that the path is right and the disk is not full (ls -ld, df -h)",
        )
    return EchelonError(
        f"unexpected {type(error).__name__}: {error}",
        hint="a fault of Echelon's: please report what the command prints as `echelon --debug …`",
    )
