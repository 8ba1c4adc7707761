"""Make untrusted text safe for a terminal: a log, a name or a server's answer may contain control
sequences that move the cursor, change the title or hide what was printed before.

Colours are kept, everything else is escaped. `cli/console.py` applies this to all its output.
"""

import re

_RESET = "\x1b[0m"
_COLOUR = r"\x1b\[[0-9;:]*m"
_STEERING = re.compile(
    rf"({_COLOUR})"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f"  # all control characters but tab and newline
    r"\u2028-\u202e\u2066-\u2069"  # line separators, and text direction overrides
    r"\ud800-\udfff]"  # bytes that were not UTF-8
)


def visible(text: str) -> str:
    """Escape the control characters of a text, and end its colours; newlines are kept."""
    shown = _STEERING.sub(lambda found: found[1] or _escape(found[0]), text)
    colours = re.findall(_COLOUR, shown) if "\x1b" in shown else []
    return shown + _RESET if colours and colours[-1] not in (_RESET, "\x1b[m") else shown


def in_one_line(text: str) -> str:
    """Return a text as one line: everything unprintable is escaped, newlines and colours too."""
    return text if text.isprintable() else "".join(map(_escape, text))


def is_redrawn(line: str) -> bool:
    """Tell whether the cursor goes back to a line: a nested progress bar draws it again."""
    return line.endswith("\x1b[A")


def settled(line: str) -> str:
    """Return the final state of a line that a progress bar has redrawn with carriage returns."""
    if "\r" not in line:
        return line
    parts = [part for part in line.split("\r") if part.strip()]
    return f"… {parts[-1]}" if len(parts) > 1 else "".join(parts)


def _escape(one: str) -> str:
    return one if one.isprintable() else repr(one)[1:-1]
