"""Memory sizes, durations and counts, in Slurm's notation and in common ones.

Throughout Echelon, memory is in MiB and time in seconds; these functions convert.
"""

import re
from collections.abc import Sequence

from echelon.errors import UsageError

_MEMORY = re.compile(r"(?P<number>\d{1,15})(?P<unit>[KMGT]?)B?", re.IGNORECASE | re.ASCII)
_MIB_PER_UNIT = {"M": 1, "G": 1024, "T": 1024 * 1024}

_CLOCK = re.compile(
    r"(?:(?P<days>\d{1,9})-)?(?P<first>\d{1,9})(?::(?P<second>\d{1,9}))?(?::(?P<third>\d{1,9}))?",
    re.ASCII,
)
_WORDS = re.compile(
    r"(?:(?P<d>\d{1,9})d)?(?:(?P<h>\d{1,9})h)?(?:(?P<m>\d{1,9})m(?:in)?)?(?:(?P<s>\d{1,9})s)?",
    re.IGNORECASE | re.ASCII,
)
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400


def parse_memory(text: str) -> int:
    """Return MiB. A number without a unit is MiB, as in Slurm; KiB are rounded up.

    Raises:
        UsageError: not a size that Slurm accepts.
    """
    match = _MEMORY.fullmatch(text.strip())
    if not match or (text.strip()[-1:] in "bB" and not match["unit"]):
        raise UsageError(
            f"'{text}' is not a memory size",
            hint="write a whole number and K, M, G or T, for example 64G",
        )
    number, unit = int(match["number"]), match["unit"].upper() or "M"
    return -(-number // 1024) if unit == "K" else number * _MIB_PER_UNIT[unit]


def format_memory(mib: int) -> str:
    """Return the shortest exact form: `65536` → `64G`."""
    for unit in ("T", "G"):
        if mib and mib % _MIB_PER_UNIT[unit] == 0:
            return f"{mib // _MIB_PER_UNIT[unit]}{unit}"
    return f"{mib}M"


def parse_duration(text: str) -> int | None:
    """Return seconds, or None for no limit.

    Slurm's forms (`90` minutes, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS`, `UNLIMITED`)
    and common ones (`45s`, `30min`, `2h`, `1h30m`, `2d12h`).

    Raises:
        UsageError: not a duration.
    """
    stripped = text.strip()
    if stripped.upper() in ("UNLIMITED", "INFINITE"):
        return None
    if match := _CLOCK.fullmatch(stripped):
        return _clock_seconds(match)
    if stripped and (match := _WORDS.fullmatch(stripped)):
        parts = match.groupdict(default="0")
        return (
            int(parts["d"]) * _DAY_S
            + int(parts["h"]) * _HOUR_S
            + int(parts["m"]) * _MINUTE_S
            + int(parts["s"])
        )
    raise UsageError(
        f"'{text}' is not a duration",
        hint="write 90 (minutes), 01:30:00, 2-12:00:00, 1h30m or UNLIMITED",
    )


def _clock_seconds(match: re.Match[str]) -> int:
    first, second, third = (int(match[name] or 0) for name in ("first", "second", "third"))
    if match["days"] is not None:
        return int(match["days"]) * _DAY_S + first * _HOUR_S + second * _MINUTE_S + third
    if match["third"] is not None:
        return first * _HOUR_S + second * _MINUTE_S + third
    return first * _MINUTE_S + second


def format_duration(seconds: int | None) -> str:
    """Return Slurm's `D-HH:MM:SS`, without the days if there are none."""
    if seconds is None:
        return "UNLIMITED"
    days, rest = divmod(seconds, _DAY_S)
    clock = f"{rest // _HOUR_S:02}:{rest % _HOUR_S // _MINUTE_S:02}:{rest % _MINUTE_S:02}"
    return f"{days}-{clock}" if days else clock


def render_time(seconds: float) -> str:
    """Format a duration for people."""
    whole = max(0, round(seconds))
    if whole < 90:
        return f"{whole} s"
    if whole < 5400:
        return f"{whole // 60} min {whole % 60} s" if whole < 600 else f"{round(whole / 60)} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def render_age(seconds: float) -> str:
    """Format how long ago something was, in its largest unit."""
    whole = max(0, int(seconds))
    for unit_s, most, name in ((1, 60, "s"), (_MINUTE_S, 60, "min"), (_HOUR_S, 48, "h")):
        if whole < most * unit_s:
            return f"{whole // unit_s} {name} ago"
    return f"{whole // _DAY_S} days ago"


def format_bytes(count: float) -> str:
    """Format an amount of data for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def list_names(names: Sequence[str], most: int = 8) -> str:
    """Return names separated by commas, and how many more there are: `a, b and 3 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1."""
    ending = "es" if noun.endswith("s") else "s"
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{ending}"
