"""How containers start on this machine: found out once, and remembered."""

import contextlib
import json
import os
import resource
from pathlib import Path

from echelon.core.atomic_file import make_private, write_atomic
from echelon.core.shell import Shell
from echelon.launch.container.commands import Container, list_variants

_OCI_RUNTIMES = ("runc", "crun")


def variants_here(container: Container, cache: Path, shell: Shell) -> list[Container]:
    """Return the ways to start a container on this machine, the one that worked last first."""
    found = list_variants(
        container,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        processes=resource.getrlimit(resource.RLIMIT_NPROC)[0],
        runtimes=[one for one in _OCI_RUNTIMES if shell.which(one)],
    )
    with contextlib.suppress(OSError, ValueError):
        worked = json.loads(_record(cache, container.runtime).read_text())
        found.sort(
            key=lambda one: list(one.options) != worked
        )  # stable: the others keep their order
    return found


def remember_variant(container: Container, cache: Path) -> None:
    """Remember how a container started, for the next one on this machine."""
    path = _record(cache, container.runtime)
    with contextlib.suppress(OSError):  # a cache that only others may write to
        text = json.dumps(list(container.options))
        if not path.exists() or path.read_text() != text:
            make_private(cache)
            write_atomic(path, text)


def _record(cache: Path, runtime: str) -> Path:
    return cache / f".{os.uname().nodename}.{runtime}.json"
