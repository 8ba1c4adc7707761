"""A command for a login host, encoded as one word that any login shell passes unchanged.

It is sent on standard input, where no other user of the host can read it.
"""

import base64
import json
from dataclasses import asdict

from echelon.core.frozen import frozen

MARK = b"\x1eechelon\n"
"""First line of a command's answer."""
LOST = 255
"""Exit code of ssh if there was no connection, or it broke."""
LIGHT = ("ps", "status", "why", "logs", "stop", "cancel")
"""Commands for which the variables that `login_environment.py` keeps are enough."""
FOLLOW, SUBMIT, SEND = "@follow", "@submit", "@send"
"""Commands that users cannot give: another machine sends them, and `cli/hosted.py` runs them."""


@frozen
class Call:
    """A command to run on the host."""

    argv: tuple[str, ...]
    """The words after `echelon`."""
    folder: str
    """Its working directory; `~` is the home directory there."""
    prints_output: bool = True
    """Whether it answers with its output as messages. Otherwise both sides exchange messages and
    data or, with `terminal`, it has a terminal of its own."""
    terminal: bool = False
    """Whether its output is shown in a terminal."""
    columns: int = 0
    lines: int = 0
    attached: bool = False
    """Whether it ends when the connection does: the other machine sends signs of life."""
    patience_s: float = 120.0
    """How long an attached command, or one with a stream, waits for data. The connection may be
    dead without a TCP reset."""

    @property
    def light(self) -> bool:
        """Whether it needs no login shell."""
        return self.prints_output and self.argv[:1] != () and self.argv[0] in LIGHT

    def encode(self) -> str:
        """Return the call as one word. Pure."""
        return base64.urlsafe_b64encode(json.dumps(asdict(self)).encode()).decode()

    @classmethod
    def decode(cls, word: str) -> "Call":
        """Return the call that a word encodes. Pure."""
        values = json.loads(base64.urlsafe_b64decode(word))
        return cls(**{**values, "argv": tuple(values["argv"])})
