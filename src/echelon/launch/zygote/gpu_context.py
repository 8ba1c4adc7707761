"""CUDA contexts that are created ahead for ranks that are about to be started again.

A context takes a quarter of a second. After a failure the zygote forks spare processes that create
one while the old ranks are being ended, and that become ranks when their orders arrive. A context
stays on its GPU, takes its settings from the environment, and makes CUDA unusable in forks. So this
is done only if the same rank has had exactly one context before, with the variables that it was
started with, and did not fork before it used CUDA.
"""

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from echelon.launch.protocol.rank_shm import VARIABLE as BEACON
from echelon.launch.protocol.rank_shm import RankShm, find_rank_shm

_FIRST_S, _LOOKS = 0.05, 11
"""Pause before the first look at a rank's contexts, and the number of looks. Each pause is twice as
long as the one before, so the last look is after 100 s."""
_BUSY = (2, 46)
"""CUDA_ERROR_OUT_OF_MEMORY and CUDA_ERROR_DEVICE_UNAVAILABLE: the old rank still has the GPU."""


def cuda_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that CUDA reads when it is initialized."""
    return {name: value for name, value in environ.items() if name.startswith("CUDA_")}


# --- in a rank --------------------------------------------------------------------------------


class ContextWatch:
    """Records on which GPU a rank has its context, if another one could be created ahead."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ, self._given = environ, cuda_variables(environ)
        self._has_forked = False
        self._pauses: Iterator[float] = iter([_FIRST_S * 2**n for n in range(_LOOKS)])
        self.pause_s = next(self._pauses, None)
        """Time until the next look; None if there is none."""

    def begin(self) -> None:
        """Notice forks from now on."""
        os.register_at_fork(before=self._note_fork)

    def _note_fork(self) -> None:
        cuda = sys.modules.get("torch.cuda")
        if cuda is None or not cuda.is_initialized():
            self._has_forked = True

    def look(self) -> None:
        found = find_contexts()
        if not found:
            self.pause_s = next(self._pauses, None)
            return
        self.pause_s = None
        if self._has_forked or cuda_variables(self._environ) != self._given:
            return
        (gpu, flags), *others = found
        if not others and not flags and (beacon := find_rank_shm(self._environ)) is not None:
            beacon.gpu = gpu
            beacon.close()


def find_contexts() -> list[tuple[int, int]]:
    """Return the GPUs on which this process has a context, with the context's flags."""
    if (driver := _load_driver()) is None:
        return []
    count, found = ctypes.c_int(), []
    driver.cuDeviceGetCount(ctypes.byref(count))  # fails if CUDA is not initialized
    for gpu in range(count.value):
        flags, active = ctypes.c_uint(), ctypes.c_int()
        failed = driver.cuDevicePrimaryCtxGetState(gpu, ctypes.byref(flags), ctypes.byref(active))
        if not failed and active.value:
            found.append((gpu, flags.value))
    return found


# --- in the zygote ------------------------------------------------------------------------------


def read_gpu(environ: Mapping[str, str]) -> int:
    """Return the GPU that a rank with these variables has recorded; -1 if it has not."""
    try:
        beacon = RankShm.open(Path(environ[BEACON]))
    except (KeyError, OSError, ValueError):
        return -1
    gpu = beacon.gpu
    beacon.close()
    return gpu


def create_context(gpu: int) -> bool:
    """Create a context; return False if that may succeed later, when the old rank has exited."""
    driver, context = _load_driver(), ctypes.c_void_p()
    if driver is None or driver.cuInit(0):
        return True  # the rank will report it
    return driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), gpu) not in _BUSY


def _load_driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
