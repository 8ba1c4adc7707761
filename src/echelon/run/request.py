"""The frozen request of a run, as its `spec.toml` holds it."""

import hashlib

from echelon.core.records import UnreadableError, parse_toml, read_bytes
from echelon.errors import NotPermittedError, UnavailableError
from echelon.run.directory import RunDir
from echelon.spec.job_spec import JobSpec
from echelon.spec.merging import Layer, merge


def read_spec(run: RunDir, digest: str = "") -> JobSpec:
    """Read the frozen request of a run.

    Args:
        run: the run.
        digest: the expected SHA-256; empty to accept any request.

    Raises:
        NotPermittedError: the request has another digest.
        UnavailableError: the file cannot be read, or is damaged.
    """
    try:
        data = read_bytes(run.spec)
    except UnreadableError as error:
        raise UnavailableError(
            f"the request of the run '{run.run_id}' cannot be read: {error}",
            hint="restore that file, or start a new run: echelon submit",
        ) from error
    if digest and hashlib.sha256(data).hexdigest() != digest:
        raise NotPermittedError(
            f"refused to start: {run.spec} is not what was submitted (its SHA-256 differs)",
            hint="if the change is yours, start a new run: echelon submit",
        )
    try:
        values = parse_toml(data.decode("utf-8", "surrogateescape"))
    except ValueError as error:
        raise UnavailableError(
            f"the request of the run '{run.run_id}' is damaged: {run.spec}: {error}",
            hint="repair that file, or start a new run: echelon submit",
        ) from error
    if isinstance(extra := values.get("slurm"), dict):
        del values["slurm"]
        values |= {f"slurm.{name}": table for name, table in extra.items()}
    return merge([Layer(source=str(run.spec), values=values)]).spec
