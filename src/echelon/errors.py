"""Every error that Echelon raises on purpose. Each has a message, a hint (the fix) and an exit
code.

    EchelonError                 70  internal error, unless it is one of these:
    ├── UsageError                2  the request is wrong: a flag, a value, a file that was given
    ├── NotFoundError            66  what was named is not there: a run, a sandbox, a node
    ├── UnavailableError         69  something outside is missing or does not answer
    │   ├── MissingProgramError      a program that is not installed
    │   └── CommandError             a program that failed
    ├── ConflictError            73  it exists already, or somebody else is at it
    ├── NotPermittedError        77  this user may not
    └── TimedOutError           124  it did not happen in time, as timeout(1) reports it

The numbers are those of sysexits.h, so that they differ from what a training script usually
returns; 2 is what every command line uses for a wrong call. 75 (EX_TEMPFAIL) is reserved for jobs
that stopped before their work was done and can be resumed. docs/exit-codes.md tells users.
"""

from collections.abc import Sequence


class EchelonError(Exception):
    """Base of all; `str()` is the one line that says what happened."""

    exit_code = 70

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        """What to do about it, as text to paste where possible."""


class UsageError(EchelonError):
    exit_code = 2


class NotFoundError(EchelonError):
    exit_code = 66


class UnavailableError(EchelonError):
    exit_code = 69


class MissingProgramError(UnavailableError):
    def __init__(self, program: str, *, hint: str = "") -> None:
        super().__init__(
            f"the program '{program}' is not installed, or not on PATH",
            hint=hint or f"install it, or add its folder to PATH ({program} --version should work)",
        )
        self.program = program


class CommandError(UnavailableError):
    """A program ended with a code other than 0."""

    def __init__(self, argv: Sequence[str], code: int, stderr: str, *, hint: str = "") -> None:
        said = [line.strip() for line in stderr.splitlines() if line.strip()]
        super().__init__(
            f"'{argv[0]}' failed with code {code}: {said[-1] if said else 'it said nothing'}",
            hint=hint or f"the whole command was: {' '.join(argv)}",
        )
        self.code = code
        self.stderr = stderr


class ConflictError(EchelonError):
    exit_code = 73


class NotPermittedError(EchelonError):
    exit_code = 77


class TimedOutError(EchelonError):
    exit_code = 124
