"""What a rank has recorded about its collectives, reduced to what explains a hang. Pure.

The record is that of torch's Flight Recorder as JSON, format 2.10 (torch 2.11 and 2.13).
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, field, replace
from typing import Any

from echelon.core.frozen import frozen
from echelon.core.records import parse_json

BACKENDS = ("nccl", "gloo")
_KEPT = 4
"""Number of calls that are kept of a group: the oldest unfinished, the newest finished."""
_SIZES = 4
"""Number of sizes that are kept of a collective."""
_NS = 1e9
_NAME = 80
"""Longest name that is kept."""
_DEFAULT = "default_pg"
DEFAULT = "the default group"


@frozen
class CollectiveCall:
    """A collective that a rank has called."""

    number: int
    """Counted from 1 in each group; point-to-point calls are counted separately."""
    name: str
    sizes: list[list[int]] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    started: bool = False
    """Whether the GPU is known to have started it."""


@frozen
class GroupTrace:
    """A process group, as one of its ranks sees it."""

    ranks: list[int] = field(default_factory=list)
    """Its members; empty for the default group, and if the record does not say."""
    called: int = 0
    """Number of the last collective that the rank has called,"""
    done: int = 0
    """and of the last one that has finished there."""
    pending: list[CollectiveCall] = field(default_factory=list)
    recent: list[CollectiveCall] = field(default_factory=list)
    """The last ones that have finished."""
    waits: list[CollectiveCall] = field(default_factory=list)
    """Unfinished sends and receives."""


@frozen
class Trace:
    """What one rank has recorded."""

    groups: dict[str, GroupTrace] = field(default_factory=dict)
    """By name, which is the same on all ranks."""
    idle_s: float = 0.0
    """Time since a collective was last called or finished."""
    silent: bool = False
    """The rank did not answer."""

    def encode(self) -> dict[str, Any]:
        return asdict(self)

    def shorten(self, calls: int) -> "Trace":
        """Keep fewer calls of each group."""
        groups = {
            name: replace(
                group,
                pending=group.pending[: max(1, calls)],
                recent=group.recent[-calls:] if calls else [],
            )
            for name, group in self.groups.items()
        }
        return replace(self, groups=groups)


def encode_traces(traces: Mapping[int, Trace], room: int) -> dict[str, dict[str, Any]]:
    """Return traces as part of a message, shortened to fit; empty if they do not even then."""
    for calls in (_KEPT, 1, 0):
        found = {str(rank): trace.shorten(calls).encode() for rank, trace in traces.items()}
        if len(json.dumps(found)) <= room:
            return found
    return {}


def decode_trace(record: Mapping[str, Any]) -> Trace:
    """Return a trace that was sent as a message."""
    groups = {
        name: GroupTrace(
            **{
                **group,
                **{
                    calls: [CollectiveCall(**call) for call in group[calls]]
                    for calls in ("pending", "recent", "waits")
                },
            }
        )
        for name, group in record["groups"].items()
    }
    return Trace(groups=groups, idle_s=record["idle_s"], silent=record["silent"])


def read_trace(record: bytes, *, now_s: float) -> Trace:
    """Reduce a rank's record, which was taken at `now_s` by its clock.

    Raises:
        ValueError: it is not such a record.
    """
    found = parse_json(record)
    groups: dict[str, GroupTrace] = {}
    last_s = 0.0
    try:
        for backend in BACKENDS:
            part = found.get(backend) or {}
            entries = part.get("entries") or []
            members = {name: one["ranks"] for name, one in part.get("pg_config", {}).items()}
            by_group: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
            for entry in entries:
                number, text = entry["process_group"]
                by_group.setdefault((str(number), str(text)), []).append(entry)
            for (number, text), own in by_group.items():
                listed = "" if text == _DEFAULT else members.get(number, "")
                groups[_name(number, text, backend)] = _read_group(own, listed)
            last_s = max(last_s, *(_last_s(entry) for entry in entries), 0.0)
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise ValueError(f"unexpected record of collectives: {error!r}") from error
    return Trace(groups=groups, idle_s=max(0.0, now_s - last_s) if last_s else 0.0)


def _name(number: str, text: str, backend: str) -> str:
    """Return a group's name, for users too: the same group may have a backend for each device."""
    name = DEFAULT if text == _DEFAULT else f"group {number[:_NAME]}"
    more = [] if text in ("", "undefined", _DEFAULT) else [text[:_NAME]]
    more += [] if backend == BACKENDS[0] else [backend]
    return f"{name} ({', '.join(more)})" if more else name


def _last_s(entry: Mapping[str, Any]) -> float:
    names = ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")
    return max(int(entry.get(name) or 0) for name in names) / _NS


def _read_group(entries: Iterable[Mapping[str, Any]], members: str) -> GroupTrace:
    collectives = [entry for entry in entries if not entry["is_p2p"]]
    others = [entry for entry in entries if entry["is_p2p"]]
    ranks = parse_json(members.encode()) if members else []
    return GroupTrace(
        ranks=[int(rank) for rank in ranks],
        called=max((entry["collective_seq_id"] for entry in collectives), default=0),
        done=max((e["collective_seq_id"] for e in collectives if _is_done(e)), default=0),
        pending=_read_calls(collectives, "collective_seq_id", done=False)[:_KEPT],
        recent=_read_calls(collectives, "collective_seq_id", done=True)[-_KEPT:],
        waits=_read_calls(others, "p2p_seq_id", done=False)[:_KEPT],
    )


def _is_done(entry: Mapping[str, Any]) -> bool:
    return bool(entry["retired"]) or entry["state"] == "completed"  # gloo only retires


def _read_calls(
    entries: Iterable[Mapping[str, Any]], number: str, *, done: bool
) -> list[CollectiveCall]:
    """Return the finished or unfinished calls, in the order of their numbers."""
    found = [entry for entry in entries if _is_done(entry) == done]
    return [
        CollectiveCall(
            number=int(entry[number]),
            name=str(entry["profiling_name"]).partition(":")[2][:_NAME],
            sizes=[list(size) for size in entry["input_sizes"][:_SIZES]],
            types=[str(kind) for kind in entry["input_dtypes"][:_SIZES]],
            started=done or entry["state"] == "started",
        )
        for entry in sorted(found, key=lambda entry: int(entry[number]))
    ]
