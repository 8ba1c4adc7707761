"""Gloo's process groups stay for a moment longer, though a script has destroyed them.

The last to hold a group is mostly DistributedDataParallel. When it goes, torch waits for a thread
of the group's, with Python's lock in its hands; and the thread may want that lock to let go of its
last work. Then a script that has done everything well hangs in its last line, under any launcher.
Here the group outlives that line. Most ranks are over by then, and end without being taken apart;
of one that stays, peers that still wait for it have to hear, so its groups go in the end: a thread
that has had nothing to do for so long wants no lock.
"""

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator
from typing import Any

KEEP_S = 5.0
"""For how long."""


def keep_gloo_groups() -> None:
    """Have torch keep them, where it is imported."""
    torch = sys.modules.get("torch")
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    gloo = getattr(c10d, "ProcessGroupGloo", None)  # None: a torch that was built without it
    if torch is None or c10d is None or gloo is None:
        return
    destroy = c10d.destroy_process_group

    @functools.wraps(destroy)
    def keep_and_destroy(*args: Any, **options: Any) -> None:
        kept = list(_find(c10d, gloo, torch.device("cpu")))
        destroy(*args, **options)
        if kept:
            ending = threading.Timer(KEEP_S, kept.clear)  # torch lets go of Python's lock for that
            ending.daemon = True
            ending.start()

    for module in (c10d, sys.modules["torch.distributed"]):
        module.destroy_process_group = keep_and_destroy  # type: ignore[attr-defined]


def _find(c10d: Any, gloo: type, cpu: Any) -> Iterator[Any]:
    with contextlib.suppress(AttributeError):  # a torch that keeps them elsewhere
        for group in c10d._world.pg_map:  # noqa: SLF001
            with contextlib.suppress(RuntimeError):  # one without the CPU
                backend = group._get_backend(cpu)  # noqa: SLF001
                if isinstance(backend, gloo):
                    yield backend
