"""What the ranks of a group say, made into one value; and who tries whom."""

import pytest

from echelon.launch.doctor.asking import Said
from echelon.launch.doctor.examination import (
    FEW,
    add_figures,
    choose_peers,
    is_well,
    look_step,
)
from echelon.launch.doctor.record import Gpu, Look
from echelon.launch.doctor.reducing import merge_answers

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
        (Said(found={"error": "it did not end within 25 s"}), "b: it did not end within 25 s"),
        (Said(found={"ranks": [GOOD, {"error": "time-out"}]}), "b: time-out"),
    ],
)
def test_a_rank_that_fails_fails_them_all_and_is_named(answer, told):
    found = merge(Said(found={"ranks": [GOOD]}), answer)
    assert (found.error, found.bandwidth) == (told, 0.0)


def test_of_few_nodes_each_tries_each_and_of_many_the_next_and_the_first():
    assert choose_peers([0, 2, 5], 2) == [0, 5]
    many = list(range(FEW + 1))
    assert choose_peers(many, 3) == [4, 0]
    assert choose_peers(many, many[-1]) == [0]
    assert choose_peers(many, 0) == [1]


def test_a_first_look_needs_no_folder_and_waits_for_no_other_step():
    argv = look_step("42", "node3")
    assert {"--jobid=42", "--nodelist=node3", "--overlap", "--chdir=/", "--no-kill"} <= set(argv)


def test_where_a_probe_can_be_started():
    assert is_well(Look(folder="seen"))
    assert not is_well(Look(folder="missing"))
    assert not is_well(Look(folder="seen", error="it hangs"))
    assert not is_well(Look(folder="seen", python_error="not found"))


def test_figures_come_to_their_gpus():
    said = Said(found={"ranks": [{"tflops": 1.0, "memory_gbs": 2.0, "name": "X"}, {"error": "e"}]})
    known = [Gpu(index=0, name="H100"), Gpu(index=1, name="H100")]
    first, second = add_figures(known, said)
    assert (first.tflops, first.memory_gbs, first.name) == (1.0, 2.0, "H100")
    assert second.tflops == 0.0
    assert [gpu.index for gpu in add_figures([], said)] == [0, 1]  # no nvidia-smi, but torch
