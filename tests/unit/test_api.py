import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import get_type_hints

import pytest

import echelon
from echelon.spec import readers
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


PYTHON_TYPES = {
    **dict.fromkeys((readers.text, readers.hosts, readers.address), str),
    **dict.fromkeys((readers.count, readers.positive), int),
    **dict.fromkeys((readers.nodes, readers.memory, readers.duration, readers.seconds), int | str),
    **dict.fromkeys((readers.words, readers.lines, readers.mail_types), Iterable[str]),
    **dict.fromkeys((readers.table, readers.options), Mapping[str, str]),
    readers.switch: bool,
}
"""What a caller from Python passes, by the reader of the key; words for all others."""


def test_a_request_from_python_has_the_keys_of_the_project_file():
    from echelon.client.python.python_api import RequestOptions

    keys = {k.parameter: k.read for k in KEYS.values() if not k.is_argument}
    options = get_type_hints(RequestOptions)
    own = {"on", "runs_dir", "address", "cluster", "host", "config", "max_running", "trust_host"}
    assert options.keys() - keys.keys() == own
    assert [name for name in options if name not in own] == list(keys)
    assert {name: options[name] for name in keys} == {
        name: PYTHON_TYPES.get(read, str) for name, read in keys.items()
    }
