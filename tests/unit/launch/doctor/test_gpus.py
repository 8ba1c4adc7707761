"""What nvidia-smi says, and what it says when something is wrong."""

import asyncio

import pytest

from echelon.core.shell import FakeShell, Result
from echelon.errors import TimedOutError
from echelon.launch.doctor.gpus import ask_gpus, ask_parts, parse_gpus, parse_parts, parse_reasons
from echelon.launch.doctor.record import Gpu

BASIC = """\
0, NVIDIA H200, GPU-1, 143771, 570.86.15, 0
1, NVIDIA H200, GPU-2, 143771, 570.86.15, 2
"""
QUERY = "nvidia-smi --query-gpu=index,"


def ask(shell):
    return asyncio.run(ask_gpus(shell, {"PATH": "/bin", "LD_LIBRARY_PATH": "/stubs"}))


def test_two_gpus_of_which_one_is_ill():
    reasons = "0, 0x0000000000000001\n1, 0x0000000000000048\n"
    shell = FakeShell(
        answers={f"{QUERY}name": BASIC, f"{QUERY}clocks_throttle_reasons.active": reasons}
    )
    driver, gpus, wrong = ask(shell)
    assert (driver, wrong) == ("570.86.15", "")
    assert gpus[0] == Gpu(index=0, name="NVIDIA H200", uuid="GPU-1", memory_mib=143771)
    assert (gpus[1].ecc_errors, gpus[1].throttle) == (
        *(2, ("hardware slowdown", "hardware thermal slowdown")),
    )


def test_a_driver_that_has_only_the_newer_name():
    unknown = Result(argv=("nvidia-smi",), code=2, stdout="Field is not a valid field to query.")
    shell = FakeShell(
        answers={
            f"{QUERY}name": BASIC,
            f"{QUERY}clocks_throttle_reasons.active": unknown,
            f"{QUERY}clocks_event_reasons.active": "0, 0x80\n1, 0x4\n",
        }
    )
    _, gpus, _ = ask(shell)
    assert [gpu.throttle for gpu in gpus] == [("power brake",), ()]


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
    assert parse_reasons(text) == {}


LISTED = """\
GPU 0: NVIDIA A100 (UUID: GPU-5c89)
  MIG 3g.20gb     Device  0: (UUID: MIG-1d5b)
  MIG 2g.10gb     Device  1: (UUID: MIG-9f01)
GPU 1: NVIDIA A100 (UUID: GPU-77aa)
  MIG 7g.40gb     Device  0: (UUID: MIG-0001)
"""


def test_parts_of_gpus():
    known = {"MIG-1d5b": "GPU-5c89", "MIG-9f01": "GPU-5c89", "MIG-0001": "GPU-77aa"}
    assert parse_parts(LISTED) == known
    assert parse_parts("No devices found.\n") == {}
    shell = FakeShell(answers={"nvidia-smi --list-gpus": LISTED})
    assert asyncio.run(ask_parts(shell, {})) == known


def test_one_without_ecc():
    _, (gpu,) = parse_gpus("0, GeForce, GPU-1, 8192, 535.1, [N/A]\n")
    assert gpu.ecc_errors == 0
