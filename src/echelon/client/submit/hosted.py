"""The host's side of a submission from another machine: receives the project, and queues the run.

A run is queued only once, even if the connection is lost and the other machine tries again: a lock
admits one submission per project at a time, and the other machine chooses the run's id.
"""

import contextlib
import io
import os
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from echelon.client.code.project import RUNS
from echelon.client.submit.arrays import submit_packed, submit_sweep
from echelon.client.submit.pipeline import Checked, Prepared, Request, check, prepare, submit
from echelon.client.submit.requests import flatten
from echelon.client.submit.target import Target
from echelon.clusters.slurm.cluster import SlurmCluster
from echelon.clusters.ssh.stream import Stream
from echelon.core.atomic_file import remove_tree
from echelon.core.shell import LocalShell
from echelon.core.slurm import Slurm, mark_tasks
from echelon.errors import UnavailableError
from echelon.run.attempts import attempts
from echelon.run.directory import RunDir
from echelon.run.sweep import SweepDir, Table, is_sweep
from echelon.spec.merging import Layer, Merged, merge


def serve_submission(workdir: Path, stream: Stream) -> None:
    """Receive a project, submit it, and send the id of the run back."""
    from echelon.client.remote.workdir import hold_workdir  # noqa: PLC0415

    wanted = stream.receive()
    with hold_workdir(workdir) as held, contextlib.redirect_stderr(io.StringIO()) as notes:
        held.receive(stream)
        found = _submit_once(held.root, wanted)
    stream.send({**found, "notes": notes.getvalue().splitlines()})


def _submit_once(workdir: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    folder = workdir / wanted["folder"]
    folder.mkdir(parents=True, exist_ok=True)  # one without code is not sent
    os.chdir(folder)
    runs = workdir / RUNS
    if "sweep" not in wanted and (known := find_submitted(runs / wanted["run"])):
        return known
    sent = read_sent(wanted["request"])
    # The sender cannot expand these, because its home directory may be another one.
    home = {name: os.path.expanduser(getattr(sent.spec, name)) for name in ("python", "venv")}  # noqa: PTH111  or it is empty
    checked = check(
        Request(
            merged=replace(sent, spec=replace(sent.spec, **home)),
            target=Target(runs=runs),
            table=_read_table(wanted["sweep"]) if "sweep" in wanted else None,
            added={path: b64decode(data) for path, data in wanted.get("added", {}).items()},
            run_id=wanted["run"],
        )
    )
    if checked.table is not None:
        return _submit_tasks(checked)
    done = submit(prepare(checked))
    return {"run": done.run.run_id, "job_id": done.job_id, "directory": str(done.run.path)}


def _read_table(sent: Mapping[str, Any]) -> Table:
    """Return the parameters of a sweep as the other machine sent them."""
    rows = sent["tasks"]
    names = tuple(next(iter(rows.values())))
    tasks = {int(index): tuple(row[name] for name in names) for index, row in rows.items()}
    sizes = {name: int(sent[name]) for name in ("max_running", "pack", "per_slot")}
    return Table(names=names, tasks=tasks, **sizes)


def _submit_tasks(checked: Checked) -> dict[str, Any]:
    """Create a sweep and submit its jobs, except those that an earlier call has submitted."""
    path, cluster = checked.runs / checked.run_id, checked.cluster
    assert isinstance(cluster, SlurmCluster), "a host submits to Slurm"
    assert checked.table is not None, "only for sweeps"
    if checked.table.pack:
        return find_submitted(path) or _submit_packed(prepare(checked))
    again = is_sweep(path) and _is_queued(SweepDir.open(path), cluster)
    if not again:
        remove_tree(path)
        prepare(checked)
    sweep = SweepDir.open(path)
    with sweep.locked():
        submit_sweep(sweep, cluster, os.environ, again=again)
    arrays = [array.job_id for array in sweep.arrays()]
    return {
        "run": sweep.sweep_id,
        "job_id": arrays[0],
        "arrays": arrays,
        "directory": str(sweep.path),
    }


def _submit_packed(prepared: Prepared) -> dict[str, str]:
    assert prepared.table is not None, "only for sweeps"
    sweep = prepared.sweep
    with sweep.locked():
        tasks = list(prepared.table.tasks)
        attempt = submit_packed(sweep, prepared.cluster, os.environ, tasks)
    return {"run": sweep.sweep_id, "job_id": attempt.job_id, "directory": str(sweep.path)}


def _is_queued(sweep: SweepDir, cluster: Any) -> bool:
    """Tell whether an earlier call has submitted an array of a sweep or created a task."""
    return bool(
        sweep.arrays()
        or cluster.find_submitted(mark_tasks(sweep.sweep_id), 1)
        or any(sweep.path.parent.glob(f"{sweep.sweep_id}-*"))
    )


def find_submitted(path: Path) -> dict[str, str] | None:
    """Return a run that an earlier call has submitted; remove one that was never submitted."""
    if not path.exists():
        return None
    run = RunDir.open(path)
    if known := attempts(run):
        job_id = known[0].job_id
    else:
        # The earlier call may have been interrupted before it received sbatch's answer.
        job_id = Slurm(LocalShell(), os.environ).find_submitted(run.run_id, 1)
    if job_id:
        return {"run": run.run_id, "job_id": job_id, "directory": str(path)}
    if run.attempt_numbers():
        raise UnavailableError(
            f"it is not known whether {run.run_id} was queued: its job is not in the queue",
            hint="look for it (sacct --name), then submit again",
        )
    remove_tree(path)
    return None


def read_sent(text: str) -> Merged:
    """Parse a request that was merged on the other machine. Pure."""
    import tomllib  # noqa: PLC0415

    return merge([Layer(source="the request", values=flatten(tomllib.loads(text)))])
