"""The host's side of a submission from another machine: receives the project, and queues the run.

It is done once, even if the connection breaks and the other machine asks again: a lock lets one
submission of a project go on at a time, and the run has the name that the other machine gave it.
"""

import contextlib
import io
import json
import os
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from echelon.client.code.project import RUNS
from echelon.client.submit.places import choose_cluster, choose_spec
from echelon.client.submit.requests import flatten
from echelon.client.submit.submission import (
    check_function,
    check_request,
    choose_snapshot,
    start_run,
)
from echelon.core.atomic_file import remove_tree
from echelon.core.shell import LocalShell
from echelon.core.slurm import mark_tasks
from echelon.core.stream import Stream
from echelon.errors import UnavailableError
from echelon.launch.function_call import ABOUT, FOLDER
from echelon.run.attempts import attempts
from echelon.run.directory import RunDir
from echelon.run.sweep import SweepDir, is_sweep
from echelon.spec.job_spec import JobSpec
from echelon.spec.merging import Layer, Merged, merge


def serve_submission(workdir: Path, stream: Stream) -> None:
    """Receive a project, submit it, and answer with the run."""
    from echelon.client.remote.workdir import hold_workdir  # noqa: PLC0415

    wanted = stream.receive()
    with hold_workdir(workdir) as held, contextlib.redirect_stderr(io.StringIO()) as said:
        held.receive(stream)
        found = _submit_once(held.root, wanted)
    stream.send({**found, "notes": said.getvalue().splitlines()})


def _submit_once(workdir: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    folder = workdir / wanted["folder"]
    folder.mkdir(parents=True, exist_ok=True)  # one without code is not sent
    os.chdir(folder)
    runs = workdir / RUNS
    if "sweep" not in wanted and (known := find_submitted(runs / wanted["run"])):
        return known
    cluster = choose_cluster("slurm", runs)
    sent = read_sent(wanted["request"])
    # Nobody else expands these: the other machine has another home directory.
    home = {name: os.path.expanduser(getattr(sent.spec, name)) for name in ("python", "venv")}  # noqa: PTH111  or it is empty
    sent = replace(sent, spec=replace(sent.spec, **home))
    spec = choose_snapshot(choose_spec(sent, "slurm", os.environ))
    added = {path: b64decode(data) for path, data in wanted.get("added", {}).items()}
    if added:
        about = json.loads(added[f"{FOLDER}/{ABOUT}"])
        check_function(spec, folder, cluster, LocalShell(), version=str(about["python"]))
    else:
        check_request(spec, cluster, "submit", lints=False)
    if "sweep" in wanted:
        return _submit_tasks(wanted, spec, cluster, runs, added or None)
    run, job_id = start_run(
        spec, cluster, runs, os.environ, run_id=wanted["run"], added=added or None
    )
    return {"run": run.run_id, "job_id": job_id, "directory": str(run.path)}


def _submit_tasks(
    wanted: Mapping[str, Any],
    spec: JobSpec,
    cluster: Any,
    runs: Path,
    added: Mapping[str, bytes] | None,
) -> dict[str, Any]:
    """Create a sweep and submit its arrays; what an earlier call has done counts."""
    from echelon.client.manage.sweeps import create_sweep, submit_sweep  # noqa: PLC0415

    path, asked = runs / wanted["run"], wanted["sweep"]
    again = is_sweep(path) and _is_queued(SweepDir.open(path), cluster)
    if again:
        sweep = SweepDir.open(path)
    else:
        remove_tree(path)
        sweep = create_sweep(
            spec,
            {int(index): row for index, row in asked["tasks"].items()},
            runs,
            added=added,
            max_running=int(asked["max_running"]),
            sweep_id=wanted["run"],
        )
    with sweep.locked():
        submit_sweep(sweep, cluster, os.environ, again=again)
    arrays = [array.job_id for array in sweep.arrays()]
    return {
        "run": sweep.sweep_id,
        "job_id": arrays[0],
        "arrays": arrays,
        "directory": str(sweep.path),
    }


def _is_queued(sweep: SweepDir, cluster: Any) -> bool:
    """Tell whether an earlier call has created a sweep as a whole, and may have submitted it."""
    return bool(
        sweep.arrays()
        or cluster.find_submitted(mark_tasks(sweep.sweep_id), 1)
        or any(sweep.path.parent.glob(f"{sweep.sweep_id}-*"))
    )


def find_submitted(path: Path) -> dict[str, str] | None:
    """Return a run that an earlier call has submitted; remove one that it could not."""
    from echelon.core.slurm import Slurm  # noqa: PLC0415

    if not path.exists():
        return None
    run = RunDir.open(path)
    if known := attempts(run):
        job_id = known[0].job_id
    else:
        # Its answer may have been lost between sbatch and us; its job records itself later.
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
