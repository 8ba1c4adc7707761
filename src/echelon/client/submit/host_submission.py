"""Submits to another host: request → checked → prepared → queued on the host.

The host submits the project that was sent with `pipeline.py`.
"""

import os
import shlex
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from echelon.client.code.code_listing import find_root
from echelon.client.code.project import Project
from echelon.client.remote.remote_calls import ProgressNotes, exchange, make_site, submit_once
from echelon.client.remote.sending import describe_project, send_project
from echelon.client.submit.checks import check_files, check_sweep, examine_script
from echelon.client.submit.parameters import split_array
from echelon.client.submit.pipeline import Request
from echelon.client.submit.run_files import new_run_id
from echelon.clusters.ssh.call import SUBMIT
from echelon.clusters.ssh.site import Site
from echelon.core.frozen import frozen
from echelon.core.notes import note
from echelon.core.shell import LocalShell, Shell
from echelon.core.units import format_bytes
from echelon.core.userstate import state_folder
from echelon.errors import UsageError
from echelon.run.request import render_spec
from echelon.run.sweep import Table
from echelon.spec.conflicts import TYPED
from echelon.spec.job_spec import JobSpec
from echelon.spec.merging import Merged

_MOST_ADDED = 40 << 20
"""Limit for a function in bytes: Base64 makes it a third larger, and it is sent in one message."""


@frozen
class CheckedForHost:
    """A request without problems on this machine; the host checks its cluster's limits."""

    request: Request
    spec: JobSpec
    """The request without its job array, whose tasks are in the table."""
    table: Table | None
    site: Site
    root: Path
    """The project's directory on this machine."""
    folder: Path
    """The working directory on this machine."""


@frozen
class PreparedForHost:
    """A project and the request, as they are sent to the host."""

    checked: CheckedForHost
    project: Project
    header: Mapping[str, Any]


@frozen
class QueuedThere:
    """A run or sweep that is queued on another host."""

    site: Site
    run_id: str
    directory: str
    """The run directory there."""
    job_id: str
    arrays: tuple[str, ...] = ()
    """The job arrays of a sweep."""


def submit_to_host(request: Request) -> QueuedThere:
    """Send the project of a request to its host, and queue a run or sweep there."""
    return send(prepare_for_host(check_for_host(request)))


def check_for_host(request: Request) -> CheckedForHost:
    """Report the problems of the request and the project that this machine can find.

    Raises:
        UsageError: there are problems, so nothing was sent.
    """
    spec, table = request.merged.spec, request.table
    if request.takes_array:
        spec, table = split_array(spec)
    if table is not None:
        check_sweep(spec, table.names)
    folder = Path(spec.chdir or Path.cwd()).absolute()
    script = None if spec.module or request.added else folder / spec.script
    if not request.added:
        _check_here(spec, folder)
    elif (size := sum(map(len, request.added.values()))) > _MOST_ADDED:
        raise UsageError(
            f"the function and what it refers to are {format_bytes(size)}; at most "
            f"{format_bytes(_MOST_ADDED)} can be sent to a host",
            hint="have the function read large data from a file there",
        )
    root = find_project(request.merged, folder, script, LocalShell())
    check_outside_home(root, Path.home())
    site = make_site(request.merged, root)
    assert site is not None, "the caller knows that it has a host"
    return CheckedForHost(
        request=request, spec=spec, table=table, site=site, root=root, folder=folder
    )


def prepare_for_host(checked: CheckedForHost) -> PreparedForHost:
    """Describe the project, and write the request as the host needs it."""
    spec, table, root = checked.spec, checked.table, checked.root
    state = state_folder(os.environ)
    runs = Path("runs").absolute()
    project = describe_project(root, LocalShell(), runs=runs, state=state)
    header = {"run": new_run_id(spec), **place_request(spec, checked.folder, root)}
    if table is not None:
        tasks = {index: table.parameters(index) for index in table.tasks}
        header["sweep"] = {
            "tasks": tasks,
            "max_running": table.max_running,
            "pack": table.pack,
            "per_slot": table.per_slot,
        }
    if added := checked.request.added:
        header["added"] = {path: b64encode(data).decode() for path, data in added.items()}
    return PreparedForHost(checked=checked, project=project, header=header)


def send(prepared: PreparedForHost) -> QueuedThere:
    """Send a project and a request, which the host queues."""
    checked, run_id = prepared.checked, str(prepared.header["run"])
    found = submit_once(
        run_id,
        checked.root,
        checked.site,
        partial(_send, prepared),
        sweep=checked.table is not None,
    )
    return QueuedThere(
        site=checked.site,
        run_id=str(found["run"]),
        directory=str(found["directory"]),
        job_id=str(found["job_id"]),
        arrays=tuple(map(str, found.get("arrays", ()))),
    )


def find_project(request: Merged, folder: Path, script: Path | None, shell: Shell) -> Path:
    """Return the directory of the project to send.

    Raises:
        UsageError: a configuration file names a directory outside the project in the current
            directory. Another user may have written that file.
    """
    root, _ = find_root(folder, script, shell)
    origins = {key: request.origins[key] for key in ("chdir", "script")}
    named = {key: one for key, one in origins.items() if one not in ("default", *TYPED)}
    if named and not root.is_relative_to(own := find_root(Path.cwd(), None, shell)[0]):
        key, origin = next(iter(named.items()))
        raise UsageError(
            f"{key} in {origin} leads out of {own}, to {root}: nothing was sent",
            hint=f"to send that directory: cd {shlex.quote(str(root))}, and submit there",
        )
    return root


def check_outside_home(root: Path, home: Path) -> None:
    """Check that a project is not the home directory, whose other files must not be sent.

    Raises:
        UsageError: the project's directory is the home directory, or contains it.
    """
    if home.resolve().is_relative_to(root):
        raise UsageError(
            f"the project would be {root}, with all of your home directory: nothing was sent",
            hint="move the script to a folder of its own: mkdir project; mv SCRIPT.py project",
        )


def _check_here(spec: JobSpec, folder: Path) -> None:
    """Report the problems of the script; the host checks the rest of the request."""
    problems = examine_script(spec, folder, "submit", lints=True)
    problems += check_files(replace(spec, venv="", output="-"), folder)
    if problems:
        raise UsageError("; ".join(problems), hint="nothing was sent")


def place_request(spec: JobSpec, folder: Path, root: Path) -> dict[str, Any]:
    """Return a request for the host, with paths relative to the project. Pure.

    The working directory is the same folder of the project, or the project's directory.
    """
    place = folder.resolve()
    inside = place.is_relative_to(root)
    script = spec.script
    if not spec.module and (not inside or Path(script).is_absolute()):
        full = (place / script).resolve()
        base = place if inside else root
        script = os.path.relpath(full, base) if full.is_relative_to(root) else script
    return {
        "folder": str(place.relative_to(root)) if inside else ".",
        "request": render_spec(replace(spec, chdir="", script=script)),
    }


def _send(prepared: PreparedForHost) -> dict[str, Any]:
    """Send a project and a request once, and return the host's answer."""
    checked = prepared.checked
    with exchange(checked.site, SUBMIT) as stream:
        stream.send(prepared.header)
        sent = send_project(prepared.project, checked.root, stream, ProgressNotes())
        answer = stream.receive()
    for text in (*(f"warning: {one}" for one in sent.warnings), *answer.pop("notes")):
        note(str(text))
    return answer
