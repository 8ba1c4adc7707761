"""Files of runs on other hosts: brought here, for the user or for what reads them."""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from echelon.client.remote.remote_calls import keep_trying, open_host, talking
from echelon.core.atomic_file import make_private, write_atomic
from echelon.errors import ConflictError, NotPermittedError
from echelon.run.directory import FETCHED

if TYPE_CHECKING:
    from echelon.client.remote.fetching import Fetched
    from echelon.clusters.ssh.site import Site


def bring_files(
    site: "Site",
    name: str,
    patterns: Sequence[str],
    place: Callable[[str], Path],
    progress: Callable[[int, int], None] = lambda _done, _all: None,
    *,
    every_name: bool = False,
) -> tuple[Path, "Fetched"]:
    """Bring files of a run here, however often the connection breaks.

    Args:
        site: where the run is.
        name: the run.
        patterns: its files; see `send_files`.
        place: returns the folder for a run's id.
        progress: is told the bytes that arrived, and all of them.
        every_name: see `receive_files`.

    Returns:
        the folder, and what was brought.
    """
    from echelon.client.remote.fetching import receive_files  # noqa: PLC0415
    from echelon.clusters.ssh.call import SEND, Call  # noqa: PLC0415

    found: list[tuple[Path, Fetched]] = []

    def step() -> int:
        call = Call(argv=(SEND,), folder=site.workdir, framed=False)
        with talking(open_host(site).start(call)) as talk, talk.stream() as stream:
            stream.send({"run": name, "patterns": list(patterns)})
            folder = claim_folder(place, name, str(stream.receive().get("run", "")))
            got = receive_files(folder, patterns, stream, progress, every_name=every_name)
            found.append((folder, got))
        return 0

    keep_trying(step)
    return found[-1]


def claim_folder(place: Callable[[str], Path], name: str, run_id: str) -> Path:
    """Return the folder for a run, which holds nothing else.

    Raises:
        NotPermittedError: the host names another run, or something that is none.
        ConflictError: there are other files in the folder.
    """
    asked = name == "last" or name.isdecimal() or run_id.startswith(name)
    # Of the form that `name_run` gives, so that no new folder can be a package, such as `torch`.
    if not asked or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*-[a-z2-9]{4}(-[0-9]+)?", run_id):
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
def fetched(site: "Site", name: str, patterns: Sequence[str]) -> Iterator[Path]:
    """Bring files of a run into a temporary directory of runs; yield that one."""
    import tempfile  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="echelon-") as folder:
        bring_files(site, name, patterns, lambda run_id: Path(folder, run_id), every_name=True)
        yield Path(folder)
