"""Submits a project to another host: sends its code there, and queues a run of it."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echelon.api.script_checks import check_script
from echelon.cli import console
from echelon.cli.remote import Progress, announce, follow, make_site, open_host, talking
from echelon.core.shell import LocalShell
from echelon.core.userstate import state_folder
from echelon.errors import (
    ConflictError,
    EchelonError,
    NotFoundError,
    NotPermittedError,
    UsageError,
)
from echelon.spec.job_spec import JobSpec
from echelon.spec.merging import Merged

if TYPE_CHECKING:
    from echelon.api.project_description import Project
    from echelon.clusters.ssh.site import Site

_TRIES = 6
"""How often a submission is tried whose connection breaks."""
_PAUSE_S = 2.0


def submit_there(request: Merged, *, wait: bool, show: bool, dry_run: bool, as_json: bool) -> int:
    """Send the project to the host of a request, queue it there, and return the exit code."""
    from echelon.api.project_description import describe_project  # noqa: PLC0415
    from echelon.api.project_files import find_root  # noqa: PLC0415
    from echelon.api.register import forget_run, record_run  # noqa: PLC0415
    from echelon.api.runs import new_run_id  # noqa: PLC0415
    from echelon.clusters.ssh.failures import UnreachableError  # noqa: PLC0415
    from echelon.clusters.ssh.host import LostConnectionError  # noqa: PLC0415

    spec = request.spec
    folder = Path(spec.chdir or Path.cwd()).absolute()
    script = None if spec.module else folder / spec.script
    check_here(spec, folder)
    site = make_site(request, folder, script)
    assert site is not None, "the caller knows that it has a host"
    if dry_run:
        from echelon.clusters.slurm.styles import render_script  # noqa: PLC0415

        console.print_file(render_script(spec))
        console.note(f"not checked on {site.host}, because nothing was sent there")
        return 0
    root, _ = find_root(folder, script, LocalShell())
    project = describe_project(
        root, LocalShell(), runs=Path("runs").absolute(), state=state_folder(os.environ)
    )
    run_id = new_run_id(spec)
    record_run(run_id, root, site, os.environ)  # first: the answer may be lost
    header = {"run": run_id, **place_request(spec, folder, root)}
    try:
        found = _submit(site, header, project, root)
    except LostConnectionError:
        raise  # it may be there
    except (UnreachableError, UsageError, NotFoundError, ConflictError, NotPermittedError):
        forget_run(run_id, os.environ)  # it is not
        raise
    except KeyboardInterrupt:
        console.note(f"{run_id} may be queued nevertheless; see: echelon status {run_id}")
        raise
    announce(site, found, as_json=as_json)
    if wait or show:
        return follow(site, run_id, show=show, resubmit=True)
    return 0


def check_here(spec: JobSpec, folder: Path) -> None:
    """Report what is wrong with the script; the rest is checked on the host."""
    from echelon.api.runs import check_files  # noqa: PLC0415

    if not spec.script:
        raise UsageError("no training script given", hint="echelon submit --nodes 2 SCRIPT.py")
    script = folder / spec.script
    problems = check_files(replace(spec, venv="", output="-"), folder)
    if script.suffix == ".py" and not spec.module:
        problems += check_script(script, ranks=spec.nodes.high * spec.procs_per_node)
    if problems:
        raise UsageError("; ".join(problems), hint="nothing was sent")


def place_request(spec: JobSpec, folder: Path, root: Path) -> dict[str, str]:
    """Return a request as the host needs it: with paths in the project, not on this machine. Pure.

    The working directory is the same folder of the project, or the project's own.
    """
    from echelon.run.request import render_spec  # noqa: PLC0415

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


def _submit(
    site: "Site", header: Mapping[str, str], project: "Project", root: Path
) -> dict[str, Any]:
    """Submit once, however often the connection breaks."""
    import time  # noqa: PLC0415

    from echelon.clusters.ssh.host import LostConnectionError  # noqa: PLC0415

    connected = False
    for left in reversed(range(_TRIES)):
        try:
            return _try(site, header, project, root)
        except LostConnectionError as error:
            connected, why = True, error.message
        except EchelonError as error:
            if not connected:
                raise
            why = error.message  # it may have been queued before
        if left:
            console.note(f"{why}; connecting again")
            time.sleep(_PAUSE_S)
    raise LostConnectionError(
        f"the connection to {site.host} was lost, and it is not known whether "
        f"{header['run']} was queued: {why}",
        hint=f"ask when the host can be reached again: echelon status {header['run']}",
    )


def _try(site: "Site", header: Mapping[str, str], project: "Project", root: Path) -> dict[str, Any]:
    from echelon.api.mirror import send_project  # noqa: PLC0415
    from echelon.clusters.ssh.call import SUBMIT, Call  # noqa: PLC0415

    call = Call(argv=(SUBMIT,), folder=site.workdir, framed=False)
    with talking(open_host(site).start(call)) as talk, talk.stream() as stream:
        stream.send(header)
        sent = send_project(project, root, stream, Progress())
        answer = stream.receive()
    for text in (*(f"warning: {one}" for one in sent.warnings), *answer.pop("notes")):
        console.note(str(text))
    return answer
