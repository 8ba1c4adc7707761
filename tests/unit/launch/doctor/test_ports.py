"""Who tries whose ports; who is blamed for those that are closed, among few nodes and many."""

from hypothesis import given
from hypothesis import strategies as st

from echelon.launch.doctor.examination import FEW, choose_peers
from echelon.launch.doctor.findings import judge_ports
from echelon.launch.doctor.results import Node


def reach(name, tried, unreached=()):
    return Node(name=name, tried=tried, unreached=unreached)


def blamed(*nodes):
    found = list(judge_ports(nodes))
    assert all((one.check, one.severity) == ("ports", "error") for one in found)
    return [(one.node, one.message) for one in found]


def test_a_node_with_closed_ports_is_blamed():
    a, b = reach("a", ["b", "c"], ["c"]), reach("b", ["a", "c"], ["c"])
    assert blamed(a, b, reach("c", ["a", "b"])) == [("c", "no other node reaches its ports")]


def test_a_node_that_reaches_no_other_is_blamed():
    a, c = reach("a", ["b", "c"]), reach("c", ["a", "b"])
    found = blamed(a, reach("b", ["a", "c"], ["a", "c"]), c)
    assert found == [("b", "cannot reach the ports of any other node")]


def test_a_single_unreachable_pair_blames_no_node():
    found = blamed(reach("a", ["b", "c"], ["b"]), reach("b", ["a", "c"]), reach("c", ["a", "b"]))
    assert found == [("", "a cannot reach ports of b")]


def test_each_of_a_few_nodes_tries_all_others():
    assert choose_peers([0, 2, 5], 2) == [0, 5]
    assert len(choose_peers(list(range(FEW)), 3)) == FEW - 1


def test_each_of_many_nodes_tries_four_others():
    many = list(range(20))
    assert choose_peers(many, 3) == [4, 5, 13, 0]
    assert choose_peers(many, 0) == [1, 2, 10]
    assert choose_peers(many, 19) == [0, 1, 9]


def examine(count, closed=(), mute=(), pairs=()):
    """What nodes would find whose ports are closed, that reach nobody, or not each other."""
    nodes = list(range(count))
    found = []
    for node in nodes:
        peers = choose_peers(nodes, node)
        missed = [peer for peer in peers if peer in closed or node in mute or (node, peer) in pairs]
        found.append(reach(f"n{node}", [f"n{p}" for p in peers], [f"n{p}" for p in missed]))
    return blamed(*found)


COUNTS = st.integers(5, 70)


@given(COUNTS)
def test_every_node_is_tried_by_at_least_three_others(count):
    nodes = list(range(count))
    tries = [choose_peers(nodes, node) for node in nodes]
    assert all(len(peers) >= 3 for peers in tries)
    assert all(sum(node in peers for peers in tries) >= 3 for node in nodes)
    assert count <= FEW or all(len(peers) <= 4 for peers in tries)


@given(COUNTS, st.data())
def test_one_or_two_nodes_with_broken_ports_are_blamed_without_their_neighbours(count, data):
    who = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=2, unique=True))
    kinds = [data.draw(st.sampled_from(["closed", "mute", "both"])) for _ in who]
    closed = {node for node, kind in zip(who, kinds, strict=True) if kind != "mute"}
    mute = {node for node, kind in zip(who, kinds, strict=True) if kind != "closed"}
    found = examine(count, closed, mute)
    assert {name for name, _ in found} == {f"n{node}" for node in who}


@given(COUNTS, st.data())
def test_an_unreachable_pair_among_many_nodes_is_reported_without_blame(count, data):
    node = data.draw(st.integers(0, count - 1))
    peer = data.draw(st.sampled_from(choose_peers(list(range(count)), node)))
    assert examine(count, pairs={(node, peer)}) == [("", f"n{node} cannot reach ports of n{peer}")]
