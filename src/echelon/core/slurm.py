"""Slurm, through its own commands; works without accounting, and retries if slurmctld is away.

Tested with Slurm 22.05, 24.11 and 26.05, whose output the tests contain. Differences between
versions, and where they are handled (docs/compatibility.md has those that users notice):

- 22.05: scontrol has no JSON, so jobs are read from text; that of sacct hides failures
  (`slurm_json.py`). srun does not inherit `--cpus-per-task` (`clusters/slurm/styles.py`). Steps in
  a job whose nodes have different numbers of GPUs need `--gpus`; in 24.11 they need `--gres`
  (`launch/backends/slurm/starter.py`).
- 24.11 and 26.05: tasks also have SLURM_TRES_PER_TASK, and jobs with GPUs per task SLURM_TRES_BIND
  (`launch/protocol/rank_environment.py`, `launch/backends/slurm/starter.py`).
- 24.11 and 26.05: scontrol's JSON for a task of an array has all its tasks (`slurm_json.py`).
- 24.11.5: slurmctld may mark nodes as lost that have answered (`sandbox/config.py`).
- 26.05: `--gres=gpu` and `--gpus-per-node` exclude each other, also between a job and its steps
  (`lint/rules/amounts.py`; what we write uses one of them). SlurmUser must not be `nobody`.
"""

import itertools
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from echelon.core.jobs import WAITING, Job
from echelon.core.shell import Result, Shell
from echelon.core.slurm_json import (
    parse_accounting_json,
    parse_comment_json,
    parse_job_json,
    read_jobs,
)
from echelon.core.slurm_text import clean_nodes, parse_accounting, parse_job, word
from echelon.core.units import format_memory
from echelon.errors import (
    CommandError,
    MissingProgramError,
    UnavailableError,
    UsageError,
)

# Messages of Slurm's commands if slurmctld does not respond; it may a moment later.
_AWAY = re.compile(
    r"Unable to contact slurm controller|Socket timed out|Connection refused|"
    r"Zero Bytes were transmitted|slurm_receive_msg|Transport endpoint",
    re.IGNORECASE,
)
_NO_CLUSTER = "Could not establish a configuration source"
_ELSEWHERE = (
    "use a login node of the cluster, or run on this machine: echelon run, echelon sandbox up"
)
OVER = "END,FAIL"
"""One mail when a job ends: END if it completed or was cancelled, FAIL otherwise."""
_MARK = "echelon:"
_NODES = "%P|%D|%c|%m|%G|%f"
"""Format of sinfo: partition, number of nodes, CPUs, MiB, GRES and features of each."""
_PREFIX = re.compile(r"^sbatch: (?:(?:error|fatal): )?")
_LINE = "%F|%i|%T|%r|%N|%k"
"""Format of squeue: array or job, job, state, reason, nodes, comment."""
_VARIABLES = (
    *("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "SINFO_", "SQUEUE_", "SACCT_"),
    *("SCANCEL_", "SCONTROL_", "SPRIO_", "SSTAT_"),
)
PATIENCE_S = 60.0
"""How long to retry: a slurmctld that restarts may be away for a minute."""
QUIET_S = 2.0
"""Delay before users are told that Slurm does not respond; a command waits ten seconds itself."""
_PAUSES_S = (0.5, 1, 2, 4, 8, 15)
"""Pauses between attempts; the last one repeats."""


@contextmanager
def _private_copy(name: str, content: bytes) -> Iterator[Path]:
    """Write a file to a folder where no other user can replace it."""
    with tempfile.TemporaryDirectory(prefix="echelon-") as folder:
        path = Path(folder, name)
        path.write_bytes(content)
        yield path


class Slurm:
    """The Slurm cluster that the commands on PATH talk to."""

    def __init__(
        self,
        shell: Shell,
        environ: Mapping[str, str],
        *,
        tell: Callable[[str], None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """See the class.

        Args:
            shell: runs Slurm's commands.
            environ: their variables.
            tell: called once if slurmctld takes long to respond; None to stay silent.
            sleep: waits between attempts.
            clock: in seconds; measures how long to retry.
        """
        self._shell = shell
        self._environ = scrub(environ)
        self._tell, self._sleep, self._clock = tell, sleep, clock
        self._has_json = True  # until scontrol proves otherwise

    def submit(
        self,
        script: Path,
        *,
        content: bytes,
        run_id: str,
        attempt: int,
        environ: Mapping[str, str],
        exclude: str = "",
        after: str = "",
    ) -> str:
        """Queue a script and return the job's id.

        Args:
            script: its path.
            content: its content: exactly this is queued, even if the file has changed.
            run_id: the run.
            attempt: its number, the script's argument.
            environ: the job's variables.
            exclude: nodes to exclude; empty for those that the script excludes.
            after: a job to wait for; if that one completes, this one is cancelled.

        A submission may have succeeded although its answer was lost: run and attempt in the job's
        comment show that.

        Raises:
            UsageError: Slurm refuses the request.
            UnavailableError: slurmctld does not respond; nothing was queued.
        """
        own = [f"--dependency=afternotok:{after}", "--kill-on-invalid-dep=yes"] if after else []
        return self._queue(
            script,
            content,
            attempt,
            comment=f"{_MARK}{run_id}/{attempt}",
            options=own,
            exclude=exclude,
            environ=environ,
        )

    def submit_array(
        self,
        script: Path,
        *,
        content: bytes,
        sweep_id: str,
        number: int,
        tasks: str,
        offset: int,
        environ: Mapping[str, str],
        exclude: str = "",
        after: str = "",
    ) -> str:
        """Queue a script as a job array, and return its id; see `submit`.

        Args:
            script: its path.
            content: its content.
            sweep_id: the sweep.
            number: how many arrays the sweep had before.
            tasks: sbatch's value of --array, such as 0-99%8.
            offset: the script's argument: what to add to Slurm's index.
            environ: the variables of the jobs.
            exclude: nodes to exclude; empty for those that the script excludes.
            after: an array whose end to wait for.
        """
        own = [f"--dependency=afterany:{after}"] if after else []
        return self._queue(
            script,
            content,
            offset,
            comment=f"{_MARK}{mark_tasks(sweep_id)}/{number}",
            options=[f"--array={tasks}", *own],
            exclude=exclude,
            environ=environ,
        )

    def _queue(
        self,
        script: Path,
        content: bytes,
        argument: int,
        *,
        comment: str,
        options: Sequence[str],
        exclude: str,
        environ: Mapping[str, str],
    ) -> str:
        own = ["--parsable", f"--comment={comment}", *([f"--exclude={exclude}"] if exclude else [])]
        with _private_copy(script.name, content) as copy, self._telling() as began_s:
            argv = ["sbatch", *own, *options, str(copy), str(argument)]
            for tries in itertools.count():
                done = self._run(argv, scrub(environ), timeout_s=120)
                if done.code == 0:
                    return done.stdout.strip().partition(";")[0]
                if not _AWAY.search(done.stderr):
                    raise self._refusal(done, content, exclude)
                again = self._pause(tries, began_s)
                if found := self._find(comment):
                    return found
                if not again:
                    break
        raise _away(done)

    def _refusal(self, done: Result, script: bytes, exclude: str) -> UsageError:
        lines = [_PREFIX.sub("", line.strip()) for line in done.stderr.splitlines()]
        said = "; ".join(line for line in lines if line and not line.startswith("Try ")) or "?"
        hint = "to see what is submitted, add --dry-run; for its options: man sbatch"
        if exclude:  # too few nodes may be left
            hint = f"the job avoids {exclude}; to see why: echelon nodes"
        elif re.search("node configuration|feature", said, re.IGNORECASE):
            argv = ["sinfo", "--noheader", "--exact", f"--format={_NODES}"]
            shown = self._shell.run(argv, env=self._environ, timeout_s=60).stdout
            asked = re.search(rb"^#SBATCH --partition=(\S+)", script, re.MULTILINE)
            names = os.fsdecode(asked[1]).split(",") if asked else []
            hint = describe_nodes(shown, names) or hint
        return UsageError(f"Slurm rejected the job: {said}", hint=hint)

    def find_submitted(self, run_id: str, attempt: int) -> str:
        """Return the job in the queue that is an attempt of a run; empty if there is none.

        Raises:
            CommandError: the queue cannot be read.
        """
        self.ask(["squeue", "--me", "--noheader"])
        return self._find(f"{_MARK}{run_id}/{attempt}")

    def _find(self, comment: str) -> str:
        # Text on purpose: with JSON, squeue 22.05 ignores its filters and lists all jobs.
        shown = self._shell.run(
            ["squeue", "--me", "--noheader", "--format=%i|%k"], env=self._environ, timeout_s=60
        )
        jobs = (line.partition("|") for line in shown.stdout.splitlines())
        # Waiting tasks of an array are listed as 7_[2-9].
        return next((job.partition("_")[0] for job, _, said in jobs if said.strip() == comment), "")

    def jobs(self, owners: Mapping[str, str], needed: Collection[str]) -> dict[str, Job]:
        """Return many jobs with one question, and one more to accounting if that is not enough.

        Args:
            owners: id of a job or array → its run, or what `mark_tasks` returns for a sweep.
            needed: jobs for which accounting is asked if Slurm has forgotten one of them.

        Returns:
            jobs by id, tasks of an array as 7_3; Slurm may have forgotten some.
        """
        if not owners:
            return {}
        listed = f"--jobs={','.join(owners)}"
        argv = ["squeue", "--array", "--states=all", "--noheader", listed, f"--format={_LINE}"]
        try:
            found = parse_queue(self.ask(argv).stdout, owners)
        except CommandError as error:
            if "Invalid job id" not in error.stderr:
                raise
            found = {}
        for job_id in needed:
            # Tasks that were cancelled while they waited have one line together.
            if job_id not in found and (rest := found.get(job_id.partition("_")[0])):
                found[job_id] = replace(rest, id=job_id)
        if all(job_id in found for job_id in needed):
            return found
        fields = "--format=jobid,state,nodelist,exitcode"
        argv = ["sacct", "--array", "--noheader", "--parsable2", "--allocations", fields, listed]
        shown = self._shell.run(argv, env=self._environ, timeout_s=60)
        return parse_accounting(shown.stdout if shown.code == 0 else "") | found

    def job(self, job_id: str, *, run_id: str) -> Job:
        with self._telling():
            return self._look(job_id, run_id)

    def _look(self, job_id: str, run_id: str) -> Job:
        if found := self._in_json(job_id, run_id):
            return found
        try:
            shown = self.ask(["scontrol", "--oneliner", "show", "job", job_id])
        except CommandError as error:
            if "Invalid job id" not in error.stderr:
                raise
            return self._from_accounting(job_id, run_id)
        if not _is_of(word(shown.stdout, "Comment"), run_id):
            return _anothers(job_id)
        return replace(parse_job(shown.stdout), id=job_id)  # the task of an array has two

    def _in_json(self, job_id: str, run_id: str) -> Job | None:
        """Read a job from scontrol's JSON; None if that has no answer.

        If there is no job to show, scontrol succeeds with an empty list, whether the job is unknown
        or slurmctld is away: only its text output tells which.
        """
        if not self._has_json:
            return None
        argv = ["scontrol", "--json", "show", "job", job_id]
        shown = self._run(argv, self._environ, timeout_s=60)
        if read_jobs(shown.stdout) is None:
            # An unknown option or a missing plugin: the next call would fail too.
            self._has_json = bool(_AWAY.search(shown.stderr))
            return None
        job = parse_job_json(shown.stdout, job_id)
        if job and not _is_of(parse_comment_json(shown.stdout, job_id), run_id):
            return _anothers(job_id)
        return replace(job, id=job_id) if job else None

    def _from_accounting(self, job_id: str, run_id: str) -> Job:
        """Ask accounting, if there is any: Slurm itself forgets a job soon after its end."""
        if self._has_json:
            argv = ["sacct", "--json", f"--jobs={job_id}"]
            shown = self._shell.run(argv, env=self._environ, timeout_s=60)
            if job := parse_accounting_json(shown.stdout, job_id):
                kept = parse_comment_json(shown.stdout, job_id)
                return (
                    _anothers(job_id)
                    if kept and not _is_of(kept, run_id)
                    else replace(job, id=job_id)
                )
        fields = "--format=jobid,state,nodelist,exitcode"
        argv = ["sacct", "--noheader", "--parsable2", "--allocations", fields, f"--jobs={job_id}"]
        shown = self._shell.run(argv, env=self._environ, timeout_s=60)
        found = parse_accounting(shown.stdout if shown.code == 0 else "")
        return found.get(job_id) or forgotten(job_id)

    def end(self, job_id: str, run_id: str, options: Sequence[str] = ()) -> None:
        """Cancel a run's job, or signal it; does nothing if the job has ended."""
        job = self.job(job_id, run_id=run_id)
        if job.over:
            return
        if job.state in WAITING:
            options = []  # it has no processes to signal yet
        try:
            self.ask(["scancel", *options, job_id])
        except CommandError as error:
            if "Invalid job id" not in error.stderr and "already completing" not in error.stderr:
                raise

    def set_mail(self, job_id: str, types: str) -> None:
        """Set the events of a job about which Slurm sends mail; NONE for none."""
        self.ask(["scontrol", "update", f"JobId={job_id}", f"MailType={types}"])

    def ask(self, argv: Sequence[str]) -> Result:
        """Run a command that is safe to repeat, until slurmctld responds."""
        with self._telling() as began_s:
            for tries in itertools.count():
                done = self._run(argv, self._environ, timeout_s=60)
                if done.code == 0 or not _AWAY.search(done.stderr):
                    return done.check()
                if not self._pause(tries, began_s):
                    break
        raise _away(done)

    def _pause(self, tries: int, began_s: float) -> bool:
        """Wait before the next attempt; return whether there is time for one."""
        left_s = PATIENCE_S - (self._clock() - began_s)
        if left_s <= 0:
            return False
        self._sleep(min(left_s, _PAUSES_S[min(tries, len(_PAUSES_S) - 1)]))
        return True

    @contextmanager
    def _telling(self) -> Iterator[float]:
        """Tell users, from another thread, if the block takes long; yield when it began."""
        began_s = self._clock()
        if self._tell is None:
            yield began_s
            return

        def say() -> None:
            tell, self._tell = self._tell, None
            if tell:  # an outer block may have done so
                tell("waiting for Slurm to respond")

        timer = threading.Timer(QUIET_S, say)
        timer.daemon = True
        timer.start()
        try:
            yield began_s
        finally:
            timer.cancel()
            timer.join()  # its message must come before the next one

    def _run(self, argv: Sequence[str], environ: Mapping[str, str], *, timeout_s: float) -> Result:
        """Run one of Slurm's commands; it may not be installed, or lack its configuration."""
        check_configuration(environ)
        try:
            done = self._shell.run(argv, env=environ, timeout_s=timeout_s)
        except MissingProgramError as error:
            raise MissingProgramError(error.program, hint=_ELSEWHERE) from error
        if done.code and _NO_CLUSTER in done.stderr:
            raise UnavailableError(
                f"{argv[0]} has no cluster configuration: {_last_line(done.stderr)}",
                hint=f"set its file (export SLURM_CONF=…); or {_ELSEWHERE}",
            )
        return done


def check_configuration(environ: Mapping[str, str]) -> None:
    """Report a configuration file that does not exist: Slurm's commands would wait a minute for it.

    Raises:
        UnavailableError: it does not exist.
    """
    conf = environ.get("SLURM_CONF", "")
    if conf and not Path(conf).exists():
        raise UnavailableError(
            f"the file in SLURM_CONF does not exist: {conf}",
            hint=f"correct it, or use Slurm's default: unset SLURM_CONF; or {_ELSEWHERE}",
        )


def _away(done: Result) -> UnavailableError:
    return UnavailableError(
        f"slurmctld did not respond for {PATIENCE_S:g} s: {_last_line(done.stderr)}",
        hint="try again later; check it with: scontrol ping",
    )


def describe_nodes(text: str, partitions: Collection[str]) -> str:
    """Return what the nodes of partitions have, or of the default one, from sinfo's lines."""
    found = []
    for line in text.splitlines():
        name, count, cpus, mib, gres, features = line.strip().split("|", 5)
        if name.rstrip("*") in partitions or (not partitions and name.endswith("*")):
            what = [f"{cpus} CPUs", format_memory(int(mib.rstrip("+")))]
            what += [gres] * (gres != "(null)") + [f"features {features}"] * (features != "(null)")
            found.append(f"{count} nodes of {name.rstrip('*')} have {', '.join(what)}")
    return "; ".join(found)


def mark_tasks(sweep_id: str) -> str:
    """Return what stands for all runs of a sweep in the comment of its arrays."""
    return f"{sweep_id}-*"


def forgotten(job_id: str) -> Job:
    """Return a job that Slurm no longer knows."""
    return Job(id=job_id, state="UNKNOWN", reason="Slurm has forgotten the job")


def parse_queue(text: str, owners: Mapping[str, str]) -> dict[str, Job]:
    """Parse what `Slurm.jobs` asks of squeue: jobs by id, without those of other runs."""
    found = {}
    for line in text.splitlines():
        array, job_id, state, reason, nodes, comment = line.rstrip().split("|", 5)
        owner = owners.get(job_id) or owners.get(array)
        if owner and _is_of(comment, owner):
            said = "" if reason == "None" else reason
            found[job_id] = Job(id=job_id, state=state, reason=said, nodes=clean_nodes(nodes))
    return found


def _is_of(comment: str, run_id: str) -> bool:
    """Tell whether a job's comment marks it as a job of the run, or of the run's sweep."""
    names = (run_id, mark_tasks(run_id.rpartition("-")[0]))
    return comment.partition("/")[0] in [f"{_MARK}{name}" for name in names]


def _anothers(job_id: str) -> Job:
    # Ids start over when a cluster is set up again, as a sandbox often is.
    return Job(id=job_id, state="UNKNOWN", reason="another job has this id now")


def scrub(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those of a surrounding job and of the user's preferences.

    Either would change the request or the output; SLURM_CONF, which selects the cluster, stays.
    """
    return {
        key: value
        for key, value in environ.items()
        if not key.startswith(_VARIABLES) or key == "SLURM_CONF"
    }


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no error message"
