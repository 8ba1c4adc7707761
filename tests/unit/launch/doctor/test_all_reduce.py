"""All-reduce: planning of pairs, suspects, and merging of answers."""

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.launch.doctor.all_reduce import (
    AllReduce,
    find_suspects,
    merge_answers,
    plan_confirmation,
    plan_rounds,
)
from echelon.launch.doctor.results import Group

FAST, SLOW = 1e9, 1e7


def names(count):
    return [f"n{number}" for number in range(count)]


@given(st.integers(2, 60))
def test_rounds_give_each_node_three_partners_and_no_pair_twice(count):
    rounds = plan_rounds(names(count))
    met = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert len(met) == len(set(met))
    for pairs in rounds:
        seated = list(itertools.chain(*pairs))
        assert len(seated) == len(set(seated)) == count - count % 2
    for node in names(count):
        assert sum(node in pair for pair in met) >= min(3, count - 1)


def test_a_single_node_has_no_pairs_and_no_suspects():
    assert [pair for pairs in plan_rounds(["n0"]) for pair in pairs] == []
    assert plan_rounds([]) == []
    assert find_suspects([]) == []


def simulate_pairs(nodes, bad, noise):
    """What pairs would show: a bad node's link is slow, or it fails, with every partner."""
    found = []
    for pair in itertools.chain(*plan_rounds(nodes)):
        kinds = {bad[node] for node in pair if node in bad}
        if "broken" in kinds:
            found.append(Group(nodes=pair, error="no route"))
            continue
        share = next(noise)
        rate, seconds = FAST * share, 1e-3 / share
        if "slow" in kinds:
            rate = SLOW
        found.append(Group(nodes=pair, bandwidth=rate, latency_s=seconds))
    return found


@given(st.integers(5, 40), st.data())
def test_one_or_two_bad_nodes_are_the_only_suspects(count, data):
    nodes = names(count)
    who = data.draw(st.lists(st.sampled_from(nodes), max_size=2, unique=True))
    bad = {node: data.draw(st.sampled_from(["slow", "broken"])) for node in who}
    shares = data.draw(st.randoms(use_true_random=False))
    noise = iter(lambda: shares.uniform(0.5, 1.0), None)
    suspects = find_suspects(simulate_pairs(nodes, bad, noise))
    assert {one.node: one.what for one in suspects} == bad


@pytest.mark.parametrize(("count", "slow"), [(4, 2), (5, 3), (6, 3), (7, 4), (11, 6)])
def test_no_node_is_a_suspect_if_half_of_them_are_slow(count, slow):
    for who in itertools.combinations(names(count), slow):
        pairs = simulate_pairs(names(count), dict.fromkeys(who, "slow"), itertools.repeat(1.0))
        assert find_suspects(pairs) == [], who


def test_two_of_four_nodes_that_fail_with_all_partners_are_suspects():
    pairs = simulate_pairs(names(4), {"n0": "broken", "n1": "broken"}, itertools.repeat(1.0))
    assert [one.node for one in find_suspects(pairs)] == ["n0", "n1"]


@given(st.integers(5, 12), st.data())
def test_a_good_node_is_never_a_suspect(count, data):
    bad = data.draw(st.sets(st.sampled_from(names(count))))
    pairs = simulate_pairs(names(count), dict.fromkeys(bad, "slow"), itertools.repeat(1.0))
    for again in range(3):
        for pair in plan_confirmation(pairs, again):
            rate = SLOW if bad & set(pair) else FAST
            pairs.append(Group(nodes=pair, bandwidth=rate, latency_s=1e-3))
    assert {one.node for one in find_suspects(pairs)} <= bad


def test_suspects_are_measured_again_with_another_partner_each_time():
    measured = simulate_pairs(names(6), {"n1": "slow", "n4": "broken"}, itertools.repeat(1.0))
    assert plan_confirmation(measured, 0) == [("n1", "n0"), ("n4", "n5")]
    assert plan_confirmation(measured, 1) == [("n1", "n5"), ("n4", "n2")]
    assert plan_confirmation(simulate_pairs(names(6), {}, itertools.repeat(1.0)), 0) == []
    cleared = Group(nodes=("n1", "n0"), bandwidth=FAST, latency_s=1e-3)
    assert [one.node for one in find_suspects([*measured, cleared])] == ["n4"]


def test_slow_nodes_are_measured_again_if_half_of_them_are_slow():
    pairs = simulate_pairs(names(4), {"n1": "slow", "n2": "slow"}, itertools.repeat(1.0))
    assert find_suspects(pairs) == []
    assert plan_confirmation(pairs, 0) == [("n1", "n0"), ("n2", "n3")]


@given(st.sampled_from(names(3)), st.sampled_from(["slow", "broken"]))
def test_one_bad_node_of_three_is_a_suspect(bad, what):
    found = find_suspects(simulate_pairs(names(3), {bad: what}, itertools.repeat(1.0)))
    assert [(one.node, one.what) for one in found] == [(bad, what)]


@pytest.mark.parametrize("what", ["slow", "broken"])
def test_no_node_of_a_bad_pair_is_a_suspect(what):
    assert find_suspects(simulate_pairs(names(2), {"n0": what}, itertools.repeat(1.0))) == []


def test_a_node_with_a_high_latency_is_lagging():
    nodes = names(5)
    pairs = [
        Group(nodes=pair, bandwidth=FAST, latency_s=5e-2 if "n2" in pair else 1e-3)
        for pair in itertools.chain(*plan_rounds(nodes))
    ]
    (one,) = find_suspects(pairs)
    assert (one.node, one.what, one.best, one.usual) == ("n2", "lagging", 5e-2, 1e-3)


GOOD = {"bandwidth": 1e9, "latency_s": 1e-3, "size": 1 << 20}


def merge(*answers):
    return merge_answers(("a", "b"), answers, backend="gloo")


def test_the_slowest_rank_determines_a_groups_result():
    slow = {**GOOD, "bandwidth": 5e8, "latency_s": 2e-3}
    found = merge({"ranks": [GOOD, GOOD]}, {"ranks": [GOOD, slow]})
    assert (found.nodes, found.ranks, found.error) == (("a", "b"), 4, "")
    assert (found.bandwidth, found.latency_s) == (5e8, 2e-3)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"error": "the connection was closed"}, "b: the connection was closed"),
        (
            {"error": "did not finish within 25 s"},
            "b: did not finish within 25 s",
        ),
        ({"ranks": [GOOD, {"error": "time-out"}]}, "b: time-out"),
    ],
)
def test_an_error_of_one_rank_is_the_groups_error_with_the_nodes_name(answer, told):
    found = merge({"ranks": [GOOD]}, answer)
    assert (found.error, found.bandwidth) == (told, 0.0)


class RecordingProbes:
    """Replaces the probes: each opens a port, and none measures anything."""

    def __init__(self):
        self.limits, self.orders = [], []

    async def ask(self, what, questions, *, limit_s):
        self.limits.append(limit_s)
        if what == "measure":
            self.orders += [details["order"] for details in questions.values()]
        return {node: {"ports": {"10.0.0.1": 7}} for node in questions}


@pytest.mark.parametrize(
    ("nodes", "gpus", "limit_s"),
    [(2, 1, 20.2), (2, 8, 21.6), (128, 8, 122.4), (1024, 8, 300.0)],
)
def test_the_time_limit_of_an_all_reduce_grows_with_its_ranks(nodes, gpus, limit_s):
    probes = RecordingProbes()
    names = {node: f"n{node}" for node in range(nodes)}
    counts = dict.fromkeys(names, gpus)
    here = {"names": names, "counts": counts, "addresses": lambda _group: ["10.0.0.1"]}
    all_reduce = AllReduce(probes=probes, **here, backend="gloo")
    asyncio.run(all_reduce.measure([tuple(names)]))
    assert all(order["limit_s"] == pytest.approx(limit_s) for order in probes.orders)
    assert len(probes.orders) == nodes
    assert probes.limits[-1] > limit_s  # else we would be gone before they are
