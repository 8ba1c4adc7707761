"""How many collectives each rank has launched, by NCCL's own count. Pure.

NCCL keeps these counts itself (its RAS subsystem, since 2.24; in JSON since 2.28), in a thread that
needs no interpreter lock. So they are known even of a rank that does not answer, or cannot record.
"""

import json
from collections.abc import Mapping
from typing import Any

from echelon.core.records import parse_json

Counts = dict[int, dict[str, int]]
"""By rank: its number of calls, by NCCL's name of the collective."""


def read_counts(status: bytes, pids: Mapping[int, int]) -> Counts:
    """Return the counts of all ranks of a job.

    Args:
        status: NCCL's answer, about every communicator that it knows.
        pids: process ids of some of the job's ranks; NCCL may have answered about another job.

    Raises:
        ValueError: it is not such an answer.
    """
    found: Counts = {}
    try:
        own = [one for one in parse_json(status)["communicators"] if _is_own(one, pids)]
        # Ranks are numbered within each communicator: as in the job in those of the job's size.
        world = max((one["size"] for one in own), default=0)
        for one in own:
            for rank in one["ranks"] if one["size"] == world else []:
                counts = found.setdefault(int(rank["rank"]), {})
                for name, count in rank["collective_counts"].items():
                    counts[str(name)] = counts.get(str(name), 0) + int(count)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"unexpected answer of NCCL: {error!r}") from error
    return {rank: {name: n for name, n in counts.items() if n} for rank, counts in found.items()}


def _is_own(communicator: Mapping[str, Any], pids: Mapping[int, int]) -> bool:
    known = [rank for rank in communicator["ranks"] if int(rank["rank"]) in pids]
    return bool(known) and all(pids[int(rank["rank"])] == rank["pid"] for rank in known)


def encode_counts(counts: Counts, room: int) -> dict[str, dict[str, int]]:
    """Return counts as part of a message; empty if they do not fit."""
    found = {str(rank): own for rank, own in counts.items()}
    return found if len(json.dumps(found)) <= room else {}
