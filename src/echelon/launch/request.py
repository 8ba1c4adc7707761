"""What the launcher needs of a run's frozen request."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from echelon.core.records import UnreadableError, parse_toml, read_bytes
from echelon.core.rundir import RunDir
from echelon.errors import NotPermittedError, UnavailableError
from echelon.launch.rank import Program
from echelon.merging import Layer, merge
from echelon.readers import LimitSignal
from echelon.spec import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """The request, as controller and agents read it."""

    program: Program
    low: int
    """Fewest nodes that the run may go on with."""
    high: int
    procs: int
    """Ranks per node; 0 for one per GPU that the node was granted."""
    threads: int
    cpus_per_task: int
    """CPUs per rank, where the request says it; else 0."""
    restarts: int
    preload: tuple[str, ...]
    hang_timeout_s: int
    """0 for: do not watch."""
    on_hang: str
    nodelist: str
    exclude: str
    forgive_after_s: int
    """For how long a node that this run finds to be bad is left out."""
    hand_over: str
    node_check: str
    preflight: bool
    """Whether nodes are examined before the first ranks."""
    telemetry: bool
    lead_s: int
    """How long before the job's time limit they are told, at least."""
    lead_signal: int
    """By which signal, where they know nothing of Echelon."""
    grace_s: int
    """What ranks that know nothing of Echelon get between being asked to stop and being killed."""
    notify: str
    """A command for the end of the run."""
    mail: bool
    """Whether Slurm is to write mail at the end of the run, and only then."""
    cpus: int = 1
    """What each node gives,"""
    gpus: int = 0
    mem_mib: int = 0
    """0 where the request does not say."""


def read_request(run: RunDir, digest: str = "") -> LaunchRequest:
    """Read what the launcher needs of a run's frozen request.

    Args:
        run: whose.
        digest: its SHA-256; where one is given, no other request is taken.

    Raises:
        NotPermittedError: the request has another digest.
        UnavailableError: somebody, or a full disk, has spoilt it.
    """
    return from_spec(read_spec(run, digest))


def read_spec(run: RunDir, digest: str = "") -> JobSpec:
    """Read the frozen request of a run, in all its parts; otherwise as `read_request`."""
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
            f"the request of the run '{run.run_id}' is spoilt: {run.spec}: {error}",
            hint="mend that file, or start anew: echelon submit",
        ) from error
    if isinstance(extra := values.get("slurm"), dict):
        del values["slurm"]
        values |= {f"slurm.{name}": table for name, table in extra.items()}
    return merge([Layer(source=str(run.spec), values=values)]).spec


def from_spec(spec: JobSpec) -> LaunchRequest:
    return LaunchRequest(
        program=Program(argv=(spec.script, *spec.args), kind=_kind(spec)),
        low=spec.nodes.low,
        high=spec.nodes.high,
        procs=spec.procs or spec.gpus,
        threads=spec.omp_threads,
        cpus_per_task=spec.cpus_per_task,
        restarts=spec.restarts,
        preload=spec.preload,
        hang_timeout_s=spec.hang_timeout_s,
        on_hang=spec.on_hang,
        nodelist=spec.nodelist,
        exclude=spec.exclude,
        forgive_after_s=spec.forgive_after_s,
        hand_over=spec.hand_over,
        node_check=spec.node_check,
        preflight=spec.preflight,
        telemetry=spec.telemetry,
        lead_s=spec.limit_signal.lead_s if spec.limit_signal else 0,
        lead_signal=(spec.limit_signal or LimitSignal()).number,
        grace_s=spec.grace_s,
        cpus=spec.procs_per_node * max(1, spec.cpus_per_rank),
        gpus=spec.gpus,
        mem_mib=_mem_mib(spec),
        notify=spec.notify,
        mail=bool(spec.mail),
    )


def _mem_mib(spec: JobSpec) -> int:
    """Return what each node has to give, in whatever way it was said; 0 where it was not."""
    cpus = spec.procs_per_node * max(1, spec.cpus_per_rank)
    return spec.mem_mib or spec.mem_per_cpu_mib * cpus or spec.mem_per_gpu_mib * spec.gpus


def _kind(spec: JobSpec) -> str:
    if spec.module:
        return "module"
    if spec.script.endswith(".py"):
        return "script"
    try:
        with Path(spec.chdir, spec.script).open("rb") as file:
            first = file.readline(200)
    except OSError:
        return "binary"
    return "script" if first.startswith(b"#!") and b"python" in first else "binary"
