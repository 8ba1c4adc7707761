"""NCCL's own counts, from answers of the real one (see their `from`)."""

import json
from pathlib import Path

import pytest

from echelon.launch.protocol.nccl_counts import encode_counts, read_counts

ANSWERS = Path(__file__).parents[3] / "golden" / "nccl"


def answered(name):
    """Return an answer, and the process ids of its ranks."""
    answer = json.loads((ANSWERS / f"{name}.json").read_text())["answer"]
    pids = {rank["rank"]: rank["pid"] for rank in answer["communicators"][0]["ranks"]}
    return json.dumps(answer).encode(), pids


def test_calls_are_added_over_the_communicators_of_all_ranks():
    assert read_counts(*answered("lock")) == {0: {"AllReduce": 5}, 1: {"AllReduce": 4}}
    answer, pids = answered("collective")
    counts = {0: {"AllReduce": 5}, 1: {"AllReduce": 4, "Broadcast": 1}}
    assert read_counts(answer, {0: pids[0]}) == counts


def test_communicators_of_some_ranks_are_left_out():
    answer, pids = answered("lock")
    status = json.loads(answer)
    small = status["communicators"][0]
    small["size"], small["ranks"] = 1, small["ranks"][:1]
    assert read_counts(json.dumps(status).encode(), pids)[0] == {"AllReduce": 4}


def test_another_job_that_has_answered():
    answer, pids = answered("lock")
    assert read_counts(answer, {0: pids[0], 1: pids[1] + 1}) == {}
    assert read_counts(answer, {7: pids[0]}) == {}


@pytest.mark.parametrize(
    "status",
    [
        b"",
        b"ERROR: unknown format\n",
        b"[]",
        b"{}",
        b'{"communicators": 7}',
        b'{"communicators": [{"size": 2, "ranks": [{"rank": 0, "pid": 1}]}]}',
        b'{"communicators": [{"size": "2", "ranks": [{"rank": null}]}]}',
    ],
)
def test_an_answer_that_is_none(status):
    with pytest.raises(ValueError):
        read_counts(status, {0: 1})


def test_counts_that_do_not_fit_a_message_are_not_sent():
    counts = {0: {"AllReduce": 3}}
    assert encode_counts(counts, 100) == {"0": {"AllReduce": 3}}
    assert encode_counts(counts, 10) == {}
