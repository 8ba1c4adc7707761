"""A process that ends with the one that started it, however that goes."""

import ctypes
import os

_PR_SET_PDEATHSIG = 1


def die_with(parent: int, number: int) -> None:
    """Have the kernel send us a signal when our parent goes, however it goes.

    Args:
        parent: its pid; if it is gone already, the signal comes at once.
        number: the signal.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)
