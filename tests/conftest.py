"""What all tests share: nothing may be skipped in CI, and nothing may leak."""

import os
import signal
import threading
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import pytest

from apptainer import (  # noqa: F401  fixtures
    apptainer,
    apptainer_place,
    apptainer_project,
    torch_sif,
)
from container_image import Image
from requirements import do_without, require, require_root

# A busy machine is not a failure; whatever hangs is ended by pytest-timeout. (CI=true would choose
# a profile of hypothesis' own.)
for _profile, _examples in (("quick", 40), ("thorough", 300)):
    hypothesis.settings.register_profile(
        _profile,
        max_examples=_examples,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile("quick")  # `make test-all` chooses the other one

# What a shell starts in the background ignores Ctrl-C, what nohup starts the end of the terminal,
# and so would every command that a test runs.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

_TESTS = Path(__file__).parent
_SLOWEST_FIRST = (
    *("slurm/test_handover", "ray/", "local/test_conformance", "slurm/", "docs/test_pages"),
    *("local/", "browser/", "docs/", "unit/", "gpu/"),
)
"""How paths begin. Workers side by side (`--dist loadfile`) finish together if what takes long
starts first."""


def pytest_collection_modifyitems(config, items):
    for item in items:
        folder = _folder(item)
        if folder in ("unit", "slurm", "browser", "ray"):
            item.add_marker(folder)
    if hasattr(config, "workerinput"):
        items.sort(key=_turn)


def _turn(item):
    path = str(item.path.relative_to(_TESTS))
    return next(n for n, start in enumerate(_SLOWEST_FIRST) if path.startswith(start))


def _folder(item):
    return item.path.relative_to(_TESTS).parts[0]


def _variables():
    # pytest's own, and what torch sets when its optimisers or its compiler are first used.
    others = ("PYTEST_CURRENT_TEST", "TORCHINDUCTOR_", "TRITON_")
    return {key: value for key, value in os.environ.items() if not key.startswith(others)}


@pytest.fixture(autouse=True, scope="session")
def _own_state(tmp_path_factory):
    """Keep what commands remember out of the developer's home."""
    before = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    yield
    if before is None:
        del os.environ["XDG_STATE_HOME"]
    else:
        os.environ["XDG_STATE_HOME"] = before


@pytest.fixture(autouse=True)
def _no_leaks(request):
    """Fail a test that leaves variables or threads behind: the next one would inherit them."""
    variables, threads = _variables(), set(threading.enumerate())
    yield
    assert _variables() == variables, "the test changed os.environ"
    if request.node.get_closest_marker("leaves_threads"):
        return
    left = set(threading.enumerate()) - threads
    for thread in left:
        thread.join(timeout=5)  # a queue's own, which is on its way out
    left = {thread for thread in left if thread.is_alive()}
    assert not left, f"the test left threads behind: {left}"


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory):
    """A folder that all workers share; what was unpacked from its images is removed with it."""
    require("podman", "ldd")
    require_root("podman without its set-up for ordinary users")
    base = tmp_path_factory.getbasetemp()
    return base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base


@pytest.fixture(scope="session")
def torch_image(image_folder):
    """An image with Python and torch."""
    if find_spec("nvidia"):  # the packages of CUDA's libraries, which have gigabytes
        do_without("needs torch without CUDA, for an image of a sensible size")
    image = Image(image_folder, "torch")
    yield image
    image.remove()


@pytest.fixture(scope="session")
def bare_image(image_folder):
    """An image with Python, and without torch."""
    image = Image(image_folder, "bare", torch=False)
    yield image
    image.remove()
