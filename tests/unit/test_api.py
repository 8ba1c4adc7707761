import subprocess
import sys

import pytest

import echelon
from echelon.spec.job_spec import KEYS


def test_the_public_api_is_frozen():
    assert sorted(dir(echelon)) == [
        *("Checkpoint", "Checkpointer", "EchelonError", "ElasticIndexSampler", "ElasticSampler"),
        *("Group", "ImageTransform", "Request", "Result", "ResumableLoader", "Run"),
        *("RunFailedError", "StopBarrier", "TimedOutError", "Trainer", "World"),
        *("__version__", "as_completed"),
        *("detect", "init", "last_saved", "loop", "request", "runs", "saved", "top_k"),
    ]
    assert sorted(echelon.__all__) == sorted(dir(echelon))


def test_every_public_name_can_be_had():
    for name in echelon.__all__:
        assert getattr(echelon, name) is not None


def test_importing_it_loads_nothing_else():
    program = (
        "import sys, echelon; print(sorted(m for m in sys.modules if m.startswith('echelon')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['echelon', 'echelon._version']"


def test_an_old_name_still_works_and_names_the_new_one():
    with pytest.warns(DeprecationWarning, match=r"echelon\.StopLine is now echelon\.StopBarrier"):
        assert echelon.StopLine is echelon.StopBarrier


def test_a_request_from_python_has_the_keys_of_the_project_file():
    from echelon.client.python.python_api import RequestOptions

    keys = {key.replace(".", "_") for key in KEYS} - {"script", "args"}
    own = {"on", "runs_dir", "address", "cluster", "host", "config", "max_running"}
    own.add("trust_host")
    assert set(RequestOptions.__annotations__) == keys | own
