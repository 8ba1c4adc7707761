"""The register of runs that were submitted from this machine to other hosts.

It is a file in the user's state folder with one line of JSON per run, which names the host of the
run and the working directory there.
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from echelon.clusters.ssh.site import Site
from echelon.core.codec import decode
from echelon.core.frozen import frozen
from echelon.core.records import read_bytes
from echelon.core.userstate import append_line, state_folder
from echelon.errors import UsageError

_FILE = "hosts.jsonl"


@frozen
class RemoteRun:
    """A run on another host."""

    run: str
    project: str
    """The project's directory on this machine."""
    submitted: str
    """ISO time, UTC."""
    site: Site
    sweep: bool = False
    """Whether it is a sweep."""


def record_run(
    run_id: str, project: Path, site: Site, environ: Mapping[str, str], *, sweep: bool = False
) -> None:
    """Record where a run or sweep is.

    Raises:
        OSError: the register cannot be written.
    """
    folder = state_folder(environ)
    if folder is None:
        return
    entry = RemoteRun(
        run=run_id,
        project=str(project),
        submitted=datetime.now(tz=UTC).isoformat(timespec="seconds"),
        site=site,
        sweep=sweep,
    )
    append_line(folder / _FILE, json.dumps(asdict(entry)))


def forget_run(run_id: str, environ: Mapping[str, str]) -> None:
    """Remove a run whose submission failed from the register."""
    if folder := state_folder(environ):
        append_line(folder / _FILE, json.dumps({"run": run_id, "gone": True}))


def read_register(environ: Mapping[str, str]) -> list[RemoteRun]:
    """Return the registered runs, the oldest first; damaged lines are ignored."""
    folder = state_folder(environ)
    if folder is None:
        return []
    try:
        lines = read_bytes(folder / _FILE).decode(errors="replace").splitlines()
    except OSError:
        return []
    found: dict[str, RemoteRun] = {}
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            values = json.loads(line)
            if isinstance(values, dict) and values.get("gone"):
                found.pop(values["run"], None)
            else:
                found[values["run"]] = decode(RemoteRun, values)
    return list(found.values())


def find_entry(
    known: list[RemoteRun], name: str, project: Path, *, sweep: bool = False
) -> RemoteRun | None:
    """Return the run or sweep with an id, a unique prefix of it, or `last`. Pure.

    Raises:
        UsageError: the prefix is ambiguous.
    """
    tasks = [one for one in known if one.sweep and is_task(name, one.run)]
    if tasks and not sweep:
        return replace(tasks[0], run=name)
    known = [one for one in known if one.sweep == sweep]
    if name == "last":
        here = [one for one in known if is_inside(project, one.project)]
        return here[-1] if here else None
    exact = [one for one in known if one.run == name]
    found = exact or [one for one in known if name and one.run.startswith(name)]
    if len(found) > 1:
        raise UsageError(
            f"'{name}' is ambiguous: {', '.join(one.run for one in found[:5])}",
            hint=f"write more letters of the {'sweep' if sweep else 'run'} id",
        )
    return found[0] if found else None


def is_task(run_id: str, sweep_id: str) -> bool:
    """Tell whether a run is a task of a sweep, by their names. Pure."""
    return run_id.startswith(f"{sweep_id}-") and run_id[len(sweep_id) + 1 :].isdecimal()


def is_inside(folder: Path, project: str) -> bool:
    """Tell whether a folder belongs to a project. Pure."""
    return folder.is_relative_to(project)
