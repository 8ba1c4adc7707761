"""JSON output of newer Slurm versions. Pure.

The layout changes with every release (data_parser v0.0.39 is that of 23.02, v0.0.42 of 24.11,
v0.0.45 of 26.05), so values that have two forms are read in either. The tests contain output of
22.05 (JSON in squeue and sacct, not in scontrol), 24.11 and 26.05. The layouts of the versions in
between are taken from Slurm's source, and from output that others have published.
"""

import json
from collections.abc import Mapping
from typing import Any

from echelon.core.jobs import Job

# A job has one state and any of these flags. Text shows the first of them, in this order, instead
# of the state.
_FLAGS = (
    *("COMPLETING", "STAGE_OUT", "CONFIGURING", "RESIZING", "REQUEUED", "REQUEUE_FED"),
    *("REQUEUE_HOLD", "SPECIAL_EXIT", "STOPPED", "REVOKED", "RESV_DEL_HOLD", "SIGNALING"),
)


def read_jobs(text: str) -> list[Mapping[str, Any]] | None:
    """Return the jobs in an answer; None if it is not JSON."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return None
    jobs = answer.get("jobs") if isinstance(answer, Mapping) else None
    if not isinstance(jobs, list):
        return None
    return [job for job in jobs if isinstance(job, Mapping)]


def parse_job_json(text: str, job_id: str) -> Job | None:
    """Parse a job from `scontrol --json show job`, with the values that text would show.

    Returns None if it is not there, or if values are missing: then text has to be used.
    """
    job = _find(text, job_id)
    number, state = _number(job.get("job_id")), _state(job.get("job_state"))
    filled_in, output = _text(job.get("stdout_expanded")), _text(job.get("standard_output"))
    if not number or not state:
        return None
    if not filled_in and "%" in output:  # not expanded, in some versions
        return None
    # Text shows the description, if there is one, without spaces.
    description = _text(job.get("state_description")).replace(" ", "_")
    return Job(
        id=str(number),
        state=state,
        reason=description or _reason(job.get("state_reason")),
        nodes=_nodes(job.get("nodes")),
        output=filled_in or output,
        exit_code=_exit_code(job.get("exit_code")),
    )


def parse_accounting_json(text: str, job_id: str) -> Job | None:
    """Parse a job from `sacct --json`; None if it is not there, or if it is unreliable."""
    job = _find(text, job_id)
    now, code = _mapping(job.get("state")), _mapping(job.get("exit_code"))
    number, state = _number(job.get("job_id")), _state(now.get("current"))
    # Before 23.11 the status is one word, and every job that exited is a SUCCESS with code 0.
    if not number or not state or not isinstance(code.get("status"), list):
        return None
    return Job(
        id=str(number),
        state=state,
        reason=_reason(now.get("reason")),
        nodes=_nodes(job.get("nodes")),
        output=_text(job.get("stdout_expanded")),
        exit_code=_exit_code(code),
    )


def parse_comment_json(text: str, job_id: str) -> str:
    """Return a job's comment, from either command; accounting may not store it."""
    comment = _find(text, job_id).get("comment")
    return _text(comment) or _text(_mapping(comment).get("job"))


def _find(text: str, job_id: str) -> Mapping[str, Any]:
    """Return a job; empty if it is not there.

    For a task of an array, scontrol shows all its tasks. Those that wait are one job without a
    task's number, and text has to be used for them.
    """
    id_of = _task_id if "_" in job_id else _job_id
    return next((job for job in read_jobs(text) or () if id_of(job) == job_id), {})


def _job_id(job: Mapping[str, Any]) -> str:
    return str(_number(job.get("job_id")))


def _task_id(job: Mapping[str, Any]) -> str:
    array = _mapping(job.get("array"))  # in accounting
    task = array.get("task_id", job.get("array_task_id"))
    if task is None or (isinstance(task, Mapping) and not task.get("set")):
        return ""
    return f"{_number(array.get('job_id', job.get('array_job_id')))}_{_number(task)}"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> int:
    """Return a plain number, or one of the form {set, infinite, number}; 0 if it is not set."""
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set") else 0
    return int(value) if isinstance(value, int | float) and abs(value) < 2**63 else 0


def _state(value: object) -> str:
    """Return the state that text would show, from one word or a list of state and flags."""
    given = value if isinstance(value, list) else [value]
    words = [word.split()[0] for word in given if isinstance(word, str) and word.strip()]
    return next((word for word in (*_FLAGS, *words) if word in words), "")


def _reason(value: object) -> str:
    return "" if value == "None" else _text(value)


def _nodes(value: object) -> str:
    if isinstance(value, Mapping):  # the form used for steps
        value = value.get("range") or value.get("list")
    if isinstance(value, list):
        value = ",".join(_text(name) for name in value)
    return "" if value in ("(null)", "None assigned") else _text(value)


def _exit_code(value: object) -> int:
    """Return the exit code, 128 + signal if one killed it; a plain number is a wait status."""
    parts = _mapping(value)
    if "return_code" not in parts:
        status = _number(value)
        return 128 + (status & 0x7F) if status & 0x7F else status >> 8 & 0xFF
    signal = _mapping(parts.get("signal"))
    number = _number(signal.get("id")) or _number(signal.get("signal_id"))
    return 128 + number if number else _number(parts["return_code"])
