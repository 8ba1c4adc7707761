"""A command for a login host, as one word: no login shell has to parse it.

It travels on standard input, where no other user of the host can read it.
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
"""Commands that need no environment of a login but what `login_environment.py` keeps."""
FOLLOW, SUBMIT, SEND = "@follow", "@submit", "@send"
"""Commands that only another machine gives: `cli/hosted.py` executes them."""


@frozen
class Call:
    """A command to run on the host."""

    argv: tuple[str, ...]
    """As after `echelon`."""
    folder: str
    """Its working directory; `~` is the home directory there."""
    framed: bool = True
    """It answers with frames: lines of JSON that say what it prints. Otherwise its input and output
    are a stream of its own."""
    terminal: bool = False
    """Its output is shown in a terminal."""
    columns: int = 0
    lines: int = 0
    attached: bool = False
    """It ends when we do."""

    patience_s: float = 120.0
    """Without a byte from us for so long while it waits for one, a command with a stream ends: the
    connection is dead, and nobody has told it so."""

    @property
    def light(self) -> bool:
        """Whether it needs no login shell."""
        return self.framed and self.argv[:1] != () and self.argv[0] in LIGHT

    def encode(self) -> str:
        """Return it as one word. Pure."""
        return base64.urlsafe_b64encode(json.dumps(asdict(self)).encode()).decode()

    @classmethod
    def decode(cls, word: str) -> "Call":
        """Return the call of a word. Pure."""
        values = json.loads(base64.urlsafe_b64decode(word))
        return cls(**{**values, "argv": tuple(values["argv"])})
