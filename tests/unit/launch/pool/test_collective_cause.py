"""Who is blamed for a wait in a collective, from records of real NCCL ranks (see their `from`)."""

import json
import math
from pathlib import Path

import pytest

from echelon.launch.pool.collective_cause import find_cause, idle_s, is_waiting
from echelon.launch.protocol.collective_trace import (
    CollectiveCall,
    GroupTrace,
    Trace,
    decode_trace,
    encode_traces,
    read_trace,
)

RECORDS = Path(__file__).parents[3] / "golden" / "collectives"


def recorded(name, *, world=2, silent=()):
    """Return the traces of a recorded run, as a controller gets them; silent ranks have none."""
    found = json.loads((RECORDS / f"{name}.json").read_text())
    traces = {}
    for rank, record in found["ranks"].items():
        trace = read_trace(json.dumps(record).encode(), now_s=1_794_905_000.0)
        traces[int(rank)] = decode_trace(json.loads(json.dumps(trace.encode())))
    return traces | {rank: Trace(silent=True) for rank in silent}


@pytest.mark.parametrize(
    ("name", "rank", "message"),
    [
        ("sleep", 1, "has not called all_reduce no. 4 of the default group, in which rank 0 waits"),
        ("busy", 1, "has not called all_reduce no. 4 of the default group, in which rank 0 waits"),
        ("async", 1, "has not called all_reduce no. 6 of the default group, in which rank 0 waits"),
        (
            "barrier",
            1,
            "has not called all_reduce_barrier no. 4 of the default group, in which rank 0 waits",
        ),
        ("ddp", 1, "has not called all_reduce no. 28 of the default group, in which rank 0 waits"),
        (
            "collective",
            1,
            "calls broadcast as no. 4 of the default group, where rank 0 calls all_reduce",
        ),
        (
            "shape",
            1,
            (
                "calls all_reduce no. 4 of the default group with 4194304 float, "
                "where rank 0 calls it with 64 float"
            ),
        ),
        (
            "kernel",
            1,
            (
                "its GPU has not started all_reduce no. 4 of the default group: "
                "earlier work on it does not end"
            ),
        ),
        (
            "subgroup",
            2,
            "has not called all_reduce no. 2 of group 1 (pair), in which rank 1 waits",
        ),
    ],
)
def test_a_rank_that_others_wait_for(name, rank, message):
    traces = recorded(name)
    cause = find_cause(traces, traces.keys(), len(traces), {})
    assert (cause.rank, cause.message) == (rank, message)
    assert is_waiting(traces)
    assert idle_s(traces) > 100


@pytest.mark.parametrize("name", ["gil", "stop"])
def test_a_rank_that_does_not_answer(name):
    traces = recorded(name, silent=[1])
    cause = find_cause(traces, {0, 1}, 2, {})
    assert cause.rank == 1
    assert cause.message.startswith("does not answer: a thread may hold the interpreter lock")
    assert cause.message.endswith("rank 0 waits in all_reduce no. 4 of the default group")


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({0: {"AllReduce": 4}, 1: {"AllReduce": 3}}, "a thread may hold the interpreter lock"),
        ({0: {"AllReduce": 4}}, "the process may be stopped"),
    ],
)
def test_nccl_tells_more_of_a_rank_that_does_not_answer(counts, message):
    cause = find_cause(recorded("gil", silent=[1]), {0, 1}, 2, counts)
    assert cause.rank == 1
    assert f"NCCL in its process{' does' if 1 in counts else ''}: {message}; " in cause.message


def test_nccl_counts_the_calls_of_a_rank_that_cannot_record():
    counts = {0: {"AllReduce": 4, "Broadcast": 1}, 1: {"AllReduce": 3, "Broadcast": 1}}
    traces = recorded("sleep")
    assert "has not called all_reduce no. 4" in find_cause(traces, {0, 1}, 2, counts).message
    del traces[1]
    for known in (traces, {}):
        cause = find_cause(known, {0, 1}, 2, counts)
        assert cause.rank == 1
        assert cause.message == "has launched 3 AllReduce by NCCL's own count, and rank 0 4"
    assert find_cause({}, {0, 1}, 2, {0: {"AllReduce": 4}, 1: {"AllReduce": 4}}) is None
    assert find_cause({}, {1}, 2, counts) is None


def test_a_rank_that_is_known_to_be_missing_comes_before_one_that_does_not_answer():
    waits, free = group((7, "all_reduce"), called=7), group(called=6)
    traces = {rank: Trace(groups={"g": waits}) for rank in (0, 3)}
    traces |= {1: Trace(silent=True), 2: Trace(groups={"g": free})}
    assert find_cause(traces, range(4), 4, {}).rank == 2


def test_a_rank_that_has_exited():
    cause = find_cause(recorded("exit"), {0}, 2, {})
    assert cause.rank == 1
    assert cause.message == "has exited; rank 0 waits in all_reduce no. 4 of the default group"


def test_a_call_that_was_paired_with_another_and_is_finished():
    done = GroupTrace(
        ranks=[0, 1], called=7, recent=[CollectiveCall(number=7, name="all_reduce_barrier")]
    )
    waits = GroupTrace(
        ranks=[0, 1], called=8, pending=[CollectiveCall(number=7, name="all_reduce")]
    )
    cause = find_cause({0: Trace(groups={"g": waits}), 1: Trace(groups={"g": done})}, {0, 1}, 2, {})
    assert cause.rank == 1
    assert cause.message == "calls all_reduce_barrier as no. 7 of g, where rank 0 calls all_reduce"


def test_a_rank_that_cannot_record_is_not_blamed():
    traces = recorded("sleep")
    del traces[1]
    cause = find_cause(traces, {0, 1}, 2, {})
    assert cause.rank == 0
    assert "makes no progress" in cause.message


@pytest.mark.parametrize("name", ["graph", "compute", "recv"])
def test_ranks_of_which_none_is_known_to_wait(name):
    """Replayed graphs are not recorded; the first receive waits for its communicator."""
    traces = recorded(name)
    assert find_cause(traces, traces.keys(), len(traces), {}) is None
    assert not is_waiting(traces)


def group(*calls, called=0, waits=()):
    pending = [CollectiveCall(number=number, name=name) for number, name in calls]
    return GroupTrace(ranks=[0, 1, 2, 3], called=called, pending=pending, waits=list(waits))


def test_groups_that_are_called_in_another_order():
    a = {"group 1": group((5, "all_reduce"), called=5), "group 2": group(called=4)}
    b = {"group 1": group(called=4), "group 2": group((5, "broadcast"), called=5)}
    traces = {rank: Trace(groups=b if rank == 2 else a) for rank in range(4)}
    cause = find_cause(traces, range(4), 4, {})
    assert cause.rank == 2
    assert cause.message == (
        "waits in broadcast no. 5 of group 2, but ranks 0, 1, 3 wait in all_reduce no. 5 of "
        "group 1: the order differs"
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("recv 0<-3", "has not sent: rank 0 waits to receive from it, in group 1"),
        ("send 0->3", "has not received: rank 0 waits to send to it, in group 1"),
    ],
)
def test_a_peer_that_others_wait_for(name, message):
    waits = Trace(groups={"group 1": group(waits=[CollectiveCall(number=1, name=name)])})
    traces = {0: waits, **{rank: Trace(groups={"group 1": group()}) for rank in (1, 2, 3)}}
    cause = find_cause(traces, range(4), 4, {})
    assert (cause.rank, cause.message) == (3, message)


def test_a_collective_that_all_call_alike():
    traces = {rank: Trace(groups={"g": group((7, "all_reduce"), called=7)}) for rank in range(4)}
    cause = find_cause(traces, range(4), 4, {})
    assert cause.message == (
        "ranks 0, 1, 2, 3 wait in all_reduce no. 7 of g, called alike by all: "
        "a GPU or the network makes no progress"
    )


def test_sizes_that_may_differ():
    def trace(rank):
        call = CollectiveCall(number=7, name="alltoall", sizes=[[rank + 1]], types=["Float"])
        return Trace(groups={"g": GroupTrace(ranks=[0, 1], called=7, pending=[call])})

    assert "called alike" in find_cause({0: trace(0), 1: trace(1)}, {0, 1}, 2, {}).message


def test_ranks_that_have_called_nothing_do_not_show_progress():
    waits = Trace(groups={"g": group((7, "all_reduce"), called=7)}, idle_s=30.0)
    assert idle_s({0: waits, 1: Trace(), 2: Trace(silent=True)}) == 30.0
    assert idle_s({1: Trace()}) == math.inf


def test_many_ranks_that_wait():
    free, waits = group(called=6), group((7, "all_reduce"), called=7)
    traces = {rank: Trace(groups={"g": waits}) for rank in range(6)}
    free = GroupTrace(ranks=list(range(8)), called=6)
    traces |= {rank: Trace(groups={"g": free}) for rank in (6, 7)}
    traces[0] = Trace(
        groups={"g": GroupTrace(ranks=list(range(8)), called=7, pending=waits.pending)}
    )
    cause = find_cause(traces, range(8), 8, {})
    assert cause.rank == 6
    assert cause.message == (
        "has not called all_reduce no. 7 of g, in which 6 ranks wait, nor has rank 7"
    )


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"[]",
        b"{",
        b'{"nccl": 3}',
        b'{"nccl": {"entries": [{}]}}',
        b'{"nccl": {"entries": 7}}',
        (
            b'{"gloo": {"entries": [{"process_group": ["0", "x"], "is_p2p": false,'
            b' "collective_seq_id": Infinity, "retired": false, "state": ""}]}}'
        ),
        b"[" * 5000,
    ],
)
def test_a_damaged_record(record):
    with pytest.raises(ValueError, match=r".*"):
        read_trace(record, now_s=0.0)


def test_a_record_without_collectives():
    assert read_trace(b"{}", now_s=5.0) == Trace()


def test_traces_of_many_groups_fit_into_a_message():
    calls = [
        CollectiveCall(number=number, name="all_reduce", sizes=[[1] * 8]) for number in range(4)
    ]
    group = GroupTrace(ranks=list(range(64)), called=4, done=4, pending=calls, recent=calls)
    trace = Trace(groups={f"group {number}": group for number in range(50)}, idle_s=3.0)
    traces = dict.fromkeys(range(8), trace)
    whole = len(json.dumps({str(rank): trace.encode() for rank in traces}))
    for room in (whole, whole - 1, whole // 2):
        found = encode_traces(traces, room)
        assert len(json.dumps(found)) <= room
        assert decode_trace(found["7"]).groups["group 49"].pending[0] == calls[0]
    assert encode_traces(traces, 100) == {}
