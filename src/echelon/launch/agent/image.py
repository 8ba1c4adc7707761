"""The container image of a node's zygote and ranks, as a request names it."""

import importlib.machinery
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from echelon import _version
from echelon.core.shell import Shell
from echelon.launch.archive import find_archive
from echelon.launch.container.commands import LIBRARY, Container, list_mounts
from echelon.launch.container.machine import variants_here
from echelon.launch.container.reference import parse_reference
from echelon.launch.container.store import ImageStore, cache_folder, choose_runtime
from echelon.launch.program_text import PACKAGE
from echelon.spec.job_spec import JobSpec


def open_image(
    request: JobSpec,
    folders: list[str],
    *,
    environ: Mapping[str, str],
    shell: Shell,
    gpus: bool,
    copy: Callable[[], Path | None] = lambda: None,
) -> list[Container]:
    """Import the image if that was not done yet; return the ways to start it, best first.

    Args:
        request: names the image.
        folders: folders that have the same path inside.
        environ: variables of this process.
        shell: runs the runtime.
        gpus: whether ranks use GPUs.
        copy: returns a copy of the image's file on this node, if there is one.

    Raises:
        EchelonError: the image cannot be used on this node.
    """
    path, runtime = find_image(request, environ, shell)
    store = ImageStore(cache_folder(request.image_cache, environ), shell)
    image = store.open(copy() or path, runtime)
    library = find_library()
    own = (f"{library}:{LIBRARY}/{PACKAGE}:ro",) if library else ()
    container = Container(
        runtime=runtime,
        image=image,
        mounts=list_mounts(folders, (*own, *request.image_mounts)),
        env=request.image_env,
        workdir=request.image_workdir or request.chdir,
        gpus=gpus,
        options=request.image_options,
        rootless=os.geteuid() != 0,
    )
    return variants_here(container, store.folder, shell)


def find_image(request: JobSpec, environ: Mapping[str, str], shell: Shell) -> tuple[Path, str]:
    """Import the image if that was not done yet; return its file, and the runtime for it.

    Raises:
        EchelonError: the image cannot be used on this node.
    """
    reference = parse_reference(request.image)
    runtime = choose_runtime(request.image_runtime, reference, shell)
    store = ImageStore(cache_folder(request.image_cache, environ), shell)
    return store.fetch(reference, runtime), runtime


def list_folders(
    request: JobSpec, run: Path, scratch: Path, environ: Mapping[str, str]
) -> list[str]:
    """Return the folders that ranks find at the same path inside: home, project, run, scratch."""
    script = Path(request.chdir, request.script).parent
    wanted = [
        Path(environ.get("HOME", "/")),
        Path(request.chdir or "/"),
        *([] if request.module else [script]),
        run,
        scratch.parent,
        Path(environ.get("TMPDIR", "/tmp")),  # noqa: S108  the default of all programs
    ]
    # /dev is always the node's own.
    return [str(one) for one in wanted if one.is_dir() and not str(one).startswith("/dev/")]


def find_library() -> Path | None:
    """Return the folder of the installed Echelon; None if there is only the run's launcher."""
    archive = find_archive(_version)
    for finder in sys.meta_path:
        if finder is archive or not hasattr(finder, "find_spec"):
            continue
        spec: importlib.machinery.ModuleSpec | None = finder.find_spec(PACKAGE, None)
        if spec is not None and spec.origin:
            return Path(spec.origin).parent
    return None
