"""The history of a run: the failures of its attempts, and whether they made progress.

Read from the events of its controllers, which remain even if the controllers were killed.
"""

import re
from collections.abc import Container, Iterator
from itertools import chain, islice
from pathlib import Path

from echelon.core.files import Entry, walk
from echelon.core.frozen import frozen
from echelon.run.attempts import outcome
from echelon.run.directory import RunDir
from echelon.run.events import AttemptStarted, RanksStopped, RestartDecided, RunEvents
from echelon.run.saved import newest_saved
from echelon.run.verdict import Failure, Verdict

_STEP = re.compile(r"[0-9]{9,18}")
OWN_FILES = frozenset(
    {
        *("spec.toml", "job.sbatch", "verdict.json", "metrics.jsonl", "report.json", "launcher"),
        *("attempts", "events", "logs", "telemetry", "saved", "tracker", "mlflow"),
        *("code", "code.json", "finders", "task.json"),
        # Every start writes here, also one that takes no step.
        *("tensorboard", "wandb"),
    }
)
"""What Echelon and trackers write in a run directory."""
_MOST_FILES = 20_000


@frozen
class History:
    """The history before an attempt."""

    failures: tuple[Failure, ...] = ()
    """In order: failures after which ranks were started again, and controllers that vanished.
    Planned stops are not failures."""
    stalled: int = 0
    """How many attempts in a row, up to the last one, made no progress that can be seen."""
    listened: bool = False
    """Whether ranks of an earlier attempt stopped at a place that was agreed with them."""


def read_history(run: RunDir, attempt: int) -> History:
    """Read the history before an attempt."""
    failures: dict[int, list[Failure]] = {}
    began: list[tuple[int, int]] = []
    listened = False
    for number, record in RunEvents(run).read():
        if number >= attempt:
            continue
        found = failures.setdefault(number, [])
        match record.event:
            case AttemptStarted(saved=step):
                began.append((number, step))
            case RestartDecided(verdict=Verdict() as verdict):
                found.append(verdict.failure)
            case RanksStopped():
                listened = True
    for number, found in failures.items():
        if outcome(run, number) is None:
            message = f"attempt {number} ended without recording an outcome"
            found.append(Failure(cause="lost node", message=message))
    began.append((attempt, newest_checkpoint(run)))
    stalled = 0
    for (number, earlier), (_, later) in zip(reversed(began[:-1]), reversed(began), strict=False):
        ended = outcome(run, number)
        if later > earlier or (ended and ended.progress):
            break
        stalled += 1
    found_failures = tuple(chain(*failures.values()))
    return History(failures=found_failures, stalled=stalled, listened=listened)


def newest_checkpoint(run: RunDir) -> int:
    """Return the step of the newest checkpoint, in the run's own folder or as the script reported.

    -1 if there is none.
    """
    steps = [newest_saved(run)]
    try:
        for folder in run.checkpoints.iterdir():
            name, _, number = folder.name.partition("-")
            # A checkpoint without a manifest does not exist.
            if name == "step" and _STEP.fullmatch(number) and (folder / "manifest.json").is_file():
                steps.append(int(number))
    except OSError:
        pass
    return max(steps)


def has_written(folder: Path, since_s: float, *, run: RunDir) -> bool:
    """Tell whether a script wrote files, in its folder or the run directory, since then.

    Echelon's own files and hidden ones do not count. In a large folder not all are looked at.
    """
    own = run.path.resolve()
    skipped = {own.parent, *(own / name for name in OWN_FILES)}
    files = (file for place in (folder.resolve(), own) for file in _list_files(place, skipped))
    return any(_changed_s(file) > since_s for file in islice(files, _MOST_FILES))


def _list_files(place: Path, skipped: Container[Path]) -> Iterator[Path]:
    def is_wanted(entry: Entry) -> bool:
        named = entry.name[0] != "." and entry.name != "__pycache__"
        return named and place / entry.path not in skipped

    for entry in walk(place, enter=is_wanted, on_error=lambda _error: None):
        if not entry.is_folder and is_wanted(entry):
            yield place / entry.path


def _changed_s(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0
