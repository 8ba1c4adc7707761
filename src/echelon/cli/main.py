"""Entry point of the command line: runs a command and reports its errors.

Imports stay light, because no command must wait for a library that it does not use. Each handler
imports what it calls, and help texts are plain for the same reason.
"""

import errno
import io
import os
import shlex
import signal
import sys
from typing import NoReturn

from echelon.cli import console
from echelon.cli.quick import run_quickly
from echelon.core.extras import find_extra, install_command
from echelon.errors import EchelonError, NotPermittedError, UnavailableError, UsageError


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        # As with Ctrl-C, handlers clean up what they were creating. Signals that nohup ignores
        # stay ignored.
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, lambda n, _frame: sys.exit(128 + n))
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # A character that the terminal cannot show must not end the command: ranks print any.
        sys.stdout.reconfigure(errors="replace")
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command, print its errors, and return its exit code."""
    wanted = os.environ.get("ECHELON_DEBUG", "").lower()
    debug = arguments[:1] == ["--debug"] or wanted not in ("", "0", "false", "no", "off")
    try:
        code = run_quickly(arguments)
        if code is None:
            from echelon.cli.app import call  # noqa: PLC0415  typer is slow to load

            code = call(arguments)
        console.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return _reader_left()
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # typer exits with 1
            return _reader_left()
        raise
    except Exception as error:  # noqa: BLE001  every error is reported here
        if debug:
            import traceback  # noqa: PLC0415

            console.note(traceback.format_exc())
        failure = explain(error)
        console.print_error(failure)
        return failure.exit_code
    return code


def _reader_left() -> int:
    """Return the exit code for a closed pipe."""
    _discard_output()
    return 128 + signal.SIGPIPE


def _discard_output() -> None:
    """Discard buffered output, which Python would otherwise write when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def explain(error: Exception) -> EchelonError:
    """Convert any error to the form that users see."""
    if isinstance(error, EchelonError):
        return error
    if isinstance(error, OSError):
        return _explain_files(error)
    module = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
    if extra := find_extra(module):
        return UnavailableError(
            f"this command requires {module}, which is not installed", hint=install_command(extra)
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
    path = error.filename
    what = path or ("" if _can_print() else "standard output")
    message = f"{what}: {error.strerror}" if what else str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "free some space (df -h, quota), or use another directory"
        return UnavailableError(message, hint=hint)
    hint = "show where it failed: echelon --debug …"
    if path:
        hint = f"check its owner and mode: ls -ld {shlex.quote(str(path))}"
    return (NotPermittedError if isinstance(error, PermissionError) else UnavailableError)(
        message, hint=hint
    )


def _can_print() -> bool:
    """Tell whether buffered output can be written to standard output; discard it if not."""
    try:
        console.flush()
    except OSError:
        _discard_output()
        return False
    return True
