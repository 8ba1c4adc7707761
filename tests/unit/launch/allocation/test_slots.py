"""Slots: what is handed out is free, and what comes back can be handed out again."""

from collections import Counter
from fractions import Fraction
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.launch.allocation.slots import Ask, Ledger, Slot, slot_environment

ASKS = st.builds(
    Ask,
    nodes=st.integers(1, 3),
    gpus=st.integers(0, 4),
    cpus=st.integers(1, 8),
    sharing=st.integers(1, 4),
)


def make_ledger(*sizes):
    ledger = Ledger()
    for node, (gpus, cpus) in enumerate(sizes):
        ledger.add(node, gpus=gpus, cpus=cpus)
    return ledger


def used(slots):
    """Return how much of each GPU is taken."""
    total = Counter()
    for slot in slots:
        for gpu in slot.gpus:
            total[slot.node, gpu] += slot.part
    return total


@given(
    sizes=st.lists(st.tuples(st.integers(0, 8), st.integers(1, 16)), min_size=1, max_size=4),
    asks=st.lists(ASKS, max_size=20),
)
def test_no_gpu_is_handed_out_twice_and_all_comes_back(sizes, asks):
    ledger, taken = make_ledger(*sizes), []
    for ask in asks:
        slots = ledger.take(ask)
        if slots is None:
            continue
        assert len({slot.node for slot in slots}) == ask.nodes
        assert all(len(slot.gpus) == ask.gpus for slot in slots)
        taken.append(slots)
    assert all(amount <= 1 for amount in used(chain(*taken)).values())
    for slots in taken:
        ledger.give_back(slots)
    fresh = make_ledger(*sizes)
    for ask in asks:
        assert (ledger.take(ask) is None) == (fresh.take(ask) is None)


def test_a_gpu_comes_with_its_share_of_the_cpus():
    ledger = make_ledger((4, 8))
    found = [ledger.take(Ask(gpus=1))[0] for _ in range(4)]
    assert [slot.gpus for slot in found] == [(0,), (1,), (2,), (3,)]
    assert [slot.cpus for slot in found] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert ledger.take(Ask(gpus=1)) is None


def test_tasks_that_share_a_slot_are_spread_first():
    ledger = make_ledger((2, 2))
    found = [ledger.take(Ask(gpus=1, sharing=2))[0] for _ in range(4)]
    assert [slot.gpus for slot in found] == [(0,), (1,), (0,), (1,)]
    assert found[0].part == Fraction(1, 2)
    assert ledger.take(Ask(gpus=1, sharing=2)) is None


def test_several_nodes_are_taken_together_or_not_at_all():
    ledger = make_ledger((1, 1), (1, 1))
    ledger.take(Ask(gpus=1))
    assert ledger.take(Ask(nodes=2, gpus=1)) is None
    assert ledger.take(Ask(gpus=1)) is not None


def test_what_a_node_that_is_lost_had_does_not_come_back_with_it():
    ledger = make_ledger((1, 1))
    slots = ledger.take(Ask(gpus=1))
    ledger.remove(0)
    assert not ledger.offers(Ask(gpus=1))
    ledger.give_back(slots)
    ledger.add(0, gpus=1, cpus=1)
    ledger.hold(slots)  # its step still waits for the node
    assert ledger.take(Ask(gpus=1)) is None
    assert ledger.offers(Ask(gpus=1))


def test_what_the_nodes_have_is_described():
    assert make_ledger((4, 16), (4, 16)).describe() == "there are 2 with 4 GPUs and 16 CPUs"
    assert Ledger().describe() == "none is left"


@pytest.mark.parametrize("devices", ["0,1,2,3", "GPU-a,GPU-b,GPU-c,GPU-d"])
def test_ranks_see_their_slot_as_a_job_of_its_own(devices):
    environ = {"SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": devices, "SLURM_JOB_GPUS": "4,5,6,7"}
    slot = Slot(node=1, gpus=(1, 3), cpus=(2, 3))
    found = slot_environment(environ, slot, ["n2", "n3"])
    names = devices.split(",")
    assert found["CUDA_VISIBLE_DEVICES"] == f"{names[1]},{names[3]}"
    assert found["SLURM_JOB_GPUS"] == "5,7"
    assert found["SLURM_JOB_NODELIST"] == found["SLURM_NODELIST"] == "n[2-3]"
    assert found["SLURM_NNODES"] == "2"
    assert (found["SLURM_CPUS_ON_NODE"], found["SLURM_GPUS_ON_NODE"]) == ("2", "2")


def test_a_step_without_gpus_sees_none_of_the_nodes():
    environ = {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert slot_environment(environ, Slot(node=0, cpus=(0,)), ["n1"]) == {
        "CUDA_VISIBLE_DEVICES": ""
    }
    assert slot_environment({}, Slot(node=0, cpus=(0,)), ["n1"]) == {}
