"""Submits scripts and functions from Python: `echelon.request(nodes=2).submit(train, lr=0.1)`."""

import itertools
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack, overload

from echelon.client.code.code_listing import find_root
from echelon.client.manage.run_jobs import host_sweep_jobs
from echelon.client.python.background_sweep import start_mapped
from echelon.client.python.functions import Call, pack_function
from echelon.client.python.hosted_run import HostedRun
from echelon.client.python.local_run import LocalRun
from echelon.client.python.run_view import Run, default_runs
from echelon.client.submit import pipeline
from echelon.client.submit.host_submission import submit_to_host
from echelon.client.submit.parameters import check_names, make_table
from echelon.client.submit.requests import read_request
from echelon.client.submit.target import Target
from echelon.core.frozen import frozen
from echelon.core.shell import LocalShell
from echelon.errors import UsageError
from echelon.launch.function_call import FOLDER, PROGRAM
from echelon.run.sweep import Table
from echelon.spec.merging import Merged

T = TypeVar("T")


class RequestOptions(TypedDict, total=False):
    """All keys of a request, which are also those of echelon.toml.

    They are listed for type checkers and editors; a test compares them with `JobSpec`.
    """

    on: str
    """Where to run: `slurm` (the default), `ray` or `local`."""
    runs_dir: str | Path
    address: str
    cluster: str
    host: str
    config: str | Path
    max_running: int
    """How many runs of `map` and `grid` run at a time."""
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
    log_level: str
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
    image: str
    image_runtime: str
    image_mounts: Iterable[str]
    image_env: Mapping[str, str]
    image_workdir: str
    image_python: str
    image_options: Iterable[str]
    image_cache: str
    stage: bool
    stage_dir: str
    stage_limit: int | str
    slurm_extra: Mapping[str, str]


_PLACE = ("on", "runs_dir", "address", "max_running", "trust_host")


def request(**options: Unpack[RequestOptions]) -> "Request":
    """Return a request: what to run on, with the keys of echelon.toml.

    The project's echelon.toml and the user's own settings apply too, as they do for `echelon
    submit`. Files are read, and everything is checked, when something is submitted.
    """
    known = RequestOptions.__annotations__
    if unknown := [name for name in options if name not in known]:
        from echelon.spec.readers import nearest  # noqa: PLC0415

        raise UsageError(f"unknown key: '{unknown[0]}'", hint=nearest(unknown[0], tuple(known)))
    if (limit := options.get("max_running", 0)) < 0:
        raise UsageError(f"max_running is {limit}", hint="0 means no limit")
    return Request(options={name: _plain(value) for name, value in options.items()})


@frozen
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
            return self._start(what, [], [(args, options)])[0]
        if options:
            raise UsageError(
                f"a script takes no named arguments: {', '.join(options)}",
                hint='write them as on the command line: submit("train.py", "--lr", "0.1")',
            )
        return self._start(what, args)[0]

    @overload
    def map(self, what: str | Path, /, *args: str, **values: Iterable[Any]) -> list[Run[None]]: ...

    @overload
    def map(
        self, what: Callable[..., T], /, *args: Iterable[Any], **values: Iterable[Any]
    ) -> list[Run[T]]: ...

    def map(self, what: Any, /, *args: Any, **values: Iterable[Any]) -> list[Run[Any]]:
        """Start one run per set of arguments: the first of each, the second of each, and so on.

        On Slurm it is one job array: one submission, and one line in squeue. For a script, `{lr}`
        in its arguments stands for a value of `lr`:
        `job.map("train.py", "--lr", "{lr}", lr=[0.1, 0.01])`.

        Raises:
            UsageError: there are not equally many of each, or see `submit`.
        """
        positional = args if callable(what) else ()
        named = {f"argument {n}": column for n, column in enumerate(positional, start=1)} | values
        columns = {name: _list_values(name, column) for name, column in named.items()}
        if len({len(column) for column in columns.values()}) != 1:
            counts = ", ".join(f"{name}: {len(column)}" for name, column in columns.items())
            raise UsageError(
                f"not equally many values of each ({counts or 'none are given'})",
                hint="for all combinations, use grid",
            )
        first = len(positional)
        calls: list[Call] = [
            (row[:first], dict(zip(values, row[first:], strict=True)))
            for row in zip(*columns.values(), strict=True)
        ]
        return self._start_all(what, args, calls)

    @overload
    def grid(self, what: str | Path, /, *args: str, **values: Iterable[Any]) -> list[Run[None]]: ...

    @overload
    def grid(self, what: Callable[..., T], /, **values: Iterable[Any]) -> list[Run[T]]: ...

    def grid(self, what: Any, /, *args: Any, **values: Iterable[Any]) -> list[Run[Any]]:
        """Start one run per combination of values; see `map`."""
        if callable(what) and args:
            raise UsageError(
                "grid needs the names of a function's parameters", hint="grid(train, lr=[0.1, 0.2])"
            )
        columns = [_list_values(name, column) for name, column in values.items()]
        combined = itertools.product(*columns)
        calls: list[Call] = [((), dict(zip(values, row, strict=True))) for row in combined]
        return self._start_all(what, args, calls)

    def _start_all(self, what: Any, args: Sequence[Any], calls: list[Call]) -> list[Run[Any]]:
        rows = [{str(n): str(v) for n, v in (*enumerate(a), *k.items())} for a, k in calls]
        if not rows:
            return []
        if not callable(what):
            check_names(list(rows[0]))
        table = make_table(rows, int(self.options.get("max_running", 0)))
        return self._start(what, args, calls, table)

    def _start(
        self,
        what: Any,
        args: Sequence[Any],
        calls: Sequence[Call] = (),
        table: Table | None = None,
    ) -> list[Run[Any]]:
        """Start a run, or one per row of a table, of a script or of calls of a function."""
        words = {} if callable(what) else {"script": str(what), "args": [str(one) for one in args]}
        merged = self._read(words)
        added: Mapping[str, bytes] = {}
        if callable(what):
            merged, added = _pack(merged, what, calls)
            if table:
                merged = replace_fields(merged, spec=replace_fields(merged.spec, args=("{index}",)))
        given = self.options
        target = Target(
            on=given.get("on", "slurm"),
            runs=default_runs(given.get("runs_dir", "")),
            address=given.get("address", ""),
        )
        wanted = pipeline.Request(
            merged=merged, target=target, table=table, added=added, lints=True
        )
        if merged.host:
            return self._send(wanted)
        prepared = pipeline.prepare(pipeline.check(wanted))
        if table:
            return [Run.of(one) for one in start_mapped(prepared, target)]
        return [Run.of(LocalRun(pipeline.submit(prepared).run))]

    def _send(self, wanted: pipeline.Request) -> list[Run[Any]]:
        """Start runs on another host."""
        queued, trusts = submit_to_host(wanted), bool(self.options.get("trust_host"))
        if wanted.table is None:
            return [Run.of(HostedRun(queued.site, queued.run_id, trusts=trusts))]
        sweep_id, runs = queued.run_id, Path(queued.directory).parent
        jobs = host_sweep_jobs(queued.site, sweep_id)
        return [
            Run.of(HostedRun(queued.site, f"{sweep_id}-{n}", trusts=trusts, jobs=jobs, runs=runs))
            for n in wanted.table.tasks
        ]

    def _read(self, more: Mapping[str, object]) -> Merged:
        flags = {key: value for key, value in self.options.items() if key not in _PLACE}
        if "config" in flags:
            flags["config"] = Path(str(flags["config"]))
        merged = read_request({**flags, **more}, Path.cwd(), os.environ)
        on = self.options.get("on", "slurm")
        return merged if on == "slurm" else replace_fields(merged, host="")


def _list_values(name: str, values: object) -> list[Any]:
    """Return the values of a parameter; refuse text, which is a single value."""
    if isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping):
        return list(values)
    raise UsageError(
        f"{name} is {values!r}, not a list of values", hint=f"write a list: [{values!r}]"
    )


def _plain(value: object) -> object:
    """Return a value for the readers of keys, as a copy that the caller cannot change."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable) and not isinstance(value, str):
        return list(value)
    return value


def _pack(
    merged: Merged, function: Callable[..., Any], calls: Sequence[Call]
) -> tuple[Merged, Mapping[str, bytes]]:
    """Pack a function; return its request and its files."""
    spec = merged.spec
    if merged.host and spec.snapshot is False:
        raise UsageError(
            "a function needs a copy of the code on another host", hint="remove snapshot=False"
        )
    root, _ = find_root(Path(spec.chdir or Path.cwd()).absolute(), None, LocalShell())
    packed = pack_function(function, calls, root, copied=spec.snapshot is not False)
    chosen = spec.python or spec.venv or spec.conda or spec.modules or spec.prologue or merged.host
    spec = replace_fields(
        spec,
        script=str(root / FOLDER / PROGRAM),
        name=spec.name or packed.name,
        # Without a Python in the request, the one that pickled the function can also unpickle it.
        python=spec.python if chosen else sys.executable,
    )
    return replace_fields(merged, spec=spec), packed.files
