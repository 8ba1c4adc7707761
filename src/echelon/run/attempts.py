"""The attempts of a run, as recorded in their directories: their jobs, and how they ended.

The process that submits an attempt claims its directory; the process that carries it out owns it.
Both claim it by creating a file, so one of two competitors wins, and no clocks are compared. Only
the owner may give a number back: if its job ended before it started, or found nothing to do, the
next attempt gets the number.
"""

import contextlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from echelon.core.atomic_file import remove_tree, write_atomic
from echelon.core.frozen import frozen
from echelon.core.jobs import Job
from echelon.core.records import (
    SMALL_BYTES,
    find_record,
    is_time,
    open_regular,
    parse_json,
    read_record,
    to_count,
)
from echelon.core.steady_clock import SET_S
from echelon.errors import EchelonError
from echelon.run.directory import RunDir
from echelon.run.series import MOST_TAIL, read_last_lines

STOPPING = "stopping"
"""File in the folder of a step's attempt: how a command wants it to stop."""
SKIPPED = "SKIPPED"
"""State of an attempt that found nothing to do."""
_ORPHANED = "orphaned"
_STATE = re.compile(r"[A-Z][A-Z_]{0,39}")
_UNUSED = "unused"


@frozen
class Attempt:
    """One allocation of a run."""

    number: int
    job_id: str
    submitted: str = ""
    """ISO time, UTC."""
    output: str = ""
    """File of the job's output."""
    after: str = ""
    """The job whose end it waits for, if it is a standby."""
    within: str = ""
    """The run or sweep whose job it is a step of; empty if the job is its own."""


@frozen
class Outcome:
    """How an attempt ended, as its controller recorded it."""

    state: str
    """A state of Slurm, as for any job."""
    exit_code: int
    next: str = ""
    """What continues the run: `standby`, a waiting job; `requeue`, the same job; `allocation`, the
    broker of the allocation that it is a step of; `wanted`, a job that a user has to submit; empty
    if the run has ended."""
    why: str = ""
    """What ended it, in one line; empty if the work is done."""
    progress: str = ""
    """What shows that it made progress: `checkpoint`, a new one; `files`, that it wrote some, if
    no checkpoint was ever reported; empty if nothing does."""


def attempts(run: RunDir) -> list[Attempt]:
    """Return a run's attempts, the first one first."""
    found = []
    for number in run.attempt_numbers():
        record = find_record(run.attempt(number) / "job.json")
        if "job_id" in record:  # otherwise it was claimed but not queued
            names = ("job_id", "submitted", "output", "after", "within")
            facts = {name: str(record.get(name, "")) for name in names}
            found.append(Attempt(number=number, **facts))
    return found


def find_unreadable(run: RunDir, known: Sequence[Attempt]) -> str:
    """Return why the record of an attempt cannot be read; empty if none is missing from `known`."""
    for number in set(run.attempt_numbers()) - {attempt.number for attempt in known}:
        path = run.attempt(number) / "job.json"
        try:
            read_record(path, most=SMALL_BYTES)
        except FileNotFoundError:
            continue  # claimed, but not queued
        except (OSError, ValueError) as error:
            return f"cannot read {path}: {getattr(error, 'strerror', '') or error}"
    return ""


def find_output(run: RunDir, attempt: Attempt) -> Path:
    """Return the output file of an attempt's job, even if the run directory was moved."""
    path = Path(attempt.output)
    if path.parts[-3:-1] == (run.run_id, run.logs.name):
        return run.logs / path.name
    return path


def outcome(run: RunDir, number: int) -> Outcome | None:
    """Return how an attempt ended; None if it has not, or if it could not record that."""
    record = find_record(run.outcome(number))
    state, code = record.get("state"), to_count(record.get("exit_code"), below=256)
    if not isinstance(state, str) or not _STATE.fullmatch(state) or code is None:
        return None
    texts = {name: str(record.get(name, "")) for name in ("next", "why", "progress")}
    return Outcome(state=state, exit_code=code, **texts)


def find_durations(
    run: RunDir, known: Iterable[Attempt], now_s: float | None = None
) -> list[float]:
    """Return how long attempts took, in seconds, by their controllers' events.

    An attempt lasts until its last event, and the newest until `now_s` if that is given. Only both
    ends of each file are read, so this is quick. Attempts without events are left out.
    """
    spans, newest = [], 0
    for attempt in known:
        try:
            with open_regular(run.events_of(f"controller-{attempt.number}")) as file:
                first = file.readline(MOST_TAIL)
                _, last = read_last_lines(file, 1)
            ends = first, last.partition(b"\n")[0]  # another line may be unfinished
            began_s, active_s = (float(parse_json(line)["time"]) for line in ends)
        except (OSError, ValueError, TypeError, KeyError, OverflowError):
            continue
        if is_time(began_s) and is_time(active_s):
            spans.append((began_s, active_s))
            newest = attempt.number
    if spans and now_s is not None:
        began_s, _ = spans[-1]
        spans[-1] = began_s, now_s - find_clock_lead(run, newest)
    return [max(0.0, until_s - began_s) for began_s, until_s in spans]


def find_clock_lead(run: RunDir, number: int) -> float:
    """Return how far clocks are ahead of the times of a running attempt; 0 unless one was set.

    A run's records ignore that a clock is set, but the times of their files do not.
    """
    newest = 0.0, 0.0
    for path in (run.events_of(f"controller-{number}"), run.telemetry(number, 0, 0)):
        try:
            with open_regular(path) as file:
                _, last = read_last_lines(file, 1)
                written_s = os.fstat(file.fileno()).st_mtime
            recorded_s = float(parse_json(last.partition(b"\n")[0])["time"])
        except (OSError, ValueError, TypeError, KeyError, OverflowError):
            continue
        if is_time(recorded_s):
            newest = max(newest, (recorded_s, written_s))
    recorded_s, written_s = newest
    lead_s = written_s - recorded_s
    return lead_s if abs(lead_s) > SET_S else 0.0


def has_begun(run: RunDir, attempt: Attempt) -> bool:
    """Tell whether an attempt has started."""
    return (run.attempt(attempt.number) / "owner").exists()


def is_superseded(run: RunDir, number: int) -> bool:
    """Tell whether a later attempt is running or has run.

    An attempt that has an owner may still find nothing to do, because we are running. Only one
    that does something has events.
    """
    later = run.attempt_numbers()
    return any(one > number and run.events_of(f"controller-{one}").exists() for one in later)


def is_orphaned(run: RunDir, number: int) -> bool:
    """Tell whether an attempt lost its controller, so that its agents ended its job."""
    return (run.attempt(number) / _ORPHANED).exists()


def is_left_behind(run: RunDir, number: int) -> bool:
    """Tell whether agents, not a user, cancelled the job of an attempt, and another continues.

    This happens if the host of its controller was unreachable for a while.
    """
    with contextlib.suppress(OSError):
        return is_orphaned(run, number) or is_superseded(run, number)
    return False


def orphan(run: RunDir, number: int) -> None:
    """Record that an attempt has lost its controller."""
    (run.attempt(number) / _ORPHANED).touch(mode=0o600)


def is_skipped(run: RunDir, attempt: Attempt) -> bool:
    """Tell whether an attempt found nothing to do, because the run had ended."""
    ended = outcome(run, attempt.number)
    return ended is not None and ended.state == SKIPPED


def is_of_use(run: RunDir, attempt: Attempt) -> bool:
    """Tell whether an attempt matters to users: not a standby that was never needed."""
    return (not attempt.after or has_begun(run, attempt)) and not is_skipped(run, attempt)


def submit_attempt(
    run: RunDir,
    submit: Callable[[int], str],
    look: Callable[[str], Job],
    *,
    after: str = "",
) -> Attempt:
    """Claim the next attempt, queue it, and record its job.

    Args:
        run: the run.
        submit: queues the attempt with this number and returns the job's id.
        look: returns the job with this id.
        after: the job whose end it waits for.
    """
    _reclaim(run, look)
    number = run.claim_attempt()
    try:
        job_id = submit(number)
    except BaseException:
        remove_tree(run.attempt(number))
        raise
    submitted = datetime.now(tz=UTC).isoformat(timespec="seconds")
    record = {"job_id": job_id, "submitted": submitted, "after": after}
    path = run.attempt(number) / "job.json"
    # Record it first: the job is in the queue.
    write_atomic(path, json.dumps(record) + "\n")
    # An error would make the caller queue another; the job may have given its number back already.
    with contextlib.suppress(EchelonError, FileNotFoundError):
        record["output"] = look(job_id).output
        write_atomic(path, json.dumps(record) + "\n")
    return Attempt(number=number, **record)


def claim_step(run: RunDir, *, job_id: str, within: str) -> int:
    """Claim the next attempt of a run, as a step of another job, and return its number.

    Args:
        run: the run.
        job_id: the job.
        within: the run or sweep whose job it is.
    """
    number = run.claim_attempt()
    submitted = datetime.now(tz=UTC).isoformat(timespec="seconds")
    record = {"job_id": job_id, "submitted": submitted, "within": within}
    record["output"] = str(run.job_log(number))
    write_atomic(run.attempt(number) / "job.json", json.dumps(record) + "\n", sync=False)
    return number


@contextlib.contextmanager
def claiming_next(run: RunDir, number: int) -> Iterator[bool]:
    """Claim to submit what follows an attempt; yield whether nobody else has.

    If the block raises, the claim is given up.
    """
    path = run.attempt(number) / "followed"
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        yield False
        return
    try:
        yield True
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _reclaim(run: RunDir, look: Callable[[str], Job]) -> None:
    """Give the last number back if its job ended and never started: a withdrawn standby.

    If the job starts after all, it finds that it is not the owner.
    """
    last = max(attempts(run), key=lambda one: one.number, default=None)
    if last is None or has_begun(run, last):
        return
    with contextlib.suppress(EchelonError, OSError):
        claim = f"unused {os.uname().nodename} {os.getpid()} {threading.get_ident()}"
        if look(last.job_id).over and own_attempt(run, last.number, claim) == claim:
            give_back(run, last)


def give_back(run: RunDir, attempt: Attempt) -> None:
    """Let the next attempt reuse an attempt's number. Only its owner may do so, as its last action.

    Raises:
        OSError: the number stays in use.
    """
    run.attempt(attempt.number).rename(
        run.attempts / f"{_UNUSED}-{attempt.number}-{attempt.job_id.replace('/', '_')}"
    )


def is_given_back(run: RunDir, job_id: str) -> bool:
    """Tell whether the attempt of a job was given back before it started."""
    return any(path.name.endswith(f"-{job_id}") for path in run.attempts.glob(f"{_UNUSED}-*"))


def record_own_job(run: RunDir, number: int, job_id: str) -> Attempt:
    """Record our own job, unless the submitting process has done so; return the attempt.

    The submitting process may still be about to write. It knows more, and overwrites this.
    """
    path = run.attempt(number) / "job.json"
    draft = run.attempt(number) / f".own-{os.getpid()}.tmp"
    record = {"job_id": job_id, "output": _own_output()}
    write_atomic(draft, json.dumps(record) + "\n")
    with contextlib.suppress(FileExistsError):
        os.link(draft, path)
    draft.unlink()
    return next(one for one in attempts(run) if one.number == number)


def _own_output() -> str:
    """Return the file of our output, if it is a file."""
    with contextlib.suppress(OSError):
        path = Path("/proc/self/fd/2").readlink()
        return str(path) if path.is_file() else ""
    return ""


def begin_attempt(run: RunDir, number: str, owner: str) -> int:
    """Become the owner of an attempt, and return its number.

    It is the requested one, or the next one if that has started already: the job was requeued, or
    the script was started twice.
    """
    attempt = int(number) if number else run.claim_attempt()
    while True:
        with contextlib.suppress(FileNotFoundError):  # the number was given back
            if own_attempt(run, attempt, owner) == owner:
                return attempt
        attempt = run.claim_attempt()


def own_attempt(run: RunDir, number: int, owner: str) -> str:
    """Try to become the owner of an attempt; return its owner."""
    path = run.attempt(number) / "owner"
    with contextlib.suppress(FileExistsError):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(handle, f"{owner}\n".encode())
            os.fsync(handle)
        finally:
            os.close(handle)
    return path.read_text().strip()
