"""Makes the ids of new runs."""

import re
import secrets

from echelon.spec.job_spec import JobSpec

_LETTERS = "abcdefghjkmnpqrstvwxyz23456789"
"""Letters and digits that are not easily confused."""


def new_run_id(spec: JobSpec) -> str:
    """Return an id for a run: the job's name and four random letters."""
    return name_run(_stem(spec))


def name_run(stem: str) -> str:
    """Return an id with a given beginning."""
    return f"{stem}-{''.join(secrets.choice(_LETTERS) for _ in range(4))}"


def may_be_named(name: str, spec: JobSpec) -> bool:
    """Tell whether a run with this request can have this id."""
    return re.fullmatch(rf"{re.escape(_stem(spec))}-[{_LETTERS}]{{4}}", name) is not None


def _stem(spec: JobSpec) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", spec.job_name).strip("-.")[:40] or "run"
