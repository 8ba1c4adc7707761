"""Packs the job-side programs into one file, which is copied to each run directory."""

import contextlib
import hashlib
import importlib.util
import io
import marshal
import struct
import sys
import zipfile
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType

from echelon import _version
from echelon.core.atomic_file import write_atomic

_SHIPPED = (
    *("__init__", "_version", "errors", "world", "train/probe"),
    *("core", "launch", "run", "spec"),
)
"""Modules and packages that run inside an allocation."""
_NVML = "pynvml"
"""NVIDIA's binding, a single file without dependencies."""


def ship_launcher(launcher: Path) -> str:
    """Write a copy of the job-side programs, and return its SHA-256.

    The copy is stored in the run directory, so it need not be installed on the nodes, runs in the
    ranks' Python, and stays the same for the whole run. It is one file, so that many nodes read it
    quickly and one digest covers it. It consists of launch/archive.py and a zip archive.
    """
    source = Path(_version.__file__).parent
    found = [path for name in _SHIPPED for path in _sources(source / name)]
    shipped = {f"echelon/{path.relative_to(source)}": path for path in found}
    # The ranks' Python may lack this module, which measures GPUs. The module is found by its path,
    # because in a rank an imported one may come from that run's launcher.
    nvml = PathFinder.find_spec(_NVML)
    if nvml is not None and nvml.origin is not None:
        shipped[f"{_NVML}.py"] = Path(nvml.origin)
    content = io.BytesIO()
    content.write((source / "launch" / "archive.py").read_bytes())
    with zipfile.ZipFile(content, "a") as archive:
        for name, path in shipped.items():
            archive.writestr(name, path.read_bytes())
            # Without bytecode, every process on every node would compile the modules.
            archive.writestr(_bytecode_name(name), _compile(path))
    write_atomic(launcher, content.getvalue())
    return hashlib.sha256(content.getvalue()).hexdigest()


def _sources(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


def _bytecode_name(name: str) -> str:
    folder, _, file = name.rpartition("/")
    stem = file.removesuffix(".py")
    return f"{folder}/__pycache__/{stem}.{sys.implementation.cache_tag}.pyc".lstrip("/")


def _compile(path: Path) -> bytes:
    """Return a module's bytecode with a header that disables the check of the source's time."""
    unchecked = (1).to_bytes(4, "little")
    head = importlib.util.MAGIC_NUMBER + unchecked + importlib.util.source_hash(path.read_bytes())
    return head + (_cached(path) or marshal.dumps(_load(path)))


def _cached(path: Path) -> bytes:
    """Return the bytecode in Python's cache if it is up to date; otherwise nothing."""
    source = path.stat()
    times = (int(source.st_mtime), source.st_size)
    head = importlib.util.MAGIC_NUMBER + struct.pack(
        "<LLL", 0, *(one & 0xFFFFFFFF for one in times)
    )
    with contextlib.suppress(OSError):
        known = Path(importlib.util.cache_from_source(str(path))).read_bytes()
        return known.removeprefix(head) if known.startswith(head) else b""
    return b""


def _load(path: Path) -> CodeType | None:
    return SourceFileLoader(path.stem, str(path)).get_code(path.stem)
