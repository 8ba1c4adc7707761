"""Which GPUs are ours, by what a process was told of them."""

from dataclasses import replace

import pytest

from echelon.launch.doctor.granted import Grant, add_figures, find_ours, own_gpus, read_grant
from echelon.launch.doctor.record import Facts, Gpu

GPUS = [Gpu(index=number, name="H100", uuid=f"GPU-{number}abc") for number in range(4)]
MIXED = [*GPUS[:3], replace(GPUS[3], name="T4")]
PARTS = {"MIG-a": "GPU-1abc", "MIG-b": "GPU-1abc", "MIG-c": "GPU-2abc"}


def ours(visible, gpus=GPUS, *, in_job=True, by_bus=False):
    grant = Grant(visible=visible, in_job=in_job, by_bus=by_bus)
    return find_ours(gpus, grant, PARTS)


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        ("2,1", [2, 1]),
        ("0,1,2,3", [0, 1, 2, 3]),
        ("GPU-3abc,GPU-0abc", [3, 0]),
        ("GPU-3", [3]),
        ("GPU-", None),  # of several
        ("GPU-9", None),
        ("7", None),
        ("0:1", None),
        ("MIG-a,MIG-b", [1]),
        ("MIG-c,MIG-a", [2, 1]),
        ("MIG-unknown", None),
        ("MIG-GPU-2abc/1/0", [2]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        (None, None),
    ],
)
def test_in_a_job(visible, found):
    assert ours(visible) == found


@pytest.mark.parametrize("visible", [None, "", "-1"])
def test_a_machine_of_ones_own_has_its_gpus_whatever_is_hidden(visible):
    assert ours(visible, in_job=False) == [0, 1, 2, 3]


def test_where_slurm_shows_only_what_it_has_granted():
    assert ours("2,3", GPUS[:2]) == [0, 1]
    assert ours("MIG-unknown", GPUS[:1]) == [0]
    assert ours("0,1,2,3", GPUS[:3]) == [0, 1, 2]  # one has fallen off the bus
    assert ours("0", []) == []


def test_cuda_counts_gpus_of_several_kinds_in_its_own_order():
    assert ours("0", MIXED) is None
    assert ours("0", MIXED, by_bus=True) == [0]
    assert ours("GPU-0abc", MIXED) == [0]


def test_what_a_process_was_told():
    assert read_grant({}) == Grant(visible=None, in_job=False)
    environ = {"CUDA_VISIBLE_DEVICES": "MIG-a", "SLURM_JOB_ID": "1"}
    assert read_grant({**environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == Grant(
        visible="MIG-a", in_job=True, by_bus=True
    )
    assert read_grant(environ).has_parts


FIGURE = {"tflops": 1.0, "memory_gbs": 2.0, "name": "X"}


def measured(facts, *figures):
    found = add_figures(facts, {"ranks": list(figures)})
    return {gpu.index: (gpu.name, gpu.tflops) for gpu in found.gpus if gpu.tflops}


def test_figures_come_to_the_gpus_that_torch_has():
    facts = Facts(gpus=GPUS, ours=[2, 1])
    assert measured(facts, FIGURE, {"error": "e"}) == {2: ("H100", 1.0)}
    assert len(add_figures(facts, {"ranks": [FIGURE, FIGURE]}).gpus) == 4
    named = {**FIGURE, "uuid": "GPU-3abc"}
    assert measured(Facts(gpus=GPUS, ours=None), named) == {3: ("H100", 1.0)}
    assert measured(Facts(gpus=GPUS, ours=[1, 2], parts=True), FIGURE) == {1: ("H100", 1.0)}


def test_figures_of_gpus_that_nobody_knows():
    assert measured(Facts(ours=[]), FIGURE, FIGURE) == {0: ("X", 1.0), 1: ("X", 1.0)}
    unknown = add_figures(Facts(gpus=GPUS, ours=None), {"ranks": [FIGURE]})
    assert [gpu.name for gpu in own_gpus(unknown)] == ["X"]
