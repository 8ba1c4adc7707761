"""Runs as jobs of a Ray cluster, submitted through its Jobs API over HTTP, without ray itself.

A job is the same script as for Slurm, started on the head of the cluster. Its controller requests
nodes from Ray. The run directory is on a file system that all nodes share.
"""

import hashlib
import json
import shlex
import urllib.parse
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from echelon.clusters.ray.address import (
    DEFAULT,
    PREFIX,
    Fetch,
    HttpFetch,
    JobName,
    find_token,
    parse_job_name,
    refuse_contact,
    remember_address,
)
from echelon.core.jobs import Job
from echelon.core.shell import Shell
from echelon.errors import EchelonError, NotPermittedError, UnavailableError, UsageError
from echelon.launch.backends.ray.status import CANCELLED, read_status
from echelon.launch.backends.ray.version import SHOWN, is_too_old
from echelon.launch.protocol.rank_environment import HERE, ON_RAY
from echelon.run.attempts import outcome
from echelon.run.directory import RunDir
from echelon.run.request import read_spec
from echelon.spec.conflicts import TYPED, find_unused, show_values
from echelon.spec.job_spec import KEYS, JobSpec
from echelon.spec.merging import Merged

_STATES = {
    "PENDING": "PENDING",
    "RUNNING": "RUNNING",
    "SUCCEEDED": "COMPLETED",
    "STOPPED": "CANCELLED",
    "FAILED": "FAILED",
}
_STOP_S = 90
"""Time for a job to stop, in addition to the grace period of its ranks, before Ray kills it."""
_MARK = "echelon: "


def drop_slurm_only_keys(request: Merged) -> tuple[JobSpec, list[str]]:
    """Remove keys that only apply to Slurm from a request. Pure.

    Project and site files are for all runs, so such keys in them are ignored.

    Returns:
        the request, and the keys that were removed.

    Raises:
        UsageError: such a key was given for this run.
    """
    keys = find_unused(request.spec, "ray")
    typed = [key for key in keys if request.origins[key] in TYPED]
    if typed:
        shown = show_values(request.spec, typed)
        raise UsageError(f"not supported on Ray: {shown}", hint="omit it with --on ray")
    fresh = {KEYS[key].field: KEYS[key].default for key in keys}
    return replace(request.spec, **fresh), [f"{key} ({request.origins[key]})" for key in keys]


def render_entrypoint(run: Path, attempt: int, output: Path, content: bytes) -> str:
    """Return the command of a job, which fails if it cannot read the run directory. Pure.

    Ray stores the command, not the script. The command therefore contains the digest of the script,
    and executes the text that it has compared.
    """
    script = shlex.quote(str(run / "job.sbatch"))
    blind = (
        f'"{_MARK}the head of the Ray cluster, $(hostname), cannot access the run directory" '
        f"{shlex.quote(str(run))} "
        "'as its owner: keep runs on a file system that all nodes share (--runs-dir)'"
    )
    # As $(…) returns it, without trailing line breaks.
    digest = hashlib.sha256(content.rstrip(b"\n")).hexdigest()
    changed = shlex.quote(f"{_MARK}refused to start: {run}/job.sbatch is not what was submitted")
    return (
        f"if [ ! -O {script} ]; then echo {blind} >&2; exit 69; fi; "
        f"script=$(cat {script}); "
        f'if [ "$(printf %s "$script" | sha256sum)" != \'{digest}  -\' ]; '
        f"then echo {changed} >&2; exit 77; fi; "
        f'exec bash -c "$script" {script} {attempt} >> {shlex.quote(str(output))} 2>&1'
    )


class RayCluster:
    """The Ray cluster at an address."""

    def __init__(
        self,
        address: str,
        runs: Path,
        environ: Mapping[str, str],
        *,
        shell: Shell,
        fetch: Fetch | None = None,
        glance: bool = False,
        given: bool = True,
    ) -> None:
        """Choose how to contact the cluster.

        Args:
            address: of the Jobs API; empty for the default, where any user's program may listen.
            runs: the directory of runs.
            environ: the environment, which may contain a token.
            shell: runs programs.
            fetch: sends requests.
            glance: only show states; ignore a cluster that does not respond.
            given: whether the user gave the address; any other is not contacted.
        """
        self.address, self._named, self.given = address or DEFAULT, bool(address), given
        self._runs, self._environ, self._shell, self._glance = runs, environ, shell, glance
        token = find_token(environ) if address and given else ""
        if not given:
            self._fetch = refuse_contact(self.address)
        else:
            self._fetch = fetch or HttpFetch(self.address, token, hasty=glance)

    def problems(self, spec: JobSpec) -> list[str]:
        found = self._check_request(spec)
        return found or self._check_version(spec)

    def _check_request(self, spec: JobSpec) -> list[str]:
        found = [
            f"not supported on Ray: {show_values(spec, [key])}" for key in find_unused(spec, "ray")
        ]
        if spec.style != "echelon":
            found.append(f"style '{spec.style}' needs Slurm: on Ray, use --style echelon")
        if spec.hand_over == "requeue":
            found.append("hand_over 'requeue' needs Slurm: on Ray, use --hand-over auto")
        return found

    def _check_version(self, spec: JobSpec) -> list[str]:
        served = str(self._ask("GET", "/api/version").get("ray_version") or "")
        if not served:
            raise self._strange()
        if is_too_old(served):
            return [f"the cluster at {self.address} has ray {served}, but Echelon needs {SHOWN}"]
        return self._check_python(spec, served)

    def _check_python(self, spec: JobSpec, served: str) -> list[str]:
        """Check that the ranks' Python has the same version of ray as the cluster.

        With conda, modules or a prologue, only the job can tell.
        """
        python = spec.python or (f"{spec.venv}/bin/python" if spec.venv else "")
        if not python or not served or spec.conda or spec.modules or spec.prologue:
            return []
        look = "from importlib.metadata import version; print(version('ray'))"
        try:
            shown = self._shell.run([python, "-c", look], timeout_s=60)
        except EchelonError:
            return []  # a missing Python is reported elsewhere
        own = shown.stdout.strip() if shown.code == 0 else ""
        if own == served:
            return []
        install = f"{python} -m pip install 'ray[default]=={served}'"
        has = f"has ray {own}, but the cluster has {served}" if own else "has no ray"
        return [f"the Python '{python}' {has}: {install}"]

    def exclusions(self, request: JobSpec) -> str:
        return request.exclude

    def submit(
        self,
        script: Path,
        *,
        content: bytes,
        run_id: str,
        attempt: int,
        environ: Mapping[str, str],  # noqa: ARG002  Ray's list of jobs would show it
        exclude: str = "",  # noqa: ARG002  Ray's nodes come and go
    ) -> str:
        submission = f"{run_id}-{attempt}"
        run = RunDir.open(script.absolute().parent)
        grace_s = read_spec(run).grace_s
        job = {
            "entrypoint": render_entrypoint(run.path, attempt, run.job_log(attempt), content),
            "submission_id": submission,
            "metadata": {"echelon_run": run_id, "job_name": submission},
            "runtime_env": {
                "env_vars": {
                    HERE: "1",
                    ON_RAY: submission,
                    # Ray signals all processes of the job; our step ignores SIGINT.
                    "RAY_JOB_STOP_SIGNAL": "SIGINT",
                    "RAY_JOB_STOP_WAIT_TIME_S": str(grace_s + _STOP_S),
                }
            },
        }
        try:
            status, text = self._fetch("POST", "/api/jobs/", job)
        except OSError as error:
            # The job may exist, and only the response be lost. Ray accepts an ID only once.
            if self._look(submission) is None:
                raise self._away(error) from error
            status, text = 200, ""
        if status != 200 and self._look(submission) is None:
            raise self._refused(status, text)
        address = self.address if self._named else ""
        if address:
            remember_address(address, self._environ)
        return str(JobName(submission=submission, address=address))

    def job(self, job_id: str, *, run_id: str) -> Job:
        if not job_id.startswith(PREFIX):
            return Job(id=job_id, state="UNKNOWN", reason="not a job of a Ray cluster")
        name = parse_job_name(job_id)
        run = RunDir.open(self._runs.absolute() / run_id)
        attempt = int(name.submission.rpartition("-")[2])
        status = read_status(run.attempt(attempt))
        job = Job(
            id=job_id,
            state="UNKNOWN",
            nodes=",".join(status.names()) if status else "",
            output=str(run.job_log(attempt)),
            reason=status.waits if status else "",
        )
        ended = outcome(run, attempt)
        try:
            record = self._look(name.submission)
        except (UnavailableError, NotPermittedError):
            if ended is None:
                raise
            record = {"status": "FAILED"}  # the cluster may be gone, but the outcome is recorded
        if record is None or (record.get("metadata") or {}).get("echelon_run", run_id) != run_id:
            return replace(job, reason="Ray has no record of the job")
        found = parse_job(job, record)
        if ended is None or not found.over:
            return found
        return replace(found, state=ended.state, exit_code=ended.exit_code, reason="")

    def stop(self, job_id: str, *, run_id: str, interrupt: bool = False) -> None:  # noqa: ARG002
        if not self.job(job_id, run_id=run_id).over:
            self._ask("POST", f"{_path_of(parse_job_name(job_id).submission)}/stop")

    def cancel(self, job_id: str, *, run_id: str) -> None:
        # Ray signals a job only once, and waits until its ranks may have saved. The file tells the
        # job not to wait.
        attempt = parse_job_name(job_id).submission.rpartition("-")[2]
        with suppress(FileNotFoundError):
            (self._runs / run_id / "attempts" / attempt / CANCELLED).touch(mode=0o600)
        self.stop(job_id, run_id=run_id)

    # --- requests -------------------------------------------------------------------------------

    def _look(self, submission: str) -> Mapping[str, Any] | None:
        """Return Ray's record of a job; None if there is none."""
        status, text = self._send("GET", _path_of(submission))
        return None if status == 404 else self._read(status, text)

    def _ask(self, method: str, path: str) -> Mapping[str, Any]:
        return self._read(*self._send(method, path))

    def _send(self, method: str, path: str) -> tuple[int, str]:
        try:
            return self._fetch(method, path, None)
        except OSError as error:
            raise self._away(error) from error

    def _read(self, status: int, text: str) -> Mapping[str, Any]:
        if status != 200:
            raise self._refused(status, text)
        try:
            record = json.loads(text)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise self._strange()
        return record

    def _strange(self) -> UnavailableError:
        return UnavailableError(
            f"the server at {self.address} is not Ray's Jobs API",
            hint="give the address of the dashboard: --address http://HEAD:8265",
        )

    def _away(self, error: OSError) -> UnavailableError:
        reason = getattr(error, "reason", None) or error
        return UnavailableError(
            f"no Ray cluster responds at {self.address}: {reason}",
            hint="give the address of the dashboard of a Ray that was installed as "
            "ray[default]: --address http://HEAD:8265",
        )

    def _refused(self, status: int, text: str) -> UnavailableError | NotPermittedError:
        if status in (401, 403) and not self._named and find_token(self._environ):
            # On a shared host, another user's program may listen there.
            return NotPermittedError(
                f"{self.address} requires a token, which is only sent to addresses you gave",
                hint=f"give the address if the cluster is yours: --address {self.address}",
            )
        if status in (401, 403):
            return NotPermittedError(
                f"the Ray cluster at {self.address} rejects your token"
                if find_token(self._environ)
                else f"the Ray cluster at {self.address} requires a token",
                hint="set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH; see ray get-auth-token",
            )
        said = [line.strip() for line in text.splitlines() if line.strip()]
        return UnavailableError(
            f"Ray responds with status {status}: {said[-1] if said else 'no message'}",
            hint=f"check its dashboard: {self.address}",
        )


def _path_of(submission: str) -> str:
    # A name from a run directory must not lead to another path of the API.
    return f"/api/jobs/{urllib.parse.quote(submission, safe='')}"


def parse_job(job: Job, record: Mapping[str, Any]) -> Job:
    """Return a job with its state from Ray's record. Pure."""
    state = _STATES.get(str(record.get("status")), "UNKNOWN")
    if state in ("PENDING", "RUNNING"):
        return replace(job, state=state)
    said = str(record.get("message") or "").strip().splitlines()
    told = next((line.removeprefix(_MARK) for line in said if line.startswith(_MARK)), "")
    reason = "" if state == "COMPLETED" else told or (said[0] if said else "")
    code = record.get("driver_exit_code")
    if isinstance(code, int) and code < 0:
        code = 128 - code
    failed = 130 if state == "CANCELLED" else 1
    return replace(
        job,
        state=state,
        reason=reason,
        exit_code=code if isinstance(code, int) else 0 if state == "COMPLETED" else failed,
    )
