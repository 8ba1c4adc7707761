"""A sweep: many runs of one request, which differ in parameters.

Its directory holds what they share: request, code, launcher and script, as in a run directory, and
the parameters of each task. The run directory of a task is created when the task starts. It has a
request and a script of its own, and links to the rest, so it is a run like any other.
"""

import contextlib
import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from echelon.core.atomic_file import encode, remove_tree, write_atomic
from echelon.core.file_lock import locked
from echelon.core.frozen import frozen
from echelon.core.records import find_record, parse_json, read_bytes
from echelon.errors import (
    ConflictError,
    NotFoundError,
    NotPermittedError,
    UnavailableError,
    UsageError,
)
from echelon.run.directory import RunDir

if TYPE_CHECKING:
    from echelon.spec.job_spec import JobSpec

INDEX = "index"
"""The placeholder that every task has."""
INDEX_EXPRESSION = '"$((SLURM_ARRAY_TASK_ID + ${1:-0}))"'
"""In the script of a sweep: the index of a task. The script's argument is the array's offset."""
_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_TABLE = "sweep.json"
_MOST_TABLE = 16 << 20
"""Largest size of the parameters of a sweep, which `ps` reads."""


# --- placeholders ----------------------------------------------------------------------------


def find_placeholders(texts: Sequence[str]) -> set[str]:
    """Return the names in braces; `{{` and `}}` are literal braces.

    Raises:
        UsageError: a brace is not closed or not opened.
    """
    found = set()
    for text in texts:
        for match in _PLACEHOLDER.finditer(text):
            if match[0] in "{}":
                raise UsageError(
                    f"single '{match[0]}' in the argument '{text}'",
                    hint=f"write '{match[0] * 2}' for a literal brace, or {{NAME}} for a parameter",
                )
            if match[1] is not None:
                found.add(match[1])
    return found


def fill_in(text: str, values: Mapping[str, str]) -> str:
    """Replace the names in braces by their values."""

    def fill(match: re.Match[str]) -> str:
        return match[0][0] if match[1] is None else values[match[1]]

    return _PLACEHOLDER.sub(fill, text)


def escape(text: str) -> str:
    """Return a text that `fill_in` turns into the given one."""
    return text.replace("{", "{{").replace("}", "}}")


def check_placeholders(texts: Sequence[str], names: Sequence[str]) -> None:
    """Check that arguments use the parameters, and nothing else.

    Raises:
        UsageError: they do not.
    """
    used = find_placeholders(texts)
    if unknown := sorted(used - {*names, INDEX}):
        known = ", ".join(f"{{{name}}}" for name in (*names, INDEX))
        raise UsageError(
            f"unknown parameter in the arguments: '{{{unknown[0]}}}' (known: {known})",
            hint=f"add --grid {unknown[0]}=…, or write '{{{{' and '}}}}' for literal braces",
        )
    # With the index, a program can find its parameters itself.
    if INDEX not in used and (unused := [name for name in names if name not in used]):
        raise UsageError(
            f"the parameter '{unused[0]}' does not occur in the arguments: "
            f"{shlex.join(texts) or 'there are none'}",
            hint=f"add it to the arguments of the script, such as --{unused[0]} {{{unused[0]}}}",
        )


# --- files -----------------------------------------------------------------------------------


@frozen
class Table:
    """The parameters of all tasks."""

    names: tuple[str, ...]
    tasks: Mapping[int, tuple[str, ...]]
    """Index of each task → its values, in the order of the names."""
    max_running: int = 0
    """How many tasks run at a time; 0 for no limit."""
    pack: int = 0
    """Nodes of the one job in which all tasks run side by side; 0 if each has a job of its own."""
    per_slot: int = 1
    """How many tasks of such a job share the same GPUs and CPUs."""

    def parameters(self, index: int) -> dict[str, str]:
        """Return the parameters of a task."""
        return dict(zip(self.names, self.tasks[index], strict=True))


class Array(NamedTuple):
    """A job array of a sweep."""

    job_id: str
    offset: int
    """What to add to Slurm's index for that of the task."""
    tasks: tuple[int, ...]

    def job_of(self, index: int) -> str:
        """Return the job of a task."""
        return f"{self.job_id}_{index - self.offset}"


@frozen
class SweepDir:
    """The files of one sweep. Use `open`, which checks its owner."""

    files: RunDir
    """Request, code, launcher and script, named as in a run directory."""

    @classmethod
    def open(cls, path: Path) -> "SweepDir":
        """Return an existing sweep.

        Raises:
            NotFoundError: it is not a sweep.
            NotPermittedError: it belongs to another user, or others may write to it.
        """
        if not is_sweep(path):
            raise NotFoundError(
                f"no sweep '{path.name}' in {path.parent}",
                hint="change to the directory where it was started, or pass --runs-dir",
            )
        return cls(files=RunDir.open(path))

    @property
    def path(self) -> Path:
        return self.files.path

    @property
    def sweep_id(self) -> str:
        return self.files.run_id

    @property
    def table(self) -> Path:
        """The parameters."""
        return self.path / _TABLE

    @property
    def task_script(self) -> Path:
        """The script that tasks derive theirs from: that of a job array."""
        return self.path / ("task.sbatch" if read_table(self).pack else self.files.script.name)

    def asked(self, attempt: int) -> Path:
        """Return the file of the tasks that an attempt of a packed sweep has to carry out."""
        return self.files.attempt(attempt) / "tasks.json"

    @property
    def stopped(self) -> Path:
        """Exists if no more tasks are to be started on this machine or on Ray."""
        return self.path / "stopped"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Let one process at a time decide which tasks to submit.

        Raises:
            ConflictError: another one does.
        """
        busy = ConflictError(
            f"another process submits tasks of the sweep '{self.sweep_id}'",
            hint=f"show them: echelon sweep status {self.sweep_id}",
        )
        with locked(self.path / "lock", busy):
            yield

    @property
    def carrier(self) -> Path:
        """The process that starts tasks on this machine or on Ray: host, pid, start, place."""
        return self.path / "carrier"

    def cancelled(self, index: int) -> Path:
        """Return what exists if a task is not to be started on this machine or on Ray."""
        return self.path / f"cancelled-{index}"

    def run_id(self, index: int) -> str:
        return f"{self.sweep_id}-{index}"

    def run(self, index: int) -> RunDir:
        """Return the run of a task, whose directory may not exist yet."""
        return RunDir(path=self.path.with_name(self.run_id(index)))

    def arrays(self) -> list[Array]:
        """Return the job arrays that were submitted, the oldest first."""
        found = {}
        for path in (self.path / "arrays").glob("*.json"):
            record = find_record(path)
            with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
                tasks = tuple(int(task) for task in record["tasks"])
                array = Array(str(record["job_id"]), int(record["offset"]), tasks)
                if array.job_id.isdecimal():
                    found[int(path.stem)] = array
        return [found[number] for number in sorted(found)]

    def record_array(self, number: int, array: Array) -> None:
        (self.path / "arrays").mkdir(mode=0o700, exist_ok=True)
        path = self.path / "arrays" / f"{number}.json"
        write_atomic(path, json.dumps(array._asdict(), separators=(",", ":")) + "\n")


def is_sweep(path: Path) -> bool:
    """Tell whether a directory is that of a sweep."""
    return (path / _TABLE).exists()


def write_table(sweep: SweepDir, table: Table) -> str:
    """Write the parameters of a sweep, and return their SHA-256."""
    record: dict[str, object] = {"names": table.names, "max_running": table.max_running}
    if table.pack:
        record |= {"pack": table.pack, "per_slot": table.per_slot}
    record["tasks"] = dict(table.tasks)
    content = encode(json.dumps(record, separators=(",", ":")))
    write_atomic(sweep.table, content)
    return hashlib.sha256(content).hexdigest()


def read_table(sweep: SweepDir, digest: str = "") -> Table:
    """Read the parameters of a sweep.

    Args:
        sweep: the sweep.
        digest: the expected SHA-256; empty to accept any.

    Raises:
        NotPermittedError: they have another digest.
        UnavailableError: the file cannot be read, or is damaged.
    """
    try:
        content = read_bytes(sweep.table, most=_MOST_TABLE)
        record = parse_json(content)
        table = Table(
            names=tuple(map(str, record["names"])),
            tasks={int(key): tuple(map(str, row)) for key, row in record["tasks"].items()},
            max_running=int(record["max_running"]),
            pack=int(record.get("pack", 0)),
            per_slot=int(record.get("per_slot", 1)),
        )
        if any(len(row) != len(table.names) for row in table.tasks.values()):
            raise ValueError("a task has another number of values than there are names")  # noqa: TRY301
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise UnavailableError(
            f"the parameters of the sweep '{sweep.sweep_id}' cannot be read: {sweep.table}: "
            f"{error}",
            hint="restore that file, or start a new sweep: echelon sweep",
        ) from error
    if digest and hashlib.sha256(content).hexdigest() != digest:
        raise NotPermittedError(
            f"refused to start: {sweep.table} is not what was submitted (its SHA-256 differs)",
            hint="start a new sweep: echelon sweep",
        )
    return table


# --- runs of tasks ---------------------------------------------------------------------------


def task_spec(sweep: SweepDir, spec: "JobSpec", table: Table, index: int) -> "JobSpec":
    """Return the request of a task: that of the sweep, with its parameters."""
    values = {**table.parameters(index), INDEX: str(index)}
    return replace(
        spec,
        args=tuple(fill_in(argument, values) for argument in spec.args),
        output=_own_output(spec.output, sweep.sweep_id, sweep.run_id(index)),
    )


def task_script(sweep: SweepDir, script: bytes, index: int, digest: str) -> bytes:
    """Return the script of a task's run, from that of its sweep.

    Args:
        sweep: the sweep.
        script: its script.
        index: the task.
        digest: SHA-256 of the run's request.
    """
    own, name = re.escape(sweep.sweep_id), sweep.run_id(index)
    text = script.decode("utf-8", "surrogateescape")
    text = text.replace(f"--comment=echelon:{sweep.sweep_id}-*", f"--comment=echelon:{name}")
    text = _own_output(text, sweep.sweep_id, name)
    start = re.compile(
        rf"/{own}/launcher(\S*) \\\n    task (.*)/{own}(\S*) {re.escape(INDEX_EXPRESSION)} "
        r"[0-9a-f]{64}$",
        re.MULTILINE,
    )
    command = rf'/{name}/launcher\1 \\\n    controller \2/{name}\3 "${{1:-}}" {digest}'
    return encode(start.sub(command, text))


def _own_output(text: str, sweep_id: str, run_id: str) -> str:
    return text.replace(f"/{sweep_id}/logs/job-%j.out", f"/{run_id}/logs/job-%j.out")


def make_run(sweep: SweepDir, index: int, digest: str = "") -> tuple[RunDir, str]:
    """Create the run directory of a task, unless it exists.

    Args:
        sweep: the sweep.
        index: the task.
        digest: the expected SHA-256 of the sweep's request; empty to accept any.

    Returns:
        the run, and the SHA-256 of its request.

    Raises:
        NotPermittedError: request or parameters are not those that were submitted.
        NotFoundError: there is no such task.
    """
    from echelon.run.request import (  # noqa: PLC0415  others do not wait for it
        read_code,
        read_spec,
        read_tasks_digest,
        render_spec,
    )

    spec, code = read_spec(sweep.files, digest), read_code(sweep.files, digest)
    table = read_table(sweep, read_tasks_digest(sweep.files, digest))
    if index not in table.tasks:
        raise NotFoundError(
            f"the sweep '{sweep.sweep_id}' has no task {index}",
            hint=f"list its tasks: echelon sweep table {sweep.sweep_id}",
        )
    request = encode(render_spec(task_spec(sweep, spec, table, index), code))
    own, run = hashlib.sha256(request).hexdigest(), sweep.run(index)
    if not run.path.exists():
        with _draft(sweep, run) as draft:
            record = {"sweep": sweep.sweep_id, "index": index}
            record |= {"parameters": table.parameters(index)}
            write_atomic(draft.task, json.dumps(record) + "\n", sync=False)
            script = task_script(sweep, read_bytes(sweep.task_script), index, own)
            write_atomic(draft.script, script, mode=0o700, sync=False)
            _link(sweep.files.launcher, draft.launcher)
            if code is not None:
                _link(sweep.files.manifest, draft.manifest)
                draft.code.symlink_to(Path("..", sweep.sweep_id, sweep.files.code.name))
            write_atomic(draft.spec, request)
    return RunDir.open(run.path), own


@contextlib.contextmanager
def _draft(sweep: SweepDir, run: RunDir) -> Iterator[RunDir]:
    """Yield a new directory that becomes the run's at the end, unless another was faster.

    A job that is killed in between leaves nothing that looks like a run.
    """
    draft = RunDir(path=sweep.path / f".{run.run_id}-{os.uname().nodename}-{os.getpid()}")
    remove_tree(draft.path)
    draft.path.mkdir(mode=0o700)
    try:
        draft.make_folders()
        yield draft
        draft.path.rename(run.path)
    except BaseException:
        remove_tree(draft.path)
        if not run.path.exists():
            raise


def _link(source: Path, target: Path) -> None:
    """Link a file of the sweep, so that the run stays whole without the sweep where possible."""
    try:
        os.link(source, target)
    except OSError:  # not on every file system, and not without end
        target.symlink_to(Path("..", source.parent.name, source.name))


def sweep_of(run: RunDir) -> tuple[SweepDir, int] | None:
    """Return the sweep of a run, and the index of its task; None for a run of its own."""
    record = find_record(run.task)
    index, path = record.get("index"), run.path.parent / str(record.get("sweep", ""))
    if not isinstance(index, int) or path.parent != run.path.parent or not is_sweep(path):
        return None
    sweep = SweepDir.open(path)
    return (sweep, index) if sweep.run_id(index) == run.run_id else None
