"""Submits scripts and functions from Python: `echelon.request(nodes=2).submit(train, lr=0.1)`."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack, overload

from echelon.api.functions import Call, PackedFunction, pack_function
from echelon.api.project_files import find_root
from echelon.api.requests import read_request
from echelon.api.run_view import Run, default_runs
from echelon.api.runs import check_files
from echelon.api.snapshot import take_snapshot
from echelon.api.submission import Place, settle_request, start_run, submit_request
from echelon.clusters.base import Cluster
from echelon.core.shell import LocalShell, Shell
from echelon.errors import MissingProgramError, UsageError
from echelon.launch.function_call import FOLDER, PROGRAM
from echelon.run.code import Code
from echelon.run.directory import RunDir
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


_PLACE = ("on", "runs_dir", "address")


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
        run, _, _ = submit_request(merged, self._place())
        return Run.of(run)

    def _read(self, more: Mapping[str, object]) -> Merged:
        flags = {key: _plain(value) for key, value in self.options.items() if key not in _PLACE}
        if "config" in flags:
            flags["config"] = Path(str(flags["config"]))
        merged = read_request({**flags, **more}, Path.cwd(), os.environ)
        if merged.host:
            raise UsageError(
                f"runs on {merged.host} cannot be submitted from Python yet",
                hint="use the command line: echelon submit",
            )
        return merged

    def _place(self) -> Place:
        given = self.options
        return Place(
            on=given.get("on", "slurm"),
            runs=default_runs(given.get("runs_dir", "")),
            address=given.get("address", ""),
        )

    def _submit_function(self, function: Callable[..., T], calls: list[Call]) -> Run[T]:
        place = self._place()
        spec, cluster = settle_request(self._read({}), place)
        folder = Path(spec.chdir or Path.cwd()).absolute()
        root, _ = find_root(folder, None, LocalShell())
        packed = pack_function(function, calls, root, copied=bool(spec.snapshot))
        spec = _with_function(spec, packed, root)
        _check_function(spec, folder, cluster, LocalShell())

        def take(run: RunDir) -> Code | None:
            return take_snapshot(run, spec, folder, LocalShell(), added=packed.files)

        run, _ = start_run(spec, cluster, place.runs, os.environ, take_code=take)
        return Run.of(run)


def _plain(value: object) -> object:
    """Return a value as the readers of keys take it."""
    listed = isinstance(value, Iterable) and not isinstance(value, str | Mapping)
    return list(value) if listed and isinstance(value, Iterable) else value


def _with_function(spec: JobSpec, packed: PackedFunction, root: Path) -> JobSpec:
    chosen = spec.python or spec.venv or spec.conda or spec.modules or spec.prologue
    return replace_fields(
        spec,
        script=str(root / FOLDER / PROGRAM),
        name=spec.name or packed.name,
        python=spec.python if chosen else sys.executable,
    )


def _check_function(spec: JobSpec, folder: Path, cluster: Cluster, shell: Shell) -> None:
    """Report what is wrong with a request for a function, before anything is started."""
    problems = [*check_files(replace_fields(spec, module=True), folder), *cluster.problems(spec)]
    if spec.style != "echelon":
        problems.append(f"a function needs the style 'echelon', not '{spec.style}'")
    if spec.python and spec.python != sys.executable and not (spec.conda or spec.modules):
        problems += _check_version(spec.python, shell)
    if problems:
        raise UsageError("; ".join(problems), hint="nothing was started; change the request")


def _check_version(python: str, shell: Shell) -> list[str]:
    look = "import sys; print('{}.{}'.format(*sys.version_info))"
    try:
        done = shell.run([python, "-c", look], timeout_s=60)
    except MissingProgramError:
        return [f"Python not found: '{python}'"]
    own = "{}.{}".format(*sys.version_info)
    if done.code or done.stdout.strip() == own:
        return []
    return [f"{python} is Python {done.stdout.strip()}, and cannot read a function of Python {own}"]
