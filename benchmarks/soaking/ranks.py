"""Find the ranks of a training by the files they write to its folder."""

import json
from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True)
class Rank:
    turn: str
    """The set of ranks that it belongs to."""
    host: str
    pid: int
    """Pid in its host's PID namespace."""


def living_ranks(folder):
    """Return the newest set of ranks; some may have ended."""
    found = []
    for path in folder.glob("where-*"):
        with suppress(OSError, ValueError, TypeError):  # still being written
            found.append((path.stat().st_mtime, Rank(**json.loads(path.read_text()))))
    if not found:
        return []
    newest = max(found, key=lambda pair: pair[0])[1].turn
    return sorted((rank for _, rank in found if rank.turn == newest), key=lambda rank: rank.host)


def last_step(folder):
    """Return the time and the number of the newest step, reading only the end of the file."""
    newest = (0.0, 0)
    for path in folder.glob("consumed-*"):
        with path.open("rb") as lines:
            lines.seek(max(0, path.stat().st_size - 2000))
            for line in lines.read().splitlines():
                with suppress(ValueError, TypeError):
                    at_s, _, step, _ = json.loads(line)
                    newest = max(newest, (at_s, step))
    return newest
