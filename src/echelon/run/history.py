"""What a run has been through: the failures of all its attempts, and how far they have got.

Read from the events of its controllers, which are there whatever became of the processes.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from echelon.core.records import to_count
from echelon.run.attempts import outcome
from echelon.run.directory import RunDir
from echelon.run.event_log import Event, EventReader
from echelon.run.verdict import Failure, from_record

_NOTHING = -1
_STEP = re.compile(r"[0-9]{9,18}")


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Of the attempts before one's own."""

    failures: tuple[Failure, ...] = ()
    """Those for which ranks were started anew, in their order; and hosts of controllers lost."""
    stalled: int = 0
    """How many attempts in a row, up to the last one, have saved nothing new."""


def read_history(run: RunDir, attempt: int) -> History:
    """Return what came before an attempt."""
    failures: list[Failure] = []
    began: list[int] = []
    for number in (one for one in run.begun_numbers() if one < attempt):
        events = EventReader(run.events_of(f"controller-{number}")).read()
        failures += _failures(events)
        if events and outcome(run, number) is None:
            message = f"attempt {number} exited without reporting an outcome"
            failures.append(Failure(cause="lost node", message=message))
        saved = [event.data.get("saved") for event in events if event.kind == "attempt"]
        began += [_NOTHING if (step := to_count(one)) is None else step for one in saved]
    began.append(newest_checkpoint(run))
    stalled = 0
    for earlier, later in zip(reversed(began[:-1]), reversed(began), strict=False):
        if later > earlier:
            break
        stalled += 1
    return History(failures=tuple(failures), stalled=stalled)


def _failures(events: Sequence[Event]) -> list[Failure]:
    """Return the failures that cost a restart, or a hand-over: planned stops cost nothing."""
    found = []
    for event in events:
        if event.kind == "restart":
            try:
                found.append(from_record(event.data["verdict"]).failure)
            except (KeyError, TypeError, ValueError):
                continue  # of another version
    return found


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
