"""Status of a run's nodes on Ray: the driver writes it, controller and client read it."""

import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from echelon.core.frozen import frozen
from echelon.core.records import parse_json, read_bytes

NODES = "nodes.json"
"""The status file, in the attempt's directory."""
CANCELLED = "cancelled"
"""A file there that says that the user cancelled the run; Ray has no signal for that."""
FRESH_S = 0.25
"""How long the file is not read again, however many nodes are asked about."""


@frozen
class NodePlace:
    """The node of Ray that has one of the run's places, or had it last."""

    id: str
    name: str
    address: str
    here: bool = True
    """Whether it is alive; if not, Ray looks for another one."""
    fault: str = ""
    """Why no agent can run there."""


@frozen
class Status:
    """What the driver reports."""

    pid: int
    """The driver. The status is valid as long as it lives."""
    waits: str = ""
    """What it waits for; empty once it has nodes."""
    places: Mapping[int, NodePlace] = field(default_factory=dict)
    """By place; complete once it has nodes."""

    def render(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    def names(self) -> list[str]:
        """Return the names of the nodes, in order."""
        return [self.places[node].name for node in sorted(self.places)]


def parse_status(text: str) -> Status:
    """Parse what a driver has written.

    Raises:
        ValueError: it is damaged.
    """
    match parse_json(text):
        case {"pid": int(pid), "waits": str(waits), "places": dict(places)} if 0 < pid < 1 << 31:
            found = {int(node): _parse_place(place) for node, place in places.items()}
            return Status(pid=pid, waits=waits, places=found)
    raise ValueError("not the status of a Ray driver")


def _parse_place(record: Any) -> NodePlace:
    match record:
        case {"id": str(one), "name": str(name), "address": str(address)}:
            here, fault = record.get("here") is not False, str(record.get("fault", ""))
            return NodePlace(id=one, name=name, address=address, here=here, fault=fault)
    raise ValueError("not the record of a place")


def read_status(folder: Path) -> Status | None:
    """Return the last status in an attempt's directory; None if there is none."""
    try:
        return parse_status(read_bytes(folder / NODES).decode())
    except (OSError, ValueError):
        return None


def is_current(status: Status) -> bool:
    """Tell whether the driver that wrote it is still running."""
    with suppress(OSError):
        os.kill(status.pid, 0)
        return True
    return False


class StatusReader:
    """Reads the status for a controller, which asks for each of its nodes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._status: Status | None = None
        self._read_s = float("-inf")

    def read(self) -> Status | None:
        if time.monotonic() - self._read_s > FRESH_S:
            self._status, self._read_s = read_status(self._folder), time.monotonic()
        return self._status


# --- pure -------------------------------------------------------------------------------------


def settle_places(
    bundles: Mapping[int, str],
    entries: Mapping[str, Mapping[str, Any]],
    known: Mapping[int, NodePlace],
) -> dict[int, NodePlace]:
    """Return the node of each place.

    Nodes have the names that users know; several on one host, as in tests, get distinct names. A
    place keeps its name as long as it keeps its node, since agents and logs use it.

    Args:
        bundles: by place, the id of the node that Ray assigned; empty while it looks for one.
        entries: what Ray reports about each node, by id.
        known: the places before.
    """
    here = {node for node, one in bundles.items() if one in entries and entries[one]["Alive"]}
    stayed = {node for node in here & known.keys() if known[node].id == bundles[node]}
    moved = {node: entries[bundles[node]] for node in here - stayed}
    plain = {node: _call(entry) for node, entry in moved.items()}
    often = Counter([*plain.values(), *(known[node].name for node in stayed)])
    found = {node: known[node] for node in stayed}
    for node, entry in moved.items():
        name = plain[node] if often[plain[node]] == 1 else f"{plain[node]}-{bundles[node][:6]}"
        address = str(entry["NodeManagerAddress"])
        found[node] = NodePlace(id=bundles[node], name=name, address=address)
    for node in bundles.keys() - here:
        last = known.get(node, NodePlace(id="", name=f"node{node}", address=""))
        found[node] = NodePlace(id=last.id, name=last.name, address=last.address, here=False)
    return found


def _call(entry: Mapping[str, Any]) -> str:
    own, address = str(entry.get("NodeName", "")), str(entry["NodeManagerAddress"])
    return own if own and own != address else str(entry["NodeManagerHostname"])
