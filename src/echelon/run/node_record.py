"""Which nodes of a cluster are not to be used: what happened to them, kept over runs.

One file per cluster in the user's own state folder. Jobs and commands append lines to it, several
at once; what follows from the lines is worked out anew by whoever reads them. The verdict decides
who is blamed: what a program can do to itself is no node's fault.
"""

import re
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from echelon.core.nodes import compress, expand
from echelon.core.userstate import state_folder
from echelon.run.event_log import EventReader, EventWriter
from echelon.run.verdict import OUR_PAUSE, Failure
from echelon.spec.job_spec import JobSpec

KEEP_S = JobSpec().forgive_after_s
"""For how long a bad node is left out, unless the request says otherwise."""
ENOUGH = 2
"""Mishaps of a node within one run that make it a bad one."""
WRITE_S = 2.0
"""How long the end of a run waits for a home that does not answer."""
_KINDS = ("mishap", "excluded", "forgiven")
_FROM_OUTSIDE = (128 + signal.SIGKILL, 128 + signal.SIGBUS)
"""SIGSEGV, SIGABRT and SIGTERM are a program's own doing, or its user's."""
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_LONGEST = 500
_LATEST_S = 1e11
"""Beyond it no calendar goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of a cluster's file."""

    kind: str
    """`mishap`, `excluded` (it failed its start check) or `forgiven`."""
    node: str
    run: str = ""
    cause: str = ""
    reason: str = ""
    time_s: float = 0.0
    """Seconds since the epoch, by the writer's clock. The order is the lines'."""
    keep_s: float = KEEP_S
    """For how long it counts against the node, in seconds: as the run's request said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadNode:
    """One that is left out."""

    node: str
    since_s: float
    until_s: float
    """When it may be used again, in seconds since the epoch."""
    reason: str
    run: str


# --- what follows: pure -----------------------------------------------------------------------


def blames_node(failure: Failure) -> bool:
    """Tell whether a failure is the node's, and neither the program's nor our own."""
    match failure.cause:
        case _ if not failure.node:
            return False
        case "lost node":
            return OUR_PAUSE not in failure.message
        case "signal":
            return failure.exit_code in _FROM_OUTSIDE
        case _:
            # Of failures at the start only those of a node's own check name a node.
            return failure.cause in ("gpu fault", "start")


def bad_nodes(entries: Sequence[Entry], *, now_s: float) -> dict[str, BadNode]:
    """Return the nodes to leave out, by name.

    One failed start check is enough; so are two mishaps in one run, for a node that died twice in
    different weeks may be as good as any. Ranks that are killed everywhere are killed by something
    else: such a node has to stand out from the others of its run. A node whose time is over begins
    anew, as one that was forgiven does.
    """
    harm: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for entry in entries:
        harm[entry.run][entry.node] += entry.kind == "mishap"
    found: dict[str, BadNode] = {}
    for node in sorted({entry.node for entry in entries}):
        own: list[Entry] = []
        bad: BadNode | None = None
        for entry in (entry for entry in entries if entry.node == node):
            if entry.kind == "forgiven" or (bad and bad.until_s <= entry.time_s):
                own, bad = [], None
            if entry.kind == "forgiven":
                continue
            own.append(entry)
            others = max((n for name, n in harm[entry.run].items() if name != node), default=0)
            if reason := _condemn(own, others):
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


def _condemn(own: Sequence[Entry], others: int) -> str:
    """Return why a node's last entry, after all before it, makes it a bad one; or nothing.

    Args:
        own: what is known of the node.
        others: the most mishaps that another node had in the same run.
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
    """Return what a request excludes, and these nodes besides.

    A bad node that the request names in its `nodelist` is wanted all the same.
    """
    wanted = set(expand(nodelist))
    added = sorted(node for node in bad if node not in wanted)
    return compress(dict.fromkeys([*expand(exclude), *added]))


# --- the files --------------------------------------------------------------------------------


def cluster_name(environ: Mapping[str, str]) -> str:
    """Return the name of the cluster that we are a job of; empty on a machine of one's own.

    There nodes are only played, and nobody could leave one out.
    """
    return environ.get("SLURM_CLUSTER_NAME", "")


def records_folder(environ: Mapping[str, str]) -> Path | None:
    """Return where the files are; None for a user without a home."""
    folder = state_folder(environ)
    return folder / "nodes" if folder else None


def record_path(cluster: str, environ: Mapping[str, str]) -> Path | None:
    """Return a cluster's file; None where nothing can be kept."""
    folder = records_folder(environ)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", cluster).strip(".-")
    return folder / f"{name}.jsonl" if folder and name else None


def known_clusters(environ: Mapping[str, str]) -> list[str]:
    """Return the clusters of which there is a file."""
    folder = records_folder(environ)
    try:
        return sorted(path.stem for path in folder.glob("*.jsonl")) if folder else []
    except OSError:
        return []


def read_entries(path: Path | None) -> list[Entry]:
    """Return what a file says; lines that are torn or somebody else's are passed over."""
    found = []
    with suppress(OSError):
        for event in EventReader(path).read() if path else ():
            facts = {
                key: str(event.data.get(key, "")) for key in ("node", "run", "cause", "reason")
            }
            known = event.kind in _KINDS and 0 <= event.time_s < _LATEST_S
            if known and _NAME.fullmatch(facts["node"]):
                keep_s = _read_keep_s(event.data.get("keep_s"))
                found.append(Entry(kind=event.kind, time_s=event.time_s, keep_s=keep_s, **facts))
    return found


def _read_keep_s(raw: object) -> float:
    """Return how long an entry counts; older versions wrote nothing about it."""
    if isinstance(raw, int | float) and raw >= 0:
        return min(raw, _LATEST_S)
    return KEEP_S


def append_entries(path: Path, entries: Iterable[Entry]) -> None:
    """Add lines to a file, each in one write.

    Raises:
        OSError: nothing can be written there.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with EventWriter(path, clock=time.time) as lines:
        for entry in entries:
            lines.write(
                entry.kind,
                node=entry.node,
                run=entry.run,
                cause=entry.cause,
                reason=entry.reason[:_LONGEST],
                keep_s=entry.keep_s,
            )


def exclusions(
    cluster: str, environ: Mapping[str, str], *, nodelist: str, exclude: str, now_s: float
) -> str:
    """Return the host list that a job on a cluster is not to get, by what is known of it now."""
    entries = read_entries(record_path(cluster, environ))
    return add_bad(nodelist, exclude, bad_nodes(entries, now_s=now_s))


class NodeRecord:
    """What a controller writes down of its nodes.

    A home may be slow or away: a thread writes, for which nobody waits but the end, a moment.
    """

    def __init__(self, path: Path | None, run_id: str, *, keep_s: float = KEEP_S) -> None:
        self._path, self._run_id, self._keep_s = path, run_id, keep_s
        self._threads: list[threading.Thread] = []
        self._trouble = ""

    def blame(self, failure: Failure) -> None:
        """Write a failure down where it is the node's."""
        if not self._path or not blames_node(failure):
            return
        kind = "excluded" if failure.cause == "start" else "mishap"
        entry = Entry(
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

    def _write(self, path: Path, entry: Entry) -> None:
        try:
            append_entries(path, [entry])
        except OSError as error:
            self._trouble = str(error)

    def close(self) -> str:
        """Return what was not kept, in a sentence; empty when all is well."""
        deadline_s = time.monotonic() + WRITE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            self._trouble = f"{self._path} does not answer"
        return f"cannot keep which nodes are bad: {self._trouble}" if self._trouble else ""
