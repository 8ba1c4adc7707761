"""The frozen request of a run, as its `spec.toml` holds it."""

import contextlib
import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from echelon.core.codec import decode
from echelon.core.frozen import frozen
from echelon.core.records import SMALL_BYTES, UnreadableError, parse_toml, read_bytes
from echelon.core.units import parse_duration, render_time
from echelon.errors import EchelonError, NotPermittedError, UnavailableError
from echelon.run.code import Code
from echelon.run.directory import RunDir

if TYPE_CHECKING:
    from echelon.spec.job_spec import JobSpec
    from echelon.spec.merging import Layer

_SWEEP = "sweep"
_ENVIRONMENT = "environment"
_MOST_BYTES = 4 << 20
"""Largest size of a request: parsing that takes seconds, and command lines have at most 2 MiB."""


@frozen
class Environment:
    """The ranks' environment as it was when a run was submitted."""

    prefix: str = ""
    """Its folder."""
    digest: str = ""
    """Of the list of its files."""


def read_spec(run: RunDir, digest: str = "") -> "JobSpec":
    """Read the frozen request of a run.

    Args:
        run: the run.
        digest: the expected SHA-256; empty to accept any request.

    Raises:
        NotPermittedError: the request has another digest.
        UnavailableError: the file cannot be read, or is damaged.
    """
    from echelon.spec.merging import merge  # noqa: PLC0415  `status` does not wait for it

    return merge([read_layer(run, digest)]).spec


def read_layer(run: RunDir, digest: str = "") -> "Layer":
    """Return the frozen request of a run, for changes to be merged into it; see `read_spec`."""
    from echelon.spec.merging import Layer  # noqa: PLC0415

    values = _read_values(run, digest)
    for table in ("code", _SWEEP, _ENVIRONMENT):
        values.pop(table, None)
    if isinstance(extra := values.get("slurm"), dict):
        del values["slurm"]
        values |= {f"slurm.{name}": table for name, table in extra.items()}
    return Layer(source=str(run.spec), values=values)


def render_spec(
    spec: "JobSpec",
    code: Code | None = None,
    *,
    tasks: str = "",
    environment: Environment | None = None,
) -> str:
    """Return the request as TOML, with values as a user would write them.

    Args:
        spec: the request.
        code: which code the run executes; None for the project itself.
        tasks: SHA-256 of the parameters of a sweep, whose request this is.
        environment: the ranks' environment, if it is to be staged and known here.
    """
    from echelon.spec.job_spec import KEYS  # noqa: PLC0415

    lines, tables = [], []
    for key in KEYS.values():
        value = key.value(spec)
        if not key.is_set(spec):
            continue
        if isinstance(value, Mapping):
            entries = [f"{_quote(name)} = {_quote(text)}" for name, text in value.items()]
            tables += ["", f"[{key.name}]", *entries]
        elif isinstance(value, tuple):
            lines.append(f"{key.name} = {_quote(list(value))}")
        else:
            lines.append(f"{key.name} = {_quote(key.show(spec))}")
    for title, record in (("code", code), (_ENVIRONMENT, environment)):
        if record is not None:
            facts = {name: value for name, value in asdict(record).items() if value}
            tables += ["", f"[{title}]"]
            tables += [f"{name} = {_quote(value)}" for name, value in facts.items()]
    if tasks:
        tables += ["", f"[{_SWEEP}]", f"tasks = {_quote(tasks)}"]
    return "\n".join([*lines, *tables]) + "\n"


def _quote(value: str | bool | list[str]) -> str:
    # JSON would escape some characters as surrogates, which TOML does not allow.
    return json.dumps(value, ensure_ascii=False)


def is_requeued(run: RunDir, request: "JobSpec") -> bool:
    """Tell whether a run continues in the same job, which Slurm starts again.

    Tasks of a sweep do: a standby job would be outside of their array, and of its limit.
    """
    return request.hand_over == "requeue" or (request.hand_over != "never" and run.task.exists())


def read_tasks_digest(run: RunDir, digest: str) -> str:
    """Return the SHA-256 of a sweep's parameters that its request names; empty if it names none."""
    table = _read_values(run, digest).get(_SWEEP)
    return str(table.get("tasks", "")) if isinstance(table, dict) else ""


def has_controller(run: RunDir) -> bool:
    """Tell whether a controller starts the ranks, and records their logs and the outcome."""
    try:
        return read_spec(run).style == "echelon"
    except (EchelonError, OSError):
        return run.launcher.exists()


def read_code(run: RunDir, digest: str = "") -> Code | None:
    """Return which code a run executes; None if it executes the project itself.

    Raises:
        NotPermittedError: the request has another digest.
        UnavailableError: the file cannot be read, or is damaged.
    """
    table = _read_values(run, digest).get("code")
    if table is None:
        return None
    code = decode(Code, table if isinstance(table, dict) else {})
    if not code.root or not code.digest:
        raise _damaged(run, ValueError("the table 'code' has no root or no digest"))
    return code


def read_environment(run: RunDir, digest: str = "") -> Environment | None:
    """Return the ranks' environment that the request names; None if it names none.

    Raises:
        NotPermittedError: the request has another digest.
        UnavailableError: the file cannot be read, or is damaged.
    """
    table = _read_values(run, digest).get(_ENVIRONMENT)
    return decode(Environment, table) if isinstance(table, dict) else None


def known_code(run: RunDir) -> Code | None:
    """Return which code a run executes, for display; None also if the request is damaged."""
    try:
        return read_code(run)
    except (EchelonError, OSError):
        return None


def summarise(run: RunDir) -> "Summary":
    """Return the request in short, for display; empty if it is damaged."""
    try:
        values = _read_values(run, "", most=SMALL_BYTES)
    except (EchelonError, OSError):
        return Summary()
    words = values.get("args", [])
    args = [str(word) for word in words] if isinstance(words, list) else []
    module = ["-m"] if str(values.get("module")).lower() == "true" else []
    asked = {name: str(values[name]) for name in _SIZE if values.get(name)}
    return Summary(
        command=shlex.join([*module, str(values.get("script", "")), *args]),
        nodes=asked.get("nodes", "1"),
        procs=asked.get("procs") or asked.get("gpus") or "1",
        gpus=asked.get("gpus", ""),
        gpu_type=asked.get("gpu_type", ""),
        partition=asked.get("partition", ""),
        time=asked.get("time", ""),
    )


_SIZE = ("nodes", "procs", "gpus", "gpu_type", "partition", "time")


@frozen
class Summary:
    """What a run executes, and on how much: as requested, empty where nothing was requested."""

    command: str = ""
    """The script and its arguments, quoted for a shell."""
    nodes: str = ""
    procs: str = ""
    """Ranks per node."""
    gpus: str = ""
    """Per node."""
    gpu_type: str = ""
    partition: str = ""
    time: str = ""

    @property
    def limit_s(self) -> float | None:
        """The requested time limit; None if there is none."""
        with contextlib.suppress(EchelonError):
            return parse_duration(self.time)
        return None

    @property
    def request(self) -> dict[str, str]:
        """All but the command."""
        return {name: getattr(self, name) for name in _SIZE}

    def describe(self) -> str:
        """Return the request in one line."""
        if not self.nodes:
            return ""
        size = f"{self.nodes} node{'s' * (self.nodes != '1')} × "
        parts = [f"{size}{self.procs} rank{'s' * (self.procs != '1')}"]
        if self.gpus:
            parts.append(
                f"{self.gpus} {self.gpu_type or 'GPU' + 's' * (self.gpus != '1')} per node"
            )
        if self.partition:
            parts.append(f"partition {self.partition}")
        if self.time:
            parts.append("no time limit" if self.limit_s is None else render_time(self.limit_s))
        return ", ".join(parts)


def _read_values(run: RunDir, digest: str, *, most: int = _MOST_BYTES) -> dict[str, Any]:
    try:
        data = read_bytes(run.spec, most=most)
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
        return parse_toml(data.decode("utf-8", "surrogateescape"))
    except ValueError as error:
        raise _damaged(run, error) from error


def _damaged(run: RunDir, error: ValueError) -> UnavailableError:
    return UnavailableError(
        f"the request of the run '{run.run_id}' is damaged: {run.spec}: {error}",
        hint="repair that file, or start a new run: echelon submit",
    )
