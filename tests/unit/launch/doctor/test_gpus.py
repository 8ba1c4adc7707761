"""GPUs: parsing of nvidia-smi, and which of them are ours."""

import asyncio
from dataclasses import replace

import pytest

from echelon.core.shell import FakeShell, Result
from echelon.errors import TimedOutError
from echelon.launch.doctor.gpus import (
    add_figures,
    ask_gpus,
    ask_mig,
    find_ours,
    has_mig,
    own_gpus,
    parse_gpus,
    parse_mig,
)
from echelon.launch.doctor.results import Facts, Gpu

BASIC = """\
0, NVIDIA H200, GPU-1, 143771, 570.86.15, 0
1, NVIDIA H200, GPU-2, 143771, 570.86.15, 2
"""
QUERY = (
    "nvidia-smi --query-gpu=index,name,uuid,memory.total,driver_version,"
    "ecc.errors.uncorrected.volatile.total"
)
OLDER, NEWER = f"{QUERY},clocks_throttle_reasons.active", f"{QUERY},clocks_event_reasons.active"


def shown(*masks):
    lines = BASIC.splitlines()
    return "\n".join([f"{a}, {b}" for a, b in zip(lines, masks, strict=True)] if masks else lines)


def ask(shell):
    return asyncio.run(ask_gpus(shell, {"PATH": "/bin", "LD_LIBRARY_PATH": "/stubs"}))


def test_two_gpus_of_which_one_is_ill():
    shell = FakeShell(answers={OLDER: shown("0x0000000000000001", "0x0000000000000048")})
    driver, gpus, wrong = ask(shell)
    assert (driver, wrong) == ("570.86.15", "")
    assert gpus[0] == Gpu(index=0, name="NVIDIA H200", uuid="GPU-1", memory_mib=143771)
    assert (gpus[1].ecc_errors, gpus[1].throttle) == (
        *(2, ("hardware slowdown", "hardware thermal slowdown")),
    )


@pytest.mark.parametrize(
    ("known", "masks", "throttle"),
    [(NEWER, ("0x80", "0x4"), [("power brake",), ()]), (QUERY, (), [(), ()])],
)
def test_a_driver_without_the_older_name_of_the_reasons(known, masks, throttle):
    unknown = Result(argv=("nvidia-smi",), code=2, stdout="Field is not a valid field to query.")
    answers = {QUERY: unknown, OLDER: unknown, NEWER: unknown, f"{QUERY} --format": unknown}
    shell = FakeShell(answers={**answers, f"{known} --format": shown(*masks)})
    _, gpus, wrong = ask(shell)
    assert ([gpu.throttle for gpu in gpus], wrong) == (throttle, "")


def test_without_the_program():
    assert ask(FakeShell(programs=[])) == ("", [], "there is no nvidia-smi")


def test_where_it_fails():
    said = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    shell = FakeShell(answers={"nvidia-smi": Result(argv=("x",), code=9, stdout=said)})
    assert ask(shell) == ("", [], f"nvidia-smi exited with code 9: {said}")


def test_where_it_hangs():
    def hang(_argv):
        raise TimedOutError("'nvidia-smi' did not end within 30 s")

    assert ask(FakeShell(answers={"nvidia-smi": hang}))[2].endswith("within 30 s")


@pytest.mark.parametrize("text", ["", "No devices were found\n", "0, x\n", "a, b, c, d, e, f\n"])
def test_what_is_no_gpu(text):
    assert parse_gpus(text) == ("", [])


LISTED = """\
GPU 0: NVIDIA A100 (UUID: GPU-5c89)
  MIG 3g.20gb     Device  0: (UUID: MIG-1d5b)
  MIG 2g.10gb     Device  1: (UUID: MIG-9f01)
GPU 1: NVIDIA A100 (UUID: GPU-77aa)
  MIG 7g.40gb     Device  0: (UUID: MIG-0001)
"""


def test_parts_of_gpus():
    known = {"MIG-1d5b": "GPU-5c89", "MIG-9f01": "GPU-5c89", "MIG-0001": "GPU-77aa"}
    assert parse_mig(LISTED) == known
    assert parse_mig("No devices found.\n") == {}
    shell = FakeShell(answers={"nvidia-smi --list-gpus": LISTED})
    assert asyncio.run(ask_mig(shell, {})) == known


def test_one_without_ecc():
    _, (gpu,) = parse_gpus("0, GeForce, GPU-1, 8192, 535.1, [N/A]\n")
    assert gpu.ecc_errors == 0


GPUS = [Gpu(index=number, name="H100", uuid=f"GPU-{number}abc") for number in range(4)]
MIXED = [*GPUS[:3], replace(GPUS[3], name="T4")]
PARTS = {"MIG-a": "GPU-1abc", "MIG-b": "GPU-1abc", "MIG-c": "GPU-2abc"}


def ours(visible, gpus=GPUS, *, in_job=True, **environ):
    environ |= {"SLURM_JOB_ID": "1"} if in_job else {}
    environ |= {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return find_ours(gpus, environ, PARTS)


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
    assert ours("0", MIXED, CUDA_DEVICE_ORDER="PCI_BUS_ID") == [0]
    assert ours("GPU-0abc", MIXED) == [0]


def test_mig_instances_are_recognised():
    assert has_mig({"CUDA_VISIBLE_DEVICES": "MIG-a"})
    assert not has_mig({"CUDA_VISIBLE_DEVICES": "0"})
    assert not has_mig({})


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
