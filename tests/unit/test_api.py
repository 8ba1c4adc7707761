import subprocess
import sys

import pytest

import echelon


def test_the_public_api_is_frozen():
    assert sorted(dir(echelon)) == [
        *("Checkpoint", "Checkpointer", "EchelonError", "ElasticIndexSampler", "ElasticSampler"),
        *("Group", "ImageTransform", "Result", "ResumableLoader", "StopBarrier", "Trainer"),
        *("World", "__version__", "detect", "init", "last_saved", "loop", "saved", "top_k"),
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
