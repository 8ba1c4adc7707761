import asyncio
import heapq
from dataclasses import replace

import pytest

from echelon.launch.backends.stop import Stop, StopError
from echelon.launch.controller.staging import CHILDREN, Staging, list_above, plan_tree
from echelon.launch.pool.controller_events import Lost, Received
from echelon.launch.protocol.messages import Staged
from echelon.run.events import NodesStaged
from unit.launch.fakes import FakeJournal, FakePool


def make_pool(*states, script=()):
    """Return a pool whose nodes have these states; an unknown one is why there is no stage."""
    pool = FakePool(*range(len(states)), script=script)
    for node, state in enumerate(states):
        known = state in ("whole", "part", "")
        stage = {"stage": state, "stage_port": 7000 + node} if known else {"unstaged": state}
        agent = pool.agents[node]
        agent.hello = replace(agent.hello, pid=100 + node, **stage)
    return pool


def settle(pool):
    journal = FakeJournal()
    staging = Staging(pool, journal)
    lost = asyncio.run(staging.settle())
    return journal, lost, staging


def staged(node, **facts):
    return lambda pool: Received(agent=pool.agents[node], message=Staged(**facts))


def loses(node):
    def lose(pool):
        return Lost(agent=pool.agents.pop(node), reason="killed")

    return lose


def orders(agents):
    return {
        node: [[place[1] for place in order.sources] for order in agent.link.said]
        for node, agent in agents.items()
    }


def test_nothing_is_done_without_a_stage():
    pool = make_pool("", "")
    journal, lost, _ = settle(pool)
    assert not journal.notes
    assert not lost
    assert orders(pool.agents) == {0: [], 1: []}


def test_nodes_that_have_it_are_only_counted():
    journal, _, _ = settle(make_pool("whole", "whole"))
    [event] = journal.notes
    assert (event.nodes, event.found, event.copied, event.reader) == (2, 2, 0, "")


def test_one_node_reads_and_the_others_follow_in_a_tree():
    script = [staged(node, copied=10) for node in range(5)]
    pool = make_pool(*["part"] * 5, script=script)
    agents = dict(pool.agents)
    journal, _, _ = settle(pool)
    assert orders(agents) == {
        0: [[]],
        1: [[7000]],
        2: [[7000]],
        3: [[7001, 7000]],
        4: [[7001, 7000]],
    }
    [event] = journal.notes
    assert event == NodesStaged(
        nodes=5, found=0, copied=50, repaired=0, seconds=event.seconds, reader="node0", without={}
    )


def test_a_node_that_has_it_spares_the_storage():
    pool = make_pool("part", "whole", "part", script=[staged(0), staged(2)])
    journal, _, _ = settle(pool)
    assert orders(pool.agents) == {0: [[7001]], 1: [], 2: [[7001]]}
    assert journal.notes[0].reader == ""
    assert (journal.notes[0].nodes, journal.notes[0].found) == (3, 1)


def test_another_node_takes_the_place_of_a_lost_root():
    pool = make_pool("part", "part", "part", script=[loses(0), staged(1), staged(2)])
    agents = dict(pool.agents)
    journal, lost, _ = settle(pool)
    assert orders(agents) == {0: [[]], 1: [[7000], []], 2: [[7000], [7001]]}
    assert lost
    assert journal.notes[0].without == {"node0": "killed"}


def test_one_that_is_done_is_preferred_to_reading_again():
    pool = make_pool("part", "part", "part", script=[staged(1), loses(0), staged(2)])
    agents = dict(pool.agents)
    settle(pool)
    assert orders(agents)[2] == [[7000], [7001]]
    assert orders(agents)[1] == [[7000]]


def test_nodes_below_a_lost_one_find_another_by_themselves():
    pool = make_pool(*["part"] * 4, script=[loses(1), staged(0), staged(2), staged(3)])
    agents = dict(pool.agents)
    settle(pool)
    assert all(len(told) == 1 for told in orders(agents).values())


def test_no_more_than_three_nodes_fail_as_the_root():
    script = [staged(node, error="cannot read x") for node in range(5)]
    pool = make_pool(*["part"] * 5, script=script)
    journal, _, _ = settle(pool)
    readers = [node for node, told in orders(pool.agents).items() if [] in told]
    assert readers == [0, 1, 2]
    assert journal.notes[0].nodes == 0
    [warning] = journal.reports
    assert warning.startswith("warning: no stage on 5 nodes: node0: cannot read x; ")
    assert warning.endswith("and 2 more")


def test_nodes_that_cannot_have_one_are_reported_once():
    pool = make_pool("whole", "no user namespaces")
    journal, _, staging = settle(pool)
    assert journal.notes[0].without == {"node1": "no user namespaces"}
    assert journal.reports == ["warning: no stage on 1 node: node1: no user namespaces"]
    asyncio.run(staging.settle())
    assert len(journal.reports) == len(journal.notes) == 1


def test_a_changed_environment_is_reported():
    journal, _, _ = settle(make_pool("part", script=[staged(0, changed=True)]))
    assert journal.notes[0].changed
    assert "was changed after the run was submitted" in journal.reports[0]


def test_an_agent_that_came_back_is_asked_again():
    pool = make_pool("whole", "part", script=[staged(1)])
    journal, _, staging = settle(pool)
    new = pool.agents[1]
    new.hello = replace(new.hello, pid=999)
    pool.script = [staged(1)]
    asyncio.run(staging.settle())
    assert len(journal.notes) == 2
    assert journal.notes[1].found == 0


def test_a_node_that_cannot_enter_its_image_is_not_waited_for():
    def fails(pool):
        return Lost(agent=pool.agents.pop(1), reason="no torch", excluded=True)

    journal, lost, _ = settle(make_pool("part", "part", script=[fails, staged(0)]))
    assert lost
    assert journal.notes[0].without == {"node1": "no torch"}


def test_a_stop_ends_the_wait():
    pool = make_pool("part", script=[Stop("cancelled", "enough", 130)])
    with pytest.raises(StopError):
        settle(pool)


# --- the tree -----------------------------------------------------------------------------------


def test_every_node_can_fall_back_to_the_root():
    pool = make_pool(*["part"] * 40)
    agents = list(pool.agents.values())
    for position, order in enumerate(plan_tree(agents), start=1):
        places = [place[1] - 7000 for place in order.sources]
        assert places == list_above(position)
        assert places[0] == (position - 1) // CHILDREN
        assert places[-1] == 0


def simulate(nodes, chunks, *, read_s, send_s, latency_s):
    """Return when the last node has all chunks: each sends one chunk at a time, in order.

    `read_s` is the time that the root takes to read a chunk, `send_s` what a link takes for one.
    """
    below = [[] for _ in range(nodes)]
    for position in range(1, nodes):
        below[list_above(position)[0]].append(position)
    have = [[0.0] * chunks for _ in range(nodes)]
    have[0] = [read_s * (number + 1) for number in range(chunks)]
    for position in range(nodes):
        waiting = [(have[position][0], 0, child) for child in below[position]]
        heapq.heapify(waiting)
        free_s = 0.0
        while waiting:
            ready_s, number, child = heapq.heappop(waiting)
            free_s = max(free_s, ready_s) + send_s
            have[child][number] = free_s + latency_s
            if number + 1 < chunks:
                heapq.heappush(waiting, (have[position][number + 1], number + 1, child))
    return max(times[-1] for times in have)


@pytest.mark.parametrize(("links", "most"), [(10.0, 1.05), (2.0, 1.1)])
def test_1024_nodes_take_less_than_twice_the_time_of_one(links, most):
    """`links` is how many times as fast as storage a node's link is, in each direction."""
    read_s, chunks = 0.008, 500  # 1 GB in chunks of 2 MB, at 250 MB/s: smaller ones take less
    one_s = read_s * chunks
    all_s = simulate(1024, chunks, read_s=read_s, send_s=read_s / links, latency_s=0.0002)
    assert all_s <= most * one_s
