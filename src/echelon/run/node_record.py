"""Which nodes of a cluster to avoid: a record of their failures, kept across runs.

One file per cluster in the user's state folder. Jobs and commands append lines to it, several at
once; each reader derives the bad nodes from the lines. Only failures that the node caused count:
what a program can do to itself is not the node's fault.
"""

import re
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from echelon.core.codec import Read, Seconds, decode, encode
from echelon.core.frozen import frozen
from echelon.core.nodes import compress, expand
from echelon.core.userstate import state_folder
from echelon.run.event_log import Event, EventReader, EventWriter, Unknown
from echelon.run.verdict import OUR_PAUSE, Failure
from echelon.spec.job_spec import JobSpec

KEEP_S = JobSpec().forgive_after_s
"""How long a bad node is avoided, unless the request says otherwise."""
ENOUGH = 2
"""How many mishaps within one run make a node a bad one."""
WRITE_S = 2.0
"""How long the end of a run waits for a home directory that does not respond."""
_KINDS = ("mishap", "excluded", "forgiven")
_FROM_OUTSIDE = (128 + signal.SIGKILL, 128 + signal.SIGBUS)
"""Exit codes of signals from outside. The others are caused by the program or its user."""
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_LONGEST = 500
_LATEST_S = 1e11
"""Roughly the latest time that `datetime` can show."""


def _read_keep_s(raw: object) -> float | None:
    return min(raw, _LATEST_S) if isinstance(raw, int | float) and raw >= 0 else None


@frozen
class NodeEvent:
    """One line of a cluster's file."""

    kind: str
    """`mishap`, `excluded` (it failed its start check) or `forgiven`."""
    node: str
    run: str = ""
    cause: str = ""
    reason: str = ""
    time_s: Seconds = 0.0
    """Seconds since the epoch, by the writer's clock. The lines' order counts, not their times."""
    keep_s: Annotated[float, Read(_read_keep_s, KEEP_S)] = KEEP_S
    """For how long it counts against the node, in seconds, as the run requested."""


@frozen
class BadNode:
    """A node to avoid."""

    node: str
    since_s: float
    until_s: float
    """When it may be used again, in seconds since the epoch."""
    reason: str
    run: str


# --- conclusions: pure ------------------------------------------------------------------------


def blames_node(failure: Failure) -> bool:
    """Tell whether the node caused a failure, and neither the program nor Echelon."""
    match failure.cause:
        case _ if not failure.node:
            return False
        case "lost node":
            return OUR_PAUSE not in failure.message
        case "signal":
            return failure.exit_code in _FROM_OUTSIDE
        case _:
            # Among start failures, only those of a node's check name a node.
            return failure.cause in ("gpu fault", "start")


def bad_nodes(entries: Sequence[NodeEvent], *, now_s: float) -> dict[str, BadNode]:
    """Return the nodes to avoid, by name.

    One failed start check is enough, and so are two mishaps in one run. Mishaps of different runs
    do not add up: a node that died twice in different weeks may be as good as any. If ranks are
    killed on all nodes, the nodes are not the cause: a node has to stand out from the others of
    its run. A node starts over when its time has passed or it was forgiven.
    """
    harm: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for entry in entries:
        harm[entry.run][entry.node] += entry.kind == "mishap"
    found: dict[str, BadNode] = {}
    for node in sorted({entry.node for entry in entries}):
        own: list[NodeEvent] = []
        bad: BadNode | None = None
        for entry in (entry for entry in entries if entry.node == node):
            if entry.kind == "forgiven" or (bad and bad.until_s <= entry.time_s):
                own, bad = [], None
            if entry.kind == "forgiven":
                continue
            own.append(entry)
            others = max((n for name, n in harm[entry.run].items() if name != node), default=0)
            if reason := _find_reason(own, others):
                bad = BadNode(
                    node=node,
                    since_s=bad.since_s if bad else entry.time_s,
                    until_s=entry.time_s + entry.keep_s,
                    reason=reason,
                    run=entry.run,
                )
        if bad and now_s < bad.until_s:
            found[node] = bad
    return found


def _find_reason(own: Sequence[NodeEvent], others: int) -> str:
    """Return why a node's entries make it a bad one; empty if they do not.

    Args:
        own: the node's entries.
        others: the highest number of mishaps of another node in the same run.
    """
    last = own[-1]
    if last.kind == "excluded":
        return last.reason or "it failed its check"
    same = [entry for entry in own if entry.kind == "mishap" and entry.run == last.run]
    sure = sum(mishap.cause != "signal" for mishap in same) >= ENOUGH
    if sure or (len(same) >= ENOUGH and len(same) > 2 * others):
        return f"{len(same)} mishaps in one run: {last.reason}"
    return ""


def add_bad(nodelist: str, exclude: str, bad: Iterable[str]) -> str:
    """Add bad nodes to those that a request excludes, unless its `nodelist` names them."""
    wanted = set(expand(nodelist))
    added = sorted(node for node in bad if node not in wanted)
    return compress(dict.fromkeys([*expand(exclude), *added]))


# --- the files --------------------------------------------------------------------------------


def cluster_name(environ: Mapping[str, str]) -> str:
    """Return the name of the cluster that runs this job; empty on the local machine.

    There, nodes are simulated, and none can be avoided.
    """
    return environ.get("SLURM_CLUSTER_NAME", "")


def records_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the folder of the files; None for a user without a home directory."""
    folder = state_folder(environ)
    return folder / "nodes" if folder else None


def record_path(cluster: str, environ: Mapping[str, str]) -> Path | None:
    """Return the path of a cluster's record; None if no directory for it is known."""
    folder = records_folder(environ)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", cluster).strip(".-")
    return folder / f"{name}.jsonl" if folder and name else None


def known_clusters(environ: Mapping[str, str]) -> list[str]:
    """Return the clusters that have a file."""
    folder = records_folder(environ)
    try:
        return sorted(path.stem for path in folder.glob("*.jsonl")) if folder else []
    except OSError:
        return []


def read_entries(path: Path | None) -> list[NodeEvent]:
    """Return a file's entries; lines that are damaged or of other programs are skipped."""
    found = []
    with suppress(OSError):
        for time_s, event, data in EventReader(path, Event).read() if path else ():
            entry = decode(NodeEvent, {**data, "kind": event.kind, "time_s": time_s})
            if entry.kind in _KINDS and _NAME.fullmatch(entry.node):
                found.append(entry)
    return found


def append_entries(path: Path, entries: Iterable[NodeEvent]) -> None:
    """Add lines to a file, each in one write.

    Raises:
        OSError: nothing can be written there.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with EventWriter(path, clock=time.time) as lines:
        for entry in entries:
            data = encode(replace(entry, reason=entry.reason[:_LONGEST]))
            del data["kind"], data["time_s"]  # the writer's
            lines.write(Unknown(kind=entry.kind, data=data))


def exclusions(
    cluster: str, environ: Mapping[str, str], *, nodelist: str, exclude: str, now_s: float
) -> str:
    """Return the host list that a job on a cluster has to exclude."""
    entries = read_entries(record_path(cluster, environ))
    return add_bad(nodelist, exclude, bad_nodes(entries, now_s=now_s))


class NodeRecord:
    """Records the failures of a controller's nodes.

    Threads write, because a home directory may be slow or away. Only `close` waits for them.
    """

    def __init__(self, path: Path | None, run_id: str, *, keep_s: float = KEEP_S) -> None:
        self._path, self._run_id, self._keep_s = path, run_id, keep_s
        self._threads: list[threading.Thread] = []
        self._trouble = ""

    def blame(self, failure: Failure) -> None:
        """Record a failure if the node caused it."""
        if not self._path or not blames_node(failure):
            return
        kind = "excluded" if failure.cause == "start" else "mishap"
        entry = NodeEvent(
            kind=kind,
            node=failure.node,
            run=self._run_id,
            cause=failure.cause,
            reason=failure.message,
            keep_s=self._keep_s,
        )
        thread = threading.Thread(target=self._write, args=(self._path, entry), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _write(self, path: Path, entry: NodeEvent) -> None:
        try:
            append_entries(path, [entry])
        except OSError as error:
            self._trouble = str(error)

    def close(self) -> str:
        """Wait a moment for the threads; return an error message, empty if all was written."""
        deadline_s = time.monotonic() + WRITE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            self._trouble = f"{self._path} does not answer"
        return f"cannot keep which nodes are bad: {self._trouble}" if self._trouble else ""
