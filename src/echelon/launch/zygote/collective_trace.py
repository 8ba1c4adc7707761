"""A rank's record of its collectives, sent to the agent on request.

torch records the last collectives of a process by itself (its Flight Recorder). torch's own way to
read the record from outside is a pipe; it answers with a pickle that includes stacks, for which it
imports `torch._inductor` first: that takes seconds and changes the process. This thread answers
within milliseconds, in JSON, on a socket in the agent's private folder. Nothing is written to disk,
and an idle thread costs nothing.
"""

import _thread
import contextlib
import ctypes
import functools
import os
import socket
import sys
from pathlib import Path
from typing import Any

from echelon.launch.protocol.collective_trace import BACKENDS
from echelon.launch.zygote.gpu_context import ContextWatch

_READERS = {"nccl": "_dump_nccl_trace_json", "gloo": "_dump_fr_trace_json"}
"""By backend: torch's function, if this version has it."""
_CAPTURE_RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED"""


def offer_trace(path: Path, watch: ContextWatch) -> None:
    """Answer on a socket, and watch, from the moment the rank creates its process group."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    init = getattr(c10d, "init_process_group", None)  # None: torch was built without it
    if c10d is None or init is None:
        return

    rank = os.getpid()

    @functools.wraps(init)
    def offer_and_init(*args: Any, **options: Any) -> None:
        # Not earlier: a process with several threads should not fork. What a rank forks may have
        # groups of its own, which are none of the run's.
        with contextlib.suppress(OSError):  # a second group
            if os.getpid() == rank:
                _start(path, watch)
        init(*args, **options)

    for module in (c10d, sys.modules["torch.distributed"]):
        module.init_process_group = offer_and_init  # type: ignore[attr-defined]


def _start(path: Path, watch: ContextWatch) -> None:
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
        listener.listen()
    except OSError:
        listener.close()
        raise
    # Not `threading`: programs count and join its threads.
    _thread.start_new_thread(_answer, (listener, sys.modules["torch._C._distributed_c10d"], watch))


def _answer(listener: socket.socket, native: Any, watch: ContextWatch) -> None:
    with contextlib.suppress(OSError), listener:  # the program has closed all files
        while True:
            listener.settimeout(watch.pause_s)
            try:
                agent, _ = listener.accept()
            except TimeoutError:
                _permit_captures()
                watch.look()
                continue
            with agent, contextlib.suppress(OSError):
                agent.sendall(_read(native))  # without SIGPIPE if the agent has given up


def _read(native: Any) -> bytes:
    found = []
    captures = _permit_captures()
    for backend in BACKENDS:
        reader = getattr(native, _READERS[backend], None) if backend != "nccl" or captures else None
        with contextlib.suppress(RuntimeError, TypeError):  # another version of torch
            if reader is not None:
                record = reader(includeCollectives=True, onlyActive=False)
                found.append(b'"%s":%s' % (backend.encode(), record))
    return b"{%s}" % b",".join(found)


def _permit_captures() -> bool:
    """Have CUDA permit what this thread calls while another one captures a graph.

    For NCCL's record torch queries events, which by default invalidates every capture.

    Returns:
        whether the record of NCCL may be read.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(_CAPTURE_RELAXED)))
    return True  # even if it failed: then CUDA is not in use yet
