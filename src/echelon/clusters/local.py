"""Runs on this machine, or in the allocation around this process.

They use the same script as a Slurm job. Without an allocation, its controller simulates the nodes.
"""

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from echelon.core.jobs import LOCAL, Job, describe_job, own_job
from echelon.core.nodes import compress, expand
from echelon.core.proc import read_stat, start_time
from echelon.core.shell import Shell
from echelon.core.waiting import wait_until
from echelon.errors import UnavailableError, UsageError
from echelon.launch.protocol.rank_environment import HERE, TIED
from echelon.run.attempts import Outcome, attempts
from echelon.run.attempts import outcome as find_outcome
from echelon.run.directory import RunDir
from echelon.run.request import has_controller
from echelon.spec.job_spec import JobSpec
from echelon.spec.readers import NodeCount

_EXEC_S = 10.0
"""Maximum time for a process to execute its program."""
_WITH_OUTCOME = """\
outcome=$1; shift
bash "$@"; code=$?
if [ $code = 0 ]; then state=COMPLETED; else state=FAILED; fi
printf '{"state": "%s", "exit_code": %d}\\n' $state $code > "$outcome.tmp"
mv "$outcome.tmp" "$outcome"
"""


class LocalCluster:
    """Processes of this machine. A job ID is `local:HOST:PID:START`."""

    def __init__(
        self, shell: Shell, environ: Mapping[str, str], runs: Path, *, tied: bool = False
    ) -> None:
        self._shell, self._environ, self._runs, self._tied = shell, environ, runs, tied

    def problems(self, spec: JobSpec) -> list[str]:
        if spec.style == "echelon":
            return []
        if "SLURM_JOB_ID" not in self._environ:
            return [f"style '{spec.style}' requires Slurm: use --on slurm, or the default style"]
        first = expand(self._environ.get("SLURM_JOB_NODELIST", ""))[:1]
        if [self._environ.get("SLURMD_NODENAME")] != first:
            where = f"on {first[0]}, the first node of the allocation" if first else "in a job"
            return [f"style '{spec.style}' must be started {where}: use the default style"]
        return []

    def exclusions(self, request: JobSpec) -> str:
        return request.exclude

    def submit(
        self,
        script: Path,
        *,
        content: bytes,  # noqa: ARG002  the script starts immediately
        run_id: str,
        attempt: int,
        environ: Mapping[str, str],
        exclude: str = "",  # noqa: ARG002  nodes are only simulated
    ) -> str:
        run = RunDir.open(self._runs / run_id)
        env = {**environ, HERE: "1"}
        if self._tied:
            env[TIED] = str(os.getpid())
        argv = ["bash", str(script.absolute()), str(attempt)]
        if not has_controller(run):  # only a controller records the outcome itself
            argv = ["bash", "-c", _WITH_OUTCOME, "bash", str(run.outcome(attempt)), *argv[1:]]
        pid = self._shell.start(argv, log=run.job_log(attempt), env=env)
        return f"{LOCAL}{os.uname().nodename}:{pid}:{start_time(pid)}"

    def job(self, job_id: str, *, run_id: str) -> Job:
        if not job_id.startswith(LOCAL):
            return Job(id=job_id, state="UNKNOWN", reason="not a job of this machine")
        run = RunDir.open(self._runs / run_id)
        attempt, outcome = _attempt_of(run, job_id)
        host, pid, start = job_id.removeprefix(LOCAL).split(":")
        job = Job(id=job_id, state="RUNNING", nodes=host, output=str(run.job_log(attempt)))
        if not outcome and host == os.uname().nodename:
            # The start time is empty if the process ended before it was read.
            if start and start_time(int(pid)) == start and _belongs_to(run, int(pid)):
                return job
            attempt, outcome = _attempt_of(run, job_id)  # the run may have ended in the meantime
        if outcome:
            return replace(job, state=outcome.state, exit_code=outcome.exit_code)
        if host != os.uname().nodename:
            return replace(job, state="UNKNOWN", reason=f"the run is on host {host}")
        code = _own_child(int(pid))
        return replace(
            job,
            state="FAILED" if code else "COMPLETED",
            exit_code=code,
            reason="it was killed, failed to start, or the disk is full" if code else "",
        )

    def stop(self, job_id: str, *, run_id: str, interrupt: bool = False) -> None:
        self._signal(job_id, run_id, signal.SIGINT if interrupt else signal.SIGTERM)

    def cancel(self, job_id: str, *, run_id: str) -> None:
        self._signal(job_id, run_id, signal.SIGHUP)

    def _signal(self, job_id: str, run_id: str, number: int) -> None:
        job = self.job(job_id, run_id=run_id)
        if job.state == "UNKNOWN":
            raise UnavailableError(
                f"the run '{run_id}' is on host {job.nodes} and cannot be reached from here",
                hint=f"run the command there: ssh {job.nodes}",
            )
        if job.state != "RUNNING":
            return
        with suppress(ProcessLookupError):
            handle = os.pidfd_open(int(job_id.split(":")[2]))
            try:
                # Another process may have received this pid before pidfd_open.
                if self.job(job_id, run_id=run_id).state == "RUNNING":
                    signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)


def fit_allocation(
    spec: JobSpec, environ: Mapping[str, str], *, asked: bool
) -> tuple[JobSpec, Mapping[str, str]]:
    """Return request and variables for the current allocation: its first nodes, by default all.

    There is one rank per allocated GPU of a node; the agents know their number.
    """
    hosts = expand(environ.get("SLURM_JOB_NODELIST", ""))
    if "SLURM_JOB_ID" not in environ or not hosts:
        return spec, environ
    if asked and spec.nodes.low > len(hosts):
        raise UsageError(
            f"the allocation has {len(hosts)} nodes, not {spec.nodes.low}",
            hint=f"omit --nodes to use all {len(hosts)}",
        )
    count = min(spec.nodes.high, len(hosts)) if asked else len(hosts)
    fitted = {
        "SLURM_JOB_NODELIST": compress(hosts[:count]),
        "SLURM_JOB_NUM_NODES": str(count),
        "SLURM_NNODES": str(count),
    }
    low = spec.nodes.low if asked else count
    return replace(spec, nodes=NodeCount(low, count)), {**environ, **fitted}


def describe_nodes(environ: Mapping[str, str]) -> str:
    """Return where a run in the foreground executes: here, or in the current allocation."""
    job, hosts = own_job(environ), environ.get("SLURM_JOB_NODELIST", "")
    return f"on {hosts} of job {job}" if job and hosts else describe_job(LOCAL)


def _attempt_of(run: RunDir, job_id: str) -> tuple[int, Outcome | None]:
    """Return the number of the attempt of a job, and its outcome if there is one."""
    for attempt in reversed(attempts(run)):
        if attempt.job_id == job_id:
            return attempt.number, find_outcome(run, attempt.number)
    return 1, None


def _belongs_to(run: RunDir, pid: int) -> bool:
    """Tell whether a process belongs to this user and was started for a run.

    The job ID comes from a file in the run directory, and start times are public. Without this
    check, a prepared run directory could make us signal any process of the user.
    """
    process = Path(f"/proc/{pid}")
    try:
        if process.stat().st_uid != os.geteuid():
            return False
        words = _command_line(process)
    except OSError:
        return False
    return any(_leads_into(Path(os.fsdecode(word)), run.path) for word in words.split(b"\0"))


def _command_line(process: Path) -> bytes:
    """Return the command line of a process; empty for a zombie.

    It is also empty while a process executes a new program, which can take a while on a busy
    machine. So this waits: a run that has just started must not look like a failed one.
    """
    found = b""

    def look() -> bool:
        nonlocal found
        found = (process / "cmdline").read_bytes()
        return bool(found) or read_stat(process)[:1] in (["Z"], ["X"])

    wait_until(look, timeout_s=_EXEC_S, interval_s=0.002)
    return found


def _leads_into(path: Path, folder: Path) -> bool:
    with suppress(OSError):
        own = folder.stat()
        return path.is_absolute() and any(
            os.path.samestat(own, one.stat()) for one in (path, *path.parents) if one.exists()
        )
    return False


def _own_child(pid: int) -> int:
    """Return the exit code of a dead child; 1 if the process is not our child."""
    try:
        gone = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return 1
    if gone is None or gone.si_pid != pid:
        return 1
    return gone.si_status if gone.si_code == os.CLD_EXITED else 128 + gone.si_status
