"""Fetches files of runs on other hosts, for the user or into a temporary directory."""

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from echelon.client.remote.fetching import Fetched, receive_files
from echelon.client.remote.remote_calls import exchange, keep_trying
from echelon.clusters.ssh.call import SEND
from echelon.clusters.ssh.site import Site
from echelon.clusters.ssh.stream import Progress
from echelon.core.atomic_file import make_private, write_atomic
from echelon.errors import ConflictError, NotPermittedError
from echelon.run.directory import FETCHED


def bring_files(
    site: Site,
    name: str,
    patterns: Sequence[str],
    place: Callable[[str], Path],
    progress: Progress = lambda _done, _all: None,
    *,
    every_name: bool = False,
) -> tuple[Path, Fetched]:
    """Fetch files of a run, and connect again whenever the connection is lost.

    Args:
        site: where the run is.
        name: the run.
        patterns: its files; see `send_files`.
        place: returns the folder for a run's id.
        progress: called with the number of received bytes, and with the number of all bytes.
        every_name: see `receive_files`.

    Returns:
        The folder, and counts of the fetched files.
    """

    def step() -> tuple[Path, Fetched]:
        with exchange(site, SEND) as stream:
            stream.send({"run": name, "patterns": list(patterns)})
            folder = claim_folder(place, name, str(stream.receive().get("run", "")))
            found = receive_files(folder, patterns, stream, progress, every_name=every_name)
        return folder, found

    return keep_trying(step)


def claim_folder(place: Callable[[str], Path], name: str, run_id: str) -> Path:
    """Create the folder for a run, unless it exists, and return it.

    Raises:
        NotPermittedError: the host answers with another run, or with an invalid id.
        ConflictError: the folder contains other files.
    """
    requested = name == "last" or name.isdecimal() or run_id.startswith(name)
    # Only ids as `name_run` makes them, so that a new folder cannot be a package, such as `torch`.
    if not requested or not re.fullmatch(
        r"[A-Za-z0-9][A-Za-z0-9._-]*-[a-z2-9]{4}(-[0-9]+)?", run_id
    ):
        raise NotPermittedError(
            f"the host answered with the run '{run_id[:80]}' instead of '{name}'",
            hint="use the same version of Echelon on both ends",
        )
    folder = place(run_id)
    mark = folder / FETCHED
    known = mark.read_text().strip() if mark.is_file() else ""
    if known != run_id and folder.exists() and any(folder.iterdir()):
        raise ConflictError(
            f"{folder} is not empty, and does not hold {run_id}",
            hint="name another directory: --to DIR",
        )
    make_private(folder)
    write_atomic(mark, f"{run_id}\n")
    return folder


@contextlib.contextmanager
def fetched(site: Site, name: str, patterns: Sequence[str]) -> Iterator[Path]:
    """Fetch files of a run into a temporary directory of runs, and yield that directory."""
    with tempfile.TemporaryDirectory(prefix="echelon-") as folder:
        bring_files(site, name, patterns, lambda run_id: Path(folder, run_id), every_name=True)
        yield Path(folder)
