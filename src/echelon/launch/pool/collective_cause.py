"""Finds which rank makes others wait in a collective, from what all ranks have recorded. Pure."""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from echelon.core.frozen import frozen
from echelon.launch.protocol.collective_trace import DEFAULT, CollectiveCall, GroupTrace, Trace
from echelon.launch.protocol.nccl_counts import Counts

_PEER = re.compile(r"(send|recv) (\d+)\s*(?:->|<-)\s*(\d+)")
_UNEVEN = ("all_to_all", "alltoall", "gather", "scatter")
"""Collectives whose sizes may differ between ranks."""
_EVEN = ("_base", "into_tensor")
"""Variants of them whose sizes may not."""


@frozen
class Cause:
    """Why ranks wait in a collective."""

    rank: int
    message: str


def is_waiting(traces: Mapping[int, Trace]) -> bool:
    """Tell whether some rank waits in a collective."""
    return any(
        group.pending or group.waits for one in traces.values() for group in one.groups.values()
    )


def idle_s(traces: Mapping[int, Trace]) -> float:
    """Return how long ago a rank last called or finished a collective; infinity for never."""
    return min((one.idle_s for one in traces.values() if one.groups), default=math.inf)


def find_cause(
    traces: Mapping[int, Trace], alive: Collection[int], world_size: int, counts: Counts
) -> Cause | None:
    """Return the rank that others wait for, and why; None if no rank waits in a collective.

    Args:
        traces: what the ranks have recorded; ranks that cannot record are not in it.
        alive: all ranks that have not exited.
        world_size: number of all ranks.
        counts: NCCL's own counts of the ranks' calls, where it has answered.
    """
    found = (_find_front(name, traces, alive, world_size) for name in _names(traces))
    fronts = [front for front in found if front]
    # The fewer ranks are missing, the more it says about them.
    for front in sorted(fronts, key=lambda front: len(front.missing)):
        if cause := _blame_missing(front, traces, alive, counts):
            return cause
    for front in fronts:
        if cause := _blame_order(front, traces) or _blame_difference(front):
            return cause
    if cause := _blame_peer(traces, alive):
        return cause
    recorded = bool(fronts) and all(rank in traces for rank in alive)
    if not recorded and (cause := _blame_count(counts, alive)):
        return cause
    return _blame_all(fronts[0]) if fronts else None


@frozen
class _Front:
    """The oldest collective of a group that some rank waits in."""

    group: str
    number: int
    calls: Mapping[int, CollectiveCall]
    """The ranks that wait in it, and what they call,"""
    finished: Mapping[int, CollectiveCall]
    """and those that have finished it: NCCL pairs calls that differ."""
    missing: Sequence[int]
    """Members that have not called it."""

    @property
    def where(self) -> str:
        """Describe the collective as those that wait in it call it."""
        name = Counter(call.name for call in self.calls.values()).most_common(1)[0][0]
        return f"{name} no. {self.number} of {self.group}"

    @property
    def waiting(self) -> str:
        return f"{_list(sorted(self.calls))} {'waits' if len(self.calls) == 1 else 'wait'}"


def _names(traces: Mapping[int, Trace]) -> list[str]:
    return list(dict.fromkeys(name for one in traces.values() for name in one.groups))


def _find_front(
    name: str, traces: Mapping[int, Trace], alive: Collection[int], world_size: int
) -> _Front | None:
    groups = {rank: one.groups[name] for rank, one in traces.items() if name in one.groups}
    first = [group.pending[0].number for group in groups.values() if group.pending]
    if not first:
        return None
    number = min(first)
    calls = {
        rank: call
        for rank, group in groups.items()
        for call in group.pending
        if call.number == number
    }
    finished = {
        rank: call
        for rank, group in groups.items()
        for call in group.recent
        if call.number == number
    }
    named = next((group.ranks for group in groups.values() if group.ranks), [])
    members = named or (range(world_size) if name.startswith(DEFAULT) else list(groups))
    recorded = {rank for rank in members if rank in traces or rank not in alive}
    missing = [rank for rank in sorted(recorded) if groups.get(rank, GroupTrace()).called < number]
    return _Front(group=name, number=number, calls=calls, finished=finished, missing=missing)


def _blame_missing(
    front: _Front, traces: Mapping[int, Trace], alive: Collection[int], counts: Counts
) -> Cause | None:
    """Blame a rank that has not called a collective, and does not wait in another one."""
    gone = [rank for rank in front.missing if rank not in alive]
    free = [rank for rank in front.missing if rank in alive and not _waits(traces[rank])]
    # What a rank that does not answer has called is unknown.
    silent = [rank for rank in free if traces[rank].silent]
    known = [rank for rank in free if not traces[rank].silent]
    waiting = f"{front.waiting} in {front.where}"
    if gone:
        return Cause(rank=gone[0], message=f"has exited; {waiting}")
    if known:
        verb = "has" if len(known) == 2 else "have"
        others = f", nor {verb} {_list(known[1:])}" if known[1:] else ""
        message = f"has not called {front.where}, in which {front.waiting}{others}"
        return Cause(rank=known[0], message=message)
    if silent:
        return Cause(rank=silent[0], message=f"{_explain(silent[0], counts)}; {waiting}")
    return None


def _explain(silent: int, counts: Counts) -> str:
    """Return why a rank may not answer: NCCL's thread does not need the interpreter lock."""
    held, stopped = "a thread may hold the interpreter lock", "the process may be stopped"
    if not counts:
        return f"does not answer: {held}, or {stopped}"
    if silent in counts:
        return f"does not answer, but NCCL in its process does: {held}"
    return f"does not answer, nor does NCCL in its process: {stopped}"


def _blame_count(counts: Counts, alive: Collection[int]) -> Cause | None:
    """Blame the rank that has launched fewer collectives than the others, by NCCL's count."""
    calls = {rank: sum(counts[rank].values()) for rank in sorted(counts) if rank in alive}
    if len(set(calls.values())) < 2:
        return None
    last, first = min(calls, key=lambda rank: calls[rank]), max(calls, key=lambda rank: calls[rank])
    name = max(counts[first], key=lambda name: counts[first][name] - counts[last].get(name, 0))
    own, others = counts[last].get(name, 0), counts[first][name]
    message = f"has launched {own} {name} by NCCL's own count, and rank {first} {others}"
    return Cause(rank=last, message=message)


def _blame_order(front: _Front, traces: Mapping[int, Trace]) -> Cause | None:
    """Blame a rank that waits in a collective of another group."""
    for rank in front.missing:
        for name, group in traces[rank].groups.items():
            if group.pending and name != front.group:
                own = f"{group.pending[0].name} no. {group.pending[0].number} of {name}"
                message = f"waits in {own}, but {front.waiting} in {front.where}: the order differs"
                return Cause(rank=rank, message=message)
    return None


def _blame_difference(front: _Front) -> Cause | None:
    """Blame a rank whose call differs from that of the others."""
    at = f"no. {front.number} of {front.group}"
    calls = {**front.finished, **front.calls}
    if odd := _odd(calls, lambda call: call.name):
        own, usual = calls[odd.rank], calls[odd.others[0]]
        message = f"calls {own.name} as {at}, where {odd.others_call} {usual.name}"
        return Cause(rank=odd.rank, message=message)
    name = next(iter(front.calls.values())).name
    if any(word in name for word in _UNEVEN) and not any(word in name for word in _EVEN):
        return None
    if odd := _odd(calls, lambda call: (call.sizes, call.types)):
        own, usual = calls[odd.rank], calls[odd.others[0]]
        message = (
            f"calls {name} {at} with {_shape(own)}, where {odd.others_call} it with {_shape(usual)}"
        )
        return Cause(rank=odd.rank, message=message)
    unstarted = [rank for rank, call in front.calls.items() if not call.started]
    if 0 < len(unstarted) < len(front.calls):
        message = f"its GPU has not started {name} {at}: earlier work on it does not end"
        return Cause(rank=unstarted[0], message=message)
    return None


def _blame_peer(traces: Mapping[int, Trace], alive: Collection[int]) -> Cause | None:
    """Blame the peer of a rank that waits to send or to receive."""
    calls = [
        (rank, call, name)
        for rank, one in traces.items()
        for name, group in one.groups.items()
        for call in group.waits
    ]
    for rank, call, name in calls:
        if not (found := _PEER.search(call.name)):
            continue
        peer = int(found[3])
        if peer in traces and _waits(traces[peer]):
            continue
        does = "receive from" if found[1] == "recv" else "send to"
        missing = "sent" if found[1] == "recv" else "received"
        gone = "" if peer in alive else " and has exited"
        message = f"has not {missing}{gone}: rank {rank} waits to {does} it, in {name}"
        return Cause(rank=peer, message=message)
    if calls:
        rank, call, name = calls[0]
        return Cause(rank=rank, message=f"waits in {call.name} of {name}")
    return None


def _blame_all(front: _Front) -> Cause:
    message = (
        f"{front.waiting} in {front.where}, called alike by all: "
        "a GPU or the network makes no progress"
    )
    return Cause(rank=min(front.calls), message=message)


def _waits(trace: Trace) -> bool:
    return any(group.pending or group.waits for group in trace.groups.values())


@frozen
class _Odd:
    """A rank that differs, and those that most agree with each other."""

    rank: int
    others: Sequence[int]

    @property
    def others_call(self) -> str:
        return f"{_list(self.others)} {'calls' if len(self.others) == 1 else 'call'}"


def _odd(
    calls: Mapping[int, CollectiveCall], key: Callable[[CollectiveCall], object]
) -> _Odd | None:
    kinds: dict[str, list[int]] = {}
    for rank in sorted(calls):
        kinds.setdefault(repr(key(calls[rank])), []).append(rank)
    if len(kinds) < 2:
        return None
    usual, *others = sorted(kinds.values(), key=len, reverse=True)
    return _Odd(rank=others[-1][-1], others=usual)


def _shape(call: CollectiveCall) -> str:
    sizes = ", ".join("×".join(map(str, size)) or "one element" for size in call.sizes)
    return f"{sizes} {'/'.join(dict.fromkeys(call.types))}".strip().lower()


def _list(ranks: Sequence[int]) -> str:
    if len(ranks) > 4:
        return f"{len(ranks)} ranks"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
