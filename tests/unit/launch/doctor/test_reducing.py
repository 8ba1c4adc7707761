"""What the ranks of a group say, made into one value."""

import asyncio

import pytest

from echelon.launch.doctor.asking import Said
from echelon.launch.doctor.reducing import Reducing, merge_answers

GOOD = {"bandwidth": 1e9, "latency_s": 1e-3, "size": 1 << 20}


def merge(*answers):
    return merge_answers(("a", "b"), answers, backend="gloo")


def test_the_slowest_rank_counts():
    slow = {**GOOD, "bandwidth": 5e8, "latency_s": 2e-3}
    found = merge(Said(found={"ranks": [GOOD, GOOD]}), Said(found={"ranks": [GOOD, slow]}))
    assert (found.nodes, found.ranks, found.error) == (("a", "b"), 4, "")
    assert (found.bandwidth, found.latency_s) == (5e8, 2e-3)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Said(error="the connection was closed"), "b: the connection was closed"),
        (Said(found={"error": "did not finish within 25 s"}), "b: did not finish within 25 s"),
        (Said(found={"ranks": [GOOD, {"error": "time-out"}]}), "b: time-out"),
    ],
)
def test_a_rank_that_fails_fails_them_all_and_is_named(answer, told):
    found = merge(Said(found={"ranks": [GOOD]}), answer)
    assert (found.error, found.bandwidth) == (told, 0.0)


class Asked:
    """In the questioner's place: it opens a port, and nobody measures anything."""

    def __init__(self):
        self.limits, self.orders = [], []

    async def ask(self, questions, *, limit_s):
        self.limits.append(limit_s)
        self.orders += [about for what, about in questions.values() if what == "measure"]
        return {node: Said(found={"ports": {"10.0.0.1": 7}}) for node in questions}


@pytest.mark.parametrize(
    ("nodes", "gpus", "limit_s"),
    [(2, 1, 20.2), (2, 8, 21.6), (128, 8, 122.4), (1024, 8, 300.0)],
)
def test_ranks_wait_for_each_other_the_longer_the_more_they_are(nodes, gpus, limit_s):
    asking = Asked()
    names = {node: f"n{node}" for node in range(nodes)}
    counts = dict.fromkeys(names, gpus)
    here = {"names": names, "counts": counts, "addresses": lambda _group: ["10.0.0.1"]}
    reducing = Reducing(asking, **here, backend="gloo")
    asyncio.run(reducing.measure([tuple(names)]))
    assert all(order["limit_s"] == pytest.approx(limit_s) for order in asking.orders)
    assert len(asking.orders) == nodes
    assert asking.limits[-1] > limit_s  # else we would be gone before they are
