"""Finds the machine of a run: this one, or another host."""

import contextlib
import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from echelon.client.remote.register import find_entry, read_register
from echelon.errors import NotFoundError

if TYPE_CHECKING:
    from echelon.clusters.ssh.site import Site
    from echelon.run.directory import RunDir


def find_site(cluster: str, host: str) -> "Site | None":
    """Return the site of `--cluster` or `--host`; None without these options."""
    if not cluster and not host:
        return None
    from echelon.client.remote.remote_calls import make_site  # noqa: PLC0415
    from echelon.client.submit.requests import read_request  # noqa: PLC0415

    return make_site(read_request({"cluster": cluster, "host": host}, Path.cwd(), os.environ))


def locate(
    name: str, runs_dir: Path, cluster: str, host: str, *, sweep: bool = False
) -> tuple["Site | None", str]:
    """Return the site and the id of a run or sweep; no site if it is on this machine."""
    if site := find_site(cluster, host):
        return site, name
    entry = find_entry(read_register(os.environ), name, Path.cwd(), sweep=sweep)
    if entry is None:
        return None, name
    if here := _find_here(runs_dir, name, sweep):
        submitted_s = datetime.fromisoformat(entry.submitted).timestamp()
        if name != "last" or here.spec.stat().st_mtime > submitted_s:
            return None, name
    return entry.site, entry.run


def _find_here(runs_dir: Path, name: str, sweep: bool) -> "RunDir | None":
    if not runs_dir.is_dir():
        return None
    from echelon.run.listing import find_run, find_sweep  # noqa: PLC0415

    with contextlib.suppress(NotFoundError):
        return find_sweep(runs_dir, name).files if sweep else find_run(runs_dir, name)
    return None
