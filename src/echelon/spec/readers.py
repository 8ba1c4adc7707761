"""Readers: convert a value as a user wrote it to its type. Pure.

Each takes a value from a file or the command line, and raises UsageError with a hint if it is
invalid.
"""

import difflib
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from echelon.core.frozen import frozen
from echelon.core.nodes import compress, expand
from echelon.core.units import format_duration, parse_duration, parse_memory
from echelon.errors import UsageError

MAIL_TYPES = (
    *("NONE", "BEGIN", "END", "FAIL", "REQUEUE", "ALL", "INVALID_DEPEND", "STAGE_OUT"),
    *("TIME_LIMIT", "TIME_LIMIT_90", "TIME_LIMIT_80", "TIME_LIMIT_50", "ARRAY_TASKS"),
)
_SIGNAL = re.compile(
    r"(?:([RB]{1,2}):)?(?:SIG)?([A-Z]+[12]?|[0-9]{1,3})(?:@([0-9]{1,5}))?", re.IGNORECASE
)
_ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._%+-]*@[A-Za-z0-9][A-Za-z0-9.-]*")


@dataclass(frozen=True, slots=True)
class NodeCount:
    """Minimum and maximum number of nodes."""

    low: int = 1
    high: int = 1

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}:{self.high}"


@frozen
class LimitSignal:
    """A warning before the time limit, as sbatch's `--signal` requests it."""

    number: int = signal.SIGUSR1
    lead_s: int = 60
    """How long before; 60 s is Slurm's own default."""
    reserved: bool = False
    """Whether the job may overlap a reservation (`R:`)."""


def text(raw: object) -> str:
    """Read text; a number counts as text."""
    if not isinstance(raw, str | int | float) or isinstance(raw, bool):
        raise UsageError(f"{raw!r} is not text", hint='write it in quotes, for example "gpu"')
    return str(raw)


def count(raw: object) -> int:
    """Read an integer."""
    if isinstance(raw, str) and raw.isdecimal() and raw.isascii() and len(raw) < 16:
        raw = int(raw)
    if isinstance(raw, int) and not isinstance(raw, bool) and 0 <= raw < 1 << 53:
        return raw
    raise UsageError(f"{raw!r} is not a whole number", hint="write 0 or more, for example 4")


def positive(raw: object) -> int:
    """Read an integer that is not 0."""
    if not (found := count(raw)):
        raise UsageError("0 is too few", hint="write 1 or more, or omit it for the default")
    return found


def nodes(raw: object) -> NodeCount:
    """Read `2`, or `2:4`."""
    low, colon, high = str(raw).partition(":")
    try:
        found = NodeCount(count(low), count(high if colon else low))
    except UsageError:
        found = NodeCount(0, 0)
    if not 1 <= found.low <= found.high:
        raise UsageError(f"{raw!r} is not a number of nodes", hint="write 2, or 2:4 for 2 to 4")
    return found


def memory(raw: object) -> int:
    """Read an amount of memory; return MiB."""
    if not (mib := parse_memory(str(raw))):
        raise UsageError(
            "0 means all of a node's memory to Slurm", hint="to request that, use --slurm mem=0"
        )
    return mib


def duration(raw: object) -> str:
    """Read a duration in Slurm's notation or a common one; return it in Slurm's."""
    return format_duration(parse_duration(str(raw))) if raw != "" else ""


def seconds(raw: object) -> int:
    """Read a short duration; a plain number is in seconds."""
    if isinstance(raw, int) or (isinstance(raw, str) and raw.isdecimal()):
        return count(raw)
    hint = "write 90 (seconds), 2m or 1h30m"  # unlike Slurm's durations, which are in minutes
    try:
        found = parse_duration(str(raw))
    except UsageError as error:
        raise UsageError(error.message, hint=hint) from error
    if found is None:
        raise UsageError("it cannot be unlimited", hint=hint)
    return found


def switch(raw: object) -> bool:
    """Read true or false."""
    known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if isinstance(raw, bool):
        return raw
    if str(raw).lower() in known:
        return known[str(raw).lower()]
    raise UsageError(f"{raw!r} is neither true nor false", hint="write true or false")


def hosts(raw: object) -> str:
    """Read a host list; return its shortest form."""
    return compress(expand(text(raw)))


def words(raw: object) -> tuple[str, ...]:
    """Read a list, or words separated by commas."""
    if isinstance(raw, str):
        return tuple(word for word in raw.split(",") if word)
    if isinstance(raw, Sequence):
        return tuple(text(word) for word in raw)
    raise UsageError(f"{raw!r} is not a list", hint='write ["a", "b"], or a,b on the command line')


def lines(raw: object) -> tuple[str, ...]:
    """Read a list, or one line."""
    return (raw,) if isinstance(raw, str) else words(raw)


@dataclass(frozen=True, slots=True)
class OneOf:
    """Reads one of several words."""

    choices: tuple[str, ...]

    def __call__(self, raw: object) -> str:
        if raw in self.choices:
            return str(raw)
        close = _closest(str(raw), self.choices)
        raise UsageError(
            f"{raw!r} is not one of {', '.join(self.choices)}",
            hint=f"did you mean '{close}'?"
            if close
            else f"write one of them, as in '{self.choices[0]}'",
        )


def mail_types(raw: object) -> tuple[str, ...]:
    """Read the events about which Slurm sends mail."""
    known = OneOf(MAIL_TYPES)
    return tuple(known(word.upper()) for word in words(raw))


def address(raw: object) -> str:
    """Read a mail address."""
    if raw == "" or (isinstance(raw, str) and _ADDRESS.fullmatch(raw)):
        return str(raw)
    raise UsageError(f"{raw!r} is not an address", hint="write one, as in me@example.org")


def table(raw: object) -> dict[str, str]:
    """Read a table of names and values."""
    if not isinstance(raw, Mapping):
        raise UsageError(f"{raw!r} is not a table", hint='write it as [env] and NAME = "value"')
    return {str(key): text(value) for key, value in raw.items()}


def limit_signal(raw: str) -> LimitSignal:
    """Read the value of sbatch's `--signal`: `USR1@90`, `B:TERM@120`, `15`."""
    found = _SIGNAL.fullmatch(raw)
    flags, name, lead_s = found.groups(default="") if found else ("", "", "")
    named = signal.Signals.__members__.get(f"SIG{name.upper()}", 0)
    number = int(name) if name.isdecimal() else int(named)
    if number not in signal.valid_signals():
        raise UsageError(
            f"signal: {raw!r} is not a signal with a time",
            hint="write USR1@90: the signal, and how many seconds before the time limit",
        )
    return LimitSignal(
        number=number,
        lead_s=int(lead_s or LimitSignal().lead_s),
        reserved="R" in flags.upper(),
    )


def is_signal(option: str) -> bool:
    """Tell whether an sbatch option is `--signal`, which may be abbreviated."""
    return len(option) > 1 and "signal".startswith(option)


def options(raw: object) -> dict[str, str]:
    """Read sbatch options with their values."""
    found = table(raw)
    for name, value in found.items():
        if is_signal(name):
            limit_signal(value)
    return found


def nearest(wrong: str, right: Sequence[str]) -> str:
    """Return a hint: the name that was probably meant, or all names."""
    close = _closest(wrong, right)
    return f"did you mean '{close}'?" if close else f"there are: {', '.join(right)}"


def _closest(wrong: str, right: Sequence[str]) -> str:
    return next(iter(difflib.get_close_matches(wrong, right, n=1, cutoff=0.6)), "")
