"""The history of a run: the failures of its attempts, and whether they made progress.

Read from the events of its controllers, which remain even if the controllers were killed.
"""

import re
from dataclasses import dataclass
from itertools import chain

from echelon.run.attempts import outcome
from echelon.run.directory import RunDir
from echelon.run.events import AttemptStarted, RestartDecided, RunEvents
from echelon.run.verdict import Failure, Verdict

_NOTHING = -1
_STEP = re.compile(r"[0-9]{9,18}")


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The history before an attempt."""

    failures: tuple[Failure, ...] = ()
    """In order: failures after which ranks were started again, and controllers that vanished.
    Planned stops are not failures."""
    stalled: int = 0
    """How many attempts in a row, up to the last one, saved nothing new."""


def read_history(run: RunDir, attempt: int) -> History:
    """Read the history before an attempt."""
    failures: dict[int, list[Failure]] = {}
    began: list[int] = []
    for number, record in RunEvents(run).read():
        if number >= attempt:
            continue
        found = failures.setdefault(number, [])
        match record.event:
            case AttemptStarted(saved=step):
                began.append(step)
            case RestartDecided(verdict=Verdict() as verdict):
                found.append(verdict.failure)
    for number, found in failures.items():
        if outcome(run, number) is None:
            message = f"attempt {number} ended without recording an outcome"
            found.append(Failure(cause="lost node", message=message))
    began.append(newest_checkpoint(run))
    stalled = 0
    for earlier, later in zip(reversed(began[:-1]), reversed(began), strict=False):
        if later > earlier:
            break
        stalled += 1
    return History(failures=tuple(chain(*failures.values())), stalled=stalled)


def newest_checkpoint(run: RunDir) -> int:
    """Return the step of the newest checkpoint in the run's own folder; -1 when there is none."""
    steps = [_NOTHING]
    try:
        for folder in run.checkpoints.iterdir():
            name, _, number = folder.name.partition("-")
            # A checkpoint without a manifest does not exist.
            if name == "step" and _STEP.fullmatch(number) and (folder / "manifest.json").is_file():
                steps.append(int(number))
    except OSError:
        pass
    return max(steps)
