"""GPUs: parsing of nvidia-smi, and which of them are ours."""

import asyncio

import pytest

from echelon.core.shell import FakeShell, Result
from echelon.errors import TimedOutError
from echelon.launch.doctor.gpus import add_figures, ask_gpus, own_gpus, parse_gpus
from echelon.launch.doctor.results import Facts, Gpu, Node, Torch

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


def test_gpus_are_read_with_ecc_errors_and_throttle_reasons():
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
def test_gpus_are_read_from_drivers_that_lack_throttle_fields(known, masks, throttle):
    unknown = Result(argv=("nvidia-smi",), code=2, stdout="Field is not a valid field to query.")
    answers = {QUERY: unknown, OLDER: unknown, NEWER: unknown, f"{QUERY} --format": unknown}
    shell = FakeShell(answers={**answers, f"{known} --format": shown(*masks)})
    _, gpus, wrong = ask(shell)
    assert ([gpu.throttle for gpu in gpus], wrong) == (throttle, "")


def test_a_missing_nvidia_smi_is_reported():
    assert ask(FakeShell(programs=[])) == ("", [], "there is no nvidia-smi")


def test_a_failing_nvidia_smi_is_reported_with_its_output():
    said = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    shell = FakeShell(answers={"nvidia-smi": Result(argv=("x",), code=9, stdout=said)})
    assert ask(shell) == ("", [], f"nvidia-smi exited with code 9: {said}")


def test_a_hanging_nvidia_smi_is_reported():
    def hang(_argv):
        raise TimedOutError("'nvidia-smi' did not end within 30 s")

    assert ask(FakeShell(answers={"nvidia-smi": hang}))[2].endswith("within 30 s")


@pytest.mark.parametrize("text", ["", "No devices were found\n", "0, x\n", "a, b, c, d, e, f\n"])
def test_lines_that_are_not_gpus_are_ignored(text):
    assert parse_gpus(text) == ("", [])


def test_a_gpu_without_ecc_has_no_errors():
    _, (gpu,) = parse_gpus("0, GeForce, GPU-1, 8192, 535.1, [N/A]\n")
    assert gpu.ecc_errors == 0


GPUS = [Gpu(index=number, name="H100", uuid=f"GPU-{number}abc") for number in range(4)]


def node(gpus=GPUS, *, uuids=(), devices=None, **facts):
    """A node of a job, whose torch can use the GPUs with these UUIDs."""
    torch = Torch(devices=len(uuids) if devices is None else devices, uuids=uuids)
    return Node(name="n", facts=Facts(**{"gpus": gpus, "in_job": True, **facts}), torch=torch)


@pytest.mark.parametrize(
    ("uuids", "devices", "granted", "indices", "certain"),
    [
        (("GPU-2abc", "GPU-1abc"), 2, 2, [2, 1], True),
        (("GPU-2abc",), 1, 2, [2], True),
        (("GPU-2abc", "GPU-9"), 2, 2, [0, 1, 2, 3], False),
        (("", ""), 2, 2, [0, 1, 2, 3], False),  # torch is older than 2.5
        ((), 0, 2, [0, 1, 2, 3], False),
        ((), 0, 0, [], True),
        ((), 0, 4, [0, 1, 2, 3], True),  # nvidia-smi shows no others
        (("GPU-2abc",), 1, 0, [2], True),  # Slurm does not manage GPUs
    ],
)
def test_gpus_of_a_job_are_those_that_torch_can_use(uuids, devices, granted, indices, certain):
    gpus, sure = own_gpus(node(uuids=uuids, devices=devices, granted=granted))
    assert ([gpu.index for gpu in gpus], sure) == (indices, certain)


def test_all_gpus_of_a_machine_outside_a_job_are_ours():
    assert own_gpus(node(in_job=False)) == (GPUS, True)
    assert own_gpus(Node(name="n")) == ([], True)


def test_mig_instances_belong_to_the_only_gpu_that_is_shown():
    parts = {"parts": True, "granted": 2, "uuids": ["MIG-a"]}
    assert own_gpus(node(GPUS[:1], **parts)) == (GPUS[:1], True)
    assert own_gpus(node(GPUS, **parts)) == (GPUS, False)


FIGURE = {"tflops": 1.0, "memory_gbs": 2.0, "name": "X"}


def measured(node, *figures):
    facts = add_figures(node, {"ranks": list(figures)})
    return {gpu.index: (gpu.name, gpu.tflops) for gpu in facts.gpus if gpu.tflops}


def test_figures_are_added_to_the_gpus_that_torch_has():
    known = node(uuids=["GPU-2abc", "GPU-1abc"])
    assert measured(known, FIGURE, {"error": "e"}) == {2: ("H100", 1.0)}
    assert len(add_figures(known, {"ranks": [FIGURE, FIGURE]}).gpus) == 4
    assert measured(node(GPUS[:1], granted=1, devices=1), FIGURE) == {0: ("H100", 1.0)}


def test_figures_of_unknown_gpus_are_numbered_as_in_torch():
    assert measured(node(gpus=[], devices=2), FIGURE, FIGURE) == {0: ("X", 1.0), 1: ("X", 1.0)}
    unknown = add_figures(node(devices=1, granted=1), {"ranks": [FIGURE]})
    assert [gpu.name for gpu in unknown.gpus] == ["X"]


def test_an_answer_without_figures_changes_nothing():
    assert add_figures(node(), {"error": "it hangs"}).gpus == GPUS
