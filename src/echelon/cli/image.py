"""`echelon image …`: import container images, and look at those that were imported."""

import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from echelon.cli import console
from echelon.cli.options import takes_keys
from echelon.cli.run_options import AsJson
from echelon.client.submit.images import find_image
from echelon.core.shell import LocalShell
from echelon.core.units import format_bytes
from echelon.errors import NotFoundError
from echelon.launch.container.store import ImageStore, Stored, cache_folder, choose_runtime
from echelon.spec.merging import Merged

app = typer.Typer(
    name="image",
    help="Import, list and remove container images.",
    epilog="Example: echelon image pull nvcr.io/nvidia/pytorch:25.01-py3",
    rich_markup_mode=None,
)

_SHORTEST = 6
"""Characters of a digest that name an image."""
Names = Annotated[
    list[str],
    typer.Argument(
        metavar="IMAGE…",
        help="Image, or the first 6 or more characters of its digest.",
        show_default=False,
    ),
]


@app.command()
@takes_keys("image_runtime", "image_cache")
def pull(
    *,
    request: Merged,
    image: Annotated[str, typer.Argument(metavar="IMAGE", help="Image to import.")],
) -> None:
    """Import an image into the cache, so that jobs need not.

    Example: echelon image pull nvcr.io/nvidia/pytorch:25.01-py3
    """
    shell, store = LocalShell(), _open_store(request)
    spec = replace(request.spec, image=image)
    reference = find_image(spec, Path.cwd(), os.environ, shell)
    runtime = choose_runtime(spec.image_runtime, reference, shell)
    path = store.fetch(reference, runtime)
    console.print_result(f"{reference}\n{path} ({format_bytes(path.stat().st_size)})")


@app.command()
@takes_keys("image_cache")
def ls(*, request: Merged, as_json: AsJson = False) -> None:
    """List the images in the cache.

    Example: echelon image ls
    """
    found = _open_store(request).list()
    if as_json:
        console.print_json([{**asdict(one), "path": str(one.path)} for one in found])
        return
    rows = [
        [
            one.reference.partition("@")[0] or "?",
            one.digest.removeprefix("sha256:")[:12],
            one.runtime,
            format_bytes(one.size),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(one.used_s)),
        ]
        for one in found
    ]
    console.print_table(["image", "digest", "runtime", "size", "last used"], rows)


@app.command()
@takes_keys("image_cache")
def rm(*, request: Merged, images: Names) -> None:
    """Remove images from the cache; podman's own copy on each node stays.

    Example: echelon image rm 3f2a9c
    """
    store = _open_store(request)
    chosen = [one for name in images for one in _choose(store, name)]
    for one in chosen:
        store.remove(one)
        console.print_result(f"removed {one.reference or one.path}")


def _choose(store: ImageStore, name: str) -> list[Stored]:
    start = name.removeprefix("sha256:")
    found = [
        one
        for one in store.list()
        if (len(start) >= _SHORTEST and one.digest.removeprefix("sha256:").startswith(start))
        or (name and name in (one.reference, one.reference.partition("@")[0]))
    ]
    if not found:
        raise NotFoundError(
            f"the image '{name}' is not in {store.folder}", hint="list them: echelon image ls"
        )
    return found


def _open_store(request: Merged) -> ImageStore:
    return ImageStore(cache_folder(request.spec.image_cache, os.environ), LocalShell())
