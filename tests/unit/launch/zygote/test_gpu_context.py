"""CUDA contexts that are created ahead, with a stand-in for CUDA's driver."""

import os
import sys
from types import SimpleNamespace

import pytest

from echelon.launch.protocol.rank_shm import VARIABLE, RankShm
from echelon.launch.zygote import gpu_context
from echelon.launch.zygote.gpu_context import (
    ContextWatch,
    create_context,
    find_contexts,
    read_gpu,
)

NOT_INITIALIZED, OUT_OF_MEMORY, INVALID_DEVICE = 3, 2, 101


class Driver:
    """Counts and creates contexts like libcuda."""

    def __init__(self, contexts=None, *, initialized=True, retain=0):
        self.contexts = contexts or {}
        """GPU → flags of its context; None if it has none."""
        self.initialized, self.retain, self.created = initialized, retain, []

    def cuInit(self, _flags):  # noqa: N802  CUDA's name
        return 0 if self.initialized else 100

    def cuDeviceGetCount(self, count):  # noqa: N802
        if not self.initialized:
            return NOT_INITIALIZED
        count._obj.value = len(self.contexts)
        return 0

    def cuDevicePrimaryCtxGetState(self, gpu, flags, active):  # noqa: N802
        found = self.contexts[gpu]
        flags._obj.value, active._obj.value = found or 0, int(found is not None)
        return 0

    def cuDevicePrimaryCtxRetain(self, _context, gpu):  # noqa: N802
        self.created.append(gpu)
        return self.retain


@pytest.fixture
def use(monkeypatch):
    def put(driver):
        monkeypatch.setattr(gpu_context, "_load_driver", lambda: driver)
        return driver

    return put


@pytest.fixture
def environ(tmp_path):
    RankShm.create(tmp_path / "beacon").close()
    return {VARIABLE: str(tmp_path / "beacon"), "CUDA_VISIBLE_DEVICES": "0,1", "HOME": "/"}


def test_a_rank_records_its_gpu(use, environ):
    use(Driver({0: None, 1: 0}))
    watch = ContextWatch(environ)
    assert watch.pause_s == 0.05
    assert read_gpu(environ) == -1
    watch.look()
    assert watch.pause_s is None
    assert read_gpu(environ) == 1


@pytest.mark.parametrize(
    "contexts", [{0: 0, 1: 0}, {0: 8, 1: None}], ids=["two contexts", "flags of its own"]
)
def test_a_rank_with_unusual_contexts_records_nothing(use, environ, contexts):
    use(Driver(contexts))
    watch = ContextWatch(environ)
    watch.look()
    assert watch.pause_s is None
    assert read_gpu(environ) == -1


@pytest.mark.parametrize("value", ["1", None])
def test_a_rank_that_changes_what_cuda_reads_records_nothing(use, environ, value):
    use(Driver({0: 0}))
    watch = ContextWatch(environ)
    environ |= {"CUDA_VISIBLE_DEVICES": value} if value else {"CUDA_LAUNCH_BLOCKING": "1"}
    watch.look()
    assert read_gpu(environ) == -1


@pytest.mark.parametrize(("initialized", "gpu"), [(False, -1), (True, 0)])
def test_a_rank_that_forks_before_it_uses_cuda_records_nothing(
    use, environ, monkeypatch, initialized, gpu
):
    """CUDA cannot be used in forks of a process with a context."""
    use(Driver({0: 0}))
    cuda = SimpleNamespace(is_initialized=lambda: initialized)
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    hooks = []
    monkeypatch.setattr(os, "register_at_fork", lambda *, before: hooks.append(before))
    watch = ContextWatch(environ)
    watch.begin()
    hooks[0]()
    watch.look()
    assert read_gpu(environ) == gpu


def test_a_rank_without_a_context_is_looked_at_for_100_seconds(use, environ):
    use(Driver(initialized=False))
    watch, waited_s, looks = ContextWatch(environ), 0.0, 0
    while watch.pause_s is not None:
        waited_s, looks = waited_s + watch.pause_s, looks + 1
        watch.look()
    assert looks == 11
    assert 100 < waited_s < 105


def test_without_a_driver_there_is_no_context(use):
    use(None)
    assert find_contexts() == []
    assert create_context(0)


@pytest.mark.parametrize(
    ("retain", "done"), [(0, True), (OUT_OF_MEMORY, False), (46, False), (INVALID_DEVICE, True)]
)
def test_a_gpu_that_is_still_in_use_is_tried_again(use, retain, done):
    driver = use(Driver({0: None}, retain=retain))
    assert create_context(0) is done
    assert driver.created == [0]


def test_a_rank_without_a_record_is_unknown(tmp_path):
    assert read_gpu({}) == -1
    assert read_gpu({VARIABLE: str(tmp_path / "none")}) == -1
