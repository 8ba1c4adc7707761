"""Submits scripts and functions from Python: `echelon.request(nodes=2).submit(train, lr=0.1)`."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack, overload

from echelon.api.functions import Call, PackedFunction, pack_function
from echelon.api.host_submission import send_run
from echelon.api.hosted_run import HostedRun
from echelon.api.local_run import LocalRun
from echelon.api.project_files import find_root
from echelon.api.requests import read_request
from echelon.api.run_view import Run, default_runs
from echelon.api.submission import (
    Place,
    check_function,
    settle_request,
    start_run,
    submit_request,
)
from echelon.core.shell import LocalShell
from echelon.errors import UsageError
from echelon.launch.function_call import FOLDER, PROGRAM
from echelon.spec.job_spec import JobSpec
from echelon.spec.merging import Merged

T = TypeVar("T")


class RequestOptions(TypedDict, total=False):
    """Everything that a request can say; the keys are those of echelon.toml."""

    on: str
    """Where to run: `slurm` (the default), `ray` or `local`."""
    runs_dir: str | Path
    address: str
    cluster: str
    host: str
    config: str | Path
    trust_host: bool
    """Read pickles from the host that could execute code here."""
    module: bool
    style: str
    name: str
    partition: str
    account: str
    qos: str
    constraint: str
    nodelist: str
    exclude: str
    dependency: str
    nodes: int | str
    gpus: int
    gpu_type: str
    gpu_option: str
    procs: int
    cpus_per_task: int
    cpus_per_gpu: int
    mem: int | str
    mem_per_cpu: int | str
    mem_per_gpu: int | str
    time: int | str
    wait_all_nodes: bool
    signal_lead: int | str
    restarts: int
    hang_timeout: int | str
    on_hang: str
    grace: int | str
    hand_over: str
    telemetry: bool
    node_check: str
    forgive_after: int | str
    preflight: bool
    preload: Iterable[str]
    chdir: str
    output: str
    notify: str
    mail: str
    mail_user: str
    mail_type: Iterable[str]
    snapshot: bool
    python: str
    venv: str
    conda: str
    modules: Iterable[str]
    prologue: Iterable[str]
    env: Mapping[str, str]
    slurm_extra: Mapping[str, str]


_PLACE = ("on", "runs_dir", "address", "trust_host")


def request(**options: Unpack[RequestOptions]) -> "Request":
    """Return a request: what to run on, with the keys of echelon.toml.

    The project's echelon.toml and the user's own settings apply too, as they do for `echelon
    submit`. Files are read, and everything is checked, when something is submitted.
    """
    known = RequestOptions.__annotations__
    if unknown := [name for name in options if name not in known]:
        from echelon.spec.readers import nearest  # noqa: PLC0415

        raise UsageError(f"unknown key: '{unknown[0]}'", hint=nearest(unknown[0], tuple(known)))
    return Request(options=dict(options))


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a run may use, and how it is started. It never changes; `replace` makes another."""

    options: Mapping[str, Any] = field(default_factory=dict)

    def replace(self, **options: Unpack[RequestOptions]) -> "Request":
        """Return a request with changes."""
        return request(**{**self.options, **options})

    @overload
    def submit(self, what: str | Path, /, *args: object) -> Run[None]: ...

    @overload
    def submit(self, what: Callable[..., T], /, *args: Any, **options: Any) -> Run[T]: ...

    def submit(self, what: Any, /, *args: Any, **options: Any) -> Run[Any]:
        """Start a run of a script or a function, and return it without waiting.

        A function is called on every rank with the given arguments. It travels as it is now, with
        everything that it refers to; modules that it imports come from the run's copy of the code.
        If it has a parameter annotated as `echelon.Checkpointer`, it gets one of the run there, and
        can continue in the next job from what it saved.

        Raises:
            UsageError: the request is not valid, or the function cannot be pickled.
        """
        if callable(what):
            return self._submit_function(what, [(args, options)])
        if options:
            raise UsageError(
                f"a script takes no named arguments: {', '.join(options)}",
                hint='write them as on the command line: submit("train.py", "--lr", "0.1")',
            )
        merged = self._read({"script": str(what), "args": [str(one) for one in args]})
        if merged.host:
            site, found = send_run(merged)
            return Run.of(HostedRun(site, found["run"], trusts=self._trusts))
        run, _, _ = submit_request(merged, self._place())
        return Run.of(LocalRun(run))

    def _read(self, more: Mapping[str, object]) -> Merged:
        flags = {key: _plain(value) for key, value in self.options.items() if key not in _PLACE}
        if "config" in flags:
            flags["config"] = Path(str(flags["config"]))
        merged = read_request({**flags, **more}, Path.cwd(), os.environ)
        on = self.options.get("on", "slurm")
        return merged if on == "slurm" else replace_fields(merged, host="")

    def _place(self) -> Place:
        given = self.options
        return Place(
            on=given.get("on", "slurm"),
            runs=default_runs(given.get("runs_dir", "")),
            address=given.get("address", ""),
        )

    def _submit_function(self, function: Callable[..., T], calls: list[Call]) -> Run[T]:
        merged, place = self._read({}), self._place()
        folder = Path(merged.spec.chdir or Path.cwd()).absolute()
        root, _ = find_root(folder, None, LocalShell())
        if merged.host:
            _check_copied(merged.spec)
            packed = pack_function(function, calls, root, copied=True)
            spec = _with_function(merged.spec, packed, root)
            site, found = send_run(replace_fields(merged, spec=spec), added=packed.files)
            return Run.of(HostedRun(site, found["run"], trusts=self._trusts))
        spec, cluster = settle_request(merged, place)
        packed = pack_function(function, calls, root, copied=bool(spec.snapshot))
        spec = _with_python(_with_function(spec, packed, root))
        check_function(spec, folder, cluster, LocalShell())
        run, _ = start_run(spec, cluster, place.runs, os.environ, added=packed.files)
        return Run.of(LocalRun(run))

    @property
    def _trusts(self) -> bool:
        return bool(self.options.get("trust_host"))


def _plain(value: object) -> object:
    """Return a value as the readers of keys take it."""
    listed = isinstance(value, Iterable) and not isinstance(value, str | Mapping)
    return list(value) if listed and isinstance(value, Iterable) else value


def _with_function(spec: JobSpec, packed: PackedFunction, root: Path) -> JobSpec:
    return replace_fields(spec, script=str(root / FOLDER / PROGRAM), name=spec.name or packed.name)


def _with_python(spec: JobSpec) -> JobSpec:
    """Choose the Python that the function comes from, if the request names none."""
    chosen = spec.python or spec.venv or spec.conda or spec.modules or spec.prologue
    return spec if chosen else replace_fields(spec, python=sys.executable)


def _check_copied(spec: JobSpec) -> None:
    if spec.snapshot is False:
        raise UsageError(
            "a function needs a copy of the code on another host", hint="remove snapshot=False"
        )
