"""All errors that Echelon raises on purpose, each with a message, a hint and an exit code.

    EchelonError                 70  an internal error, unless it is one of these:
    ├── UsageError                2  the request is invalid: a flag, a value or a given file
    ├── NotFoundError            66  a run, sandbox or node does not exist
    ├── UnavailableError         69  something external is missing or does not respond
    │   ├── MissingProgramError      a program is not installed
    │   └── CommandError             a program failed
    ├── ConflictError            73  it already exists, or another process is using it
    ├── NotPermittedError        77  the user lacks permission
    ├── RunFailedError            1  a run whose result was asked for has failed
    └── TimedOutError           124  it did not happen in time, as timeout(1) reports it

The numbers are those of sysexits.h, so that they differ from what a training script usually
returns; 2 is the usual code for a wrong call. 75 (EX_TEMPFAIL) is reserved for jobs that stopped
before their work was done and can be resumed. docs/exit-codes.md documents them for users.
"""

from collections.abc import Sequence


class EchelonError(Exception):
    """Base class; `str()` is one line that says what happened."""

    exit_code = 70

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        """The fix, as a command to paste where possible."""


class UsageError(EchelonError):
    exit_code = 2


class NotFoundError(EchelonError):
    exit_code = 66


class UnavailableError(EchelonError):
    exit_code = 69


class MissingProgramError(UnavailableError):
    def __init__(self, program: str, *, hint: str = "") -> None:
        super().__init__(
            f"the program '{program}' is not installed or not on PATH",
            hint=hint or "install it, or add its directory to PATH",
        )
        self.program = program


class CommandError(UnavailableError):
    """A program exited with a code other than 0."""

    def __init__(self, argv: Sequence[str], code: int, stderr: str, *, hint: str = "") -> None:
        said = [line.strip() for line in stderr.splitlines() if line.strip()]
        super().__init__(
            f"'{argv[0]}' failed with exit code {code}: {said[-1] if said else 'no error message'}",
            hint=hint or f"the full command was: {' '.join(argv)}",
        )
        self.code = code
        self.stderr = stderr


class ConflictError(EchelonError):
    exit_code = 73


class NotPermittedError(EchelonError):
    exit_code = 77


class TimedOutError(EchelonError):
    exit_code = 124


class RunFailedError(EchelonError):
    """Raised by `Run.result()`; a traceback of the rank that failed is among its notes."""

    exit_code = 1
