"""The doctor on a real GPU: the driver is asked, torch is tried, and each GPU is measured."""

import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)


PRELOAD = os.environ.get("ECHELON_TEST_NCCL", "")
SHARED = {"ECHELON_SHARE_GPU": "1", **({"LD_PRELOAD": PRELOAD} if PRELOAD else {})}


def examine(folder, *options, **more):
    """Return what the doctor reports about this machine."""
    argv = [sys.executable, "-m", "echelon", "doctor", f"--python={sys.executable}", "--json"]
    environ = {name: v for name, v in os.environ.items() if not name.startswith("SLURM")}
    done = subprocess.run(
        [*argv, *options],
        cwd=folder,
        env=environ | more,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    record = json.loads(done.stdout)
    assert [one for one in record["findings"] if one["severity"] == "error"] == [], done.stderr
    return record


def test_the_doctor_finds_no_error_on_a_machine_with_a_gpu(tmp_path):
    record = examine(tmp_path)
    (node,) = record["nodes"]
    count = torch.cuda.device_count()
    assert node["facts"]["driver"]
    assert node["torch"]["devices"] == count
    assert node["torch"]["nccl"]
    gpus = node["facts"]["gpus"]
    assert len(gpus) >= count
    measured = [gpu for gpu in gpus if gpu["tflops"]]
    assert len(measured) == count
    assert all(gpu["tflops"] > 1 and gpu["memory_gbs"] > 10 for gpu in measured)
    if count > 1:
        assert record["overall"]["backend"] == "nccl"
        assert record["overall"]["bandwidth"] > 1e9


@pytest.mark.parametrize("short", [[], ["--short"]], ids=["", "as a preflight does"])
def test_the_doctor_measures_nccl_between_ranks_that_share_a_gpu(tmp_path, short):
    record = examine(tmp_path, *short, **SHARED)
    assert record["overall"]["backend"] == "nccl"
    assert record["overall"]["ranks"] == 2 * torch.cuda.device_count()
    assert record["overall"]["bandwidth"] > 1e9
