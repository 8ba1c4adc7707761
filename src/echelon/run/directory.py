"""The run directory is the protocol: the only interface between command line, job and dashboard.

`RunDir` owns every file name. Files are written atomically (`write_atomic`) or grow line by line
(`run.event_log`).
"""

import os
import re
import stat
from pathlib import Path

from echelon.core.atomic_file import make_private
from echelon.core.frozen import frozen
from echelon.errors import ConflictError, NotFoundError, NotPermittedError, UsageError

RUNS = Path("runs")
"""The directory of runs, unless another one is named."""
FETCHED = ".echelon-run"
"""File with the run's id, in a folder of files that were fetched from another host."""
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_NUMBER = re.compile(r"[1-9][0-9]{0,5}")
"""An attempt's number; no run has a million attempts."""
_MEASURED = re.compile(r"([0-9]{1,6})-([0-9]{1,6})\.[0-9]\.jsonl")


@frozen
class RunDir:
    """The files of one run. Use `create` or `open`, which check its owner."""

    path: Path

    @classmethod
    def create(cls, runs: Path, run_id: str) -> "RunDir":
        """Create the directory of a new run, readable by its owner alone.

        Raises:
            UsageError: the id is invalid.
            ConflictError: the run exists, or a file has the name of the runs folder.
        """
        if not _RUN_ID.fullmatch(run_id):
            raise UsageError(
                f"'{run_id}' cannot be a run id",
                hint="use letters, digits, '.', '_' and '-', beginning with a letter or digit",
            )
        path = runs / run_id
        try:
            make_private(runs)
            path.mkdir(mode=0o700)
        except FileExistsError as error:
            if not runs.is_dir():
                raise ConflictError(
                    f"runs cannot be stored in {runs}: not a directory",
                    hint="choose another one: --runs-dir",
                ) from error
            raise ConflictError(
                f"the run '{run_id}' already exists in {runs}", hint="choose another id"
            ) from error
        run = cls(path=path)
        run.make_folders()
        return run

    def make_folders(self) -> None:
        """Create the folders of a new run."""
        for folder in (self.attempts, self.events, self.logs, self.checkpoints):
            folder.mkdir(mode=0o700)

    @classmethod
    def open(cls, path: Path) -> "RunDir":
        """Return an existing run.

        Raises:
            NotFoundError: there is no run.
            NotPermittedError: it belongs to another user, or others may write to it.
        """
        try:
            status = path.lstat()
        except FileNotFoundError as error:
            raise NotFoundError(
                f"no run '{path.name}' in {path.parent}",
                hint="change to the directory where the run was started, or pass --runs-dir",
            ) from error
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise NotPermittedError(
                f"the run directory {path} is a link, or belongs to another user",
                hint="only the user who started a run may use its directory",
            )
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise NotPermittedError(
                f"other users can write to the run directory {path}",
                hint=f"check its content, then: chmod 700 {path}",
            )
        return cls(path=path)

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def spec(self) -> Path:
        """The frozen request."""
        return self.path / "spec.toml"

    @property
    def script(self) -> Path:
        """The exact script that was submitted."""
        return self.path / "job.sbatch"

    @property
    def code(self) -> Path:
        """The project's code as it was submitted; missing if the project itself is executed."""
        return self.path / "code"

    @property
    def manifest(self) -> Path:
        """What is in `code` (`run/code.py`)."""
        return self.path / "code.json"

    @property
    def task(self) -> Path:
        """Which task of a sweep the run is (`run/sweep.py`); missing for a run of its own."""
        return self.path / "task.json"

    @property
    def verdict(self) -> Path:
        return self.path / "verdict.json"

    @property
    def metrics(self) -> Path:
        """Metrics of the training, as events."""
        return self.path / "metrics.jsonl"

    @property
    def tracker(self) -> Path:
        """The run's name for trackers such as W&B."""
        return self.path / "tracker"

    @property
    def mlflow(self) -> Path:
        """The id of the run in MLflow."""
        return self.path / "mlflow"

    @property
    def attempts(self) -> Path:
        return self.path / "attempts"

    @property
    def events(self) -> Path:
        return self.path / "events"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def notify_log(self) -> Path:
        """Output of the user's `--notify` command."""
        return self.logs / "notify.log"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def saved(self) -> Path:
        """Checkpoints that the script reported (`run/saved.py`)."""
        return self.path / "saved"

    def attempt(self, number: int) -> Path:
        return self.attempts / str(number)

    def attempt_numbers(self) -> list[int]:
        """Return the attempts that have a folder, in order."""
        try:
            names = [path.name for path in self.attempts.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(int(name) for name in names if _NUMBER.fullmatch(name))

    def begun_numbers(self) -> list[int]:
        """Return the attempts whose controllers have written events, in order."""
        names = (path.stem for path in self.events.glob("controller-*.jsonl"))
        numbers = (name.removeprefix("controller-") for name in names)
        return sorted(int(number) for number in numbers if _NUMBER.fullmatch(number))

    def debug_logs(self, attempt: int) -> Path:
        """Return the folder of an attempt's debug logs (`run/debug_log.py`)."""
        return self.attempt(attempt) / "debug"

    def outcome(self, attempt: int) -> Path:
        """How an attempt ended, written by its controller."""
        return self.attempt(attempt) / "outcome.json"

    def notice(self, attempt: int) -> Path:
        """Return the file of a notification that is still to be sent."""
        return self.attempt(attempt) / "notify.json"

    def sent_notice(self, attempt: int) -> Path:
        """Return the file of a notification that was sent: the same file, renamed."""
        return self.attempt(attempt) / "notified.json"

    @property
    def launcher(self) -> Path:
        """The launcher that attempts use, in one file (`clusters.runs.ship_launcher`)."""
        return self.path / "launcher"

    def doctor(self, number: int) -> Path:
        """Return the folder of an attempt's preflight, which exists while it runs."""
        return self.attempt(number) / "doctor"

    def preflight(self, number: int) -> Path:
        """Return the file with the findings of an attempt's preflight."""
        return self.attempt(number) / "preflight.json"

    def events_of(self, writer: str) -> Path:
        """Return a writer's event file: with one writer per file, no locks are needed."""
        return self.events / f"{writer}.jsonl"

    def telemetry(self, attempt: int, node: int, level: int) -> Path:
        """Return the file of a node's measurements; lower levels are newer: see series.py."""
        return self.path / "telemetry" / f"{attempt}-{node:05}.{level}.jsonl"

    def measured(self) -> list[tuple[int, int]]:
        """Return the attempts and nodes that have measurements."""
        names = (path.name for path in (self.path / "telemetry").glob("*.jsonl"))
        found = {match.groups() for name in names if (match := _MEASURED.fullmatch(name))}
        return sorted((int(attempt), int(node)) for attempt, node in found)

    def job_log(self, attempt: int) -> Path:
        """Return the file of a job's output; Slurm's own output files are named by job id."""
        return self.logs / f"job-{attempt}.out"

    def rank_log(self, *, attempt: int, generation: int, rank: int) -> Path:
        return self.logs / f"{attempt}.{generation}" / f"rank-{rank:05}.log"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:09}"

    def claim_attempt(self) -> int:
        """Become the owner of the next attempt by creating its folder, and return its number.

        mkdir is atomic, on network file systems too: only one of two competitors succeeds.
        """
        while True:
            number = max(self.attempt_numbers(), default=0) + 1
            try:
                self.attempt(number).mkdir(mode=0o700)
            except FileExistsError:
                continue
            return number
