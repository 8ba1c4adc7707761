"""Messages to the user, beside results: lines on stderr."""

import sys

from echelon.core.terminal_escape import visible


def is_terminal() -> bool:
    """Tell whether stdout is a terminal."""
    return bool(sys.stdout) and sys.stdout.isatty()  # None when it was closed (>&-)


def note(text: str) -> None:
    """Print a message for the user."""
    if sys.stderr:  # None when it was closed (2>&-); print would then use stdout
        print(visible(text), file=sys.stderr)  # noqa: T201
