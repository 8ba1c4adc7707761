"""Resolves the image of a request, and checks that it can be used."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from echelon.core.notes import note
from echelon.core.shell import Shell
from echelon.errors import EchelonError, NotFoundError, UnavailableError
from echelon.launch.container.commands import (
    PODMAN,
    PYXIS,
    Container,
    explain_failure,
    is_refusal,
    render_command,
    split_mount,
)
from echelon.launch.container.machine import variants_here
from echelon.launch.container.reference import Reference, parse_reference
from echelon.launch.container.store import (
    ImageStore,
    architecture,
    cache_folder,
    choose_runtime,
    read_image_id,
)
from echelon.spec.job_spec import JobSpec

_LOOK = """\
import importlib.util, json, sys
torch = importlib.util.find_spec("torch") is not None
print(json.dumps({"path": sys.executable, "version": list(sys.version_info[:3]), "torch": torch}))
"""
_OLDEST = (3, 11)


def settle_image(
    spec: JobSpec,
    folder: Path,
    environ: Mapping[str, str],
    shell: Shell,
    *,
    looks_inside: bool = True,
) -> JobSpec:
    """Return a request that names exactly one image.

    A tag is resolved here, once: every job of the run uses the same image.

    Args:
        spec: the request.
        folder: its working directory.
        environ: variables of this process.
        shell: runs the runtime.
        looks_inside: check the Python inside, if the image can be started here.

    Raises:
        EchelonError: there is no such image, it cannot be used, or a registry cannot be asked.
    """
    if not spec.image:
        return spec
    for mount in spec.image_mounts:
        split_mount(mount)
    spec = replace(spec, image=str(find_image(spec, folder, environ, shell)))
    if looks_inside and (problem := check_image(spec, environ, shell)):
        raise UnavailableError(problem, hint="nothing was started; choose another --image")
    return spec


def find_image(spec: JobSpec, folder: Path, environ: Mapping[str, str], shell: Shell) -> Reference:
    """Return the image of a request, with its digest.

    Raises:
        EchelonError: there is no such image, or the registry cannot be asked.
    """
    reference = parse_reference(spec.image)
    if reference.path:
        path = (folder / Path(reference.path).expanduser()).absolute()
        if not path.is_file():
            raise NotFoundError(
                f"the image {path} does not exist",
                hint="a name in a registry has no ending .sif or .tar, and no / at its start",
            )
        return replace(reference, path=str(path))
    if reference.local:
        return _find_local(reference, shell)
    from echelon.launch.container.registry import (  # noqa: PLC0415  it loads urllib
        read_credentials,
        resolve,
    )

    try:
        return resolve(reference, architecture(), read_credentials(environ))
    except UnavailableError:
        if not reference.digest:
            raise
        return reference  # the nodes may reach the registry, or have the image


def _find_local(reference: Reference, shell: Shell) -> Reference:
    """Return an image of podman's own storage, with its digest."""
    name = str(reference).partition("@")[0]
    done = shell.run([PODMAN, "image", "inspect", "--format={{.Digest}}", name])
    if done.code:
        if reference.digest:
            return reference  # the cache may have the image; otherwise the nodes report it
        raise NotFoundError(
            f"the image {name} is not in podman's storage on this machine",
            hint="list what is there: podman images",
        )
    return replace(reference, digest=reference.digest or done.stdout.strip())


def check_image(spec: JobSpec, environ: Mapping[str, str], shell: Shell) -> str:
    """Return the problem of the Python in an image; empty if there is none, or it is not known."""
    reference = parse_reference(spec.image)
    if spec.image_runtime == PYXIS:
        return ""
    try:
        runtime = choose_runtime(spec.image_runtime, reference, shell)
    except EchelonError:
        return ""  # the nodes may have a runtime that this machine lacks
    store = ImageStore(cache_folder(spec.image_cache, environ), shell)
    path = store.find(reference, runtime)
    if path is None:
        note(
            f"the image is not in {store.folder} yet: the first job imports it (to do that now: "
            f"echelon image pull {spec.image})"
        )
        return ""
    if runtime == PODMAN and shell.run([PODMAN, "image", "exists", read_image_id(path)]).code:
        return ""  # unpacking the image here takes long, and the nodes do it anyway
    image = store.open(path, runtime)
    container = Container(runtime=runtime, image=image, options=spec.image_options)
    look = [spec.image_python or "python3", "-c", _LOOK]
    message = ""
    for variant in variants_here(container, store.folder, shell):
        argv, env = render_command(variant, look, environ)
        done = shell.run(argv, env=env, timeout_s=60)
        if not is_refusal(variant, done.code):
            return judge_python(spec, done.stdout, done.stderr, runtime)
        message = done.stderr
    reason, hint = explain_failure(runtime, spec.image, message)
    note(f"warning: {reason} ({hint}); it may work on the nodes")
    return ""


def judge_python(spec: JobSpec, output: str, errors: str, runtime: str) -> str:
    """Return the problem of the Python in an image, from the output of `_LOOK`; empty if none."""
    try:
        found = json.loads(output)
        version, has_torch = tuple(found["version"]), bool(found["torch"])
    except (ValueError, KeyError, TypeError):
        reason, hint = explain_failure(runtime, spec.image, errors)
        return f"{reason} (hint: {hint})"
    shown = f"{found['path']} in the image {spec.image} is Python {'.'.join(map(str, version))}"
    if version < _OLDEST:
        return f"{shown}; Echelon needs 3.11 or newer: use --image-python"
    if not has_torch:
        return f"{shown}, and has no torch: use another image, or --image-python"
    return ""
