"""Text output of Slurm's commands, which all versions have. Pure."""

import re

from echelon.core.jobs import Job
from echelon.errors import NotFoundError


def parse_accounting(text: str) -> dict[str, Job]:
    """Parse `sacct --parsable2 --format=jobid,state,nodelist,exitcode`: jobs by id."""
    found = {}
    for line in text.splitlines():
        job_id, state, nodes, code = line.split("|")
        found[job_id] = Job(
            id=job_id, state=state.split()[0], nodes=clean_nodes(nodes), exit_code=_exit_code(code)
        )
    return found


def parse_job(text: str) -> Job:
    """Parse one line of `scontrol --oneliner show job`.

    Raises:
        NotFoundError: there is no job in it.
    """
    if not re.search(r"\bJobId=", text):
        raise NotFoundError("Slurm knows no such job", hint="list your jobs: squeue --me")

    reason = word(text, "Reason")
    return Job(
        id=word(text, "JobId"),
        state=word(text, "JobState"),
        reason="" if reason == "None" else reason,
        nodes=clean_nodes(word(text, "NodeList")),
        output=_path(text, "StdOut"),
        exit_code=_exit_code(word(text, "ExitCode")),
    )


def parse_version(text: str) -> tuple[int, ...]:
    """Parse `slurmctld -V`: (24, 11, 5) from `slurm-wlm 24.11.5`; empty if there is no version."""
    found = re.search(r"\b(\d+)\.(\d+)\.(\d+)", text)
    return tuple(map(int, found.groups())) if found else ()


def word(text: str, name: str) -> str:
    """Return a value from scontrol's output that is one word, as most are."""
    match = re.search(rf"(?:^|\s){name}=(\S*)", text)
    return match[1] if match else ""


def _path(text: str, name: str) -> str:
    """Return a value that may contain spaces: it extends to the next `name=`."""
    match = re.search(rf"(?:^|\s){name}=(.*?)(?:\s+\w+=|\s*$)", text)
    return match[1] if match else ""


def _exit_code(text: str) -> int:
    """Parse `3:0` as exit code 3, `0:9` as signal 9."""
    code, _, number = text.partition(":")
    if number.isdecimal() and int(number):
        return 128 + int(number)
    return int(code) if code.isdecimal() else 0


def clean_nodes(text: str) -> str:
    """Return a list of nodes; empty for what Slurm shows if there are none."""
    return "" if text in ("(null)", "None assigned") else text
