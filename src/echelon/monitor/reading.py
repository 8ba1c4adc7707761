"""Follow the files of a run and update its state: each `read` processes what is new."""

from collections import deque
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from echelon.core.records import find_record, open_regular
from echelon.monitor.state import RunState
from echelon.run.directory import RunDir
from echelon.run.event_log import EventReader
from echelon.run.events import RunEvents
from echelon.run.metrics import MetricEvent
from echelon.run.request import known_code, summarise
from echelon.run.series import MOST_TAIL, Sample, parse_sample, read_last_lines

HISTORY = 120
"""Number of samples per node that are kept for charts: two minutes."""
MOST_NODES = 32
"""Number of nodes whose telemetry is read for a short summary, so that it is quick."""
_AT_LEAST = 3
"""Number of samples that may be added while a file is shortened."""


class _SampleTail:
    """Follows a file of samples, which is shortened from time to time."""

    def __init__(self, path: Path, first: int) -> None:
        self._path, self._first = path, first
        self._newest_s = 0.0
        self._size = 0

    def read(self) -> list[Sample]:
        """Return samples added since the last call; the first call returns the newest few."""
        try:
            with open_regular(self._path) as file:
                size = file.seek(0, 2)
                if 0 < self._size <= size <= self._size + MOST_TAIL:
                    file.seek(self._size)
                    content = file.read()
                    known_s = 0.0  # a node's time may go back: at first, it is by its own clock
                else:
                    lines = max(self._first, _AT_LEAST) if self._newest_s else self._first
                    self._size, content = read_last_lines(file, lines)
                    known_s = self._newest_s
        except OSError:
            return []
        whole = content.rpartition(b"\n")[0]
        self._size += len(whole) + bool(whole)
        parsed = map(parse_sample, whole.decode(errors="replace").split("\n"))
        samples = [sample for sample in parsed if sample and sample.time_s > known_s]
        if samples:
            self._newest_s = samples[-1].time_s
        return samples


def _submitted(run: RunDir, attempt: int) -> float | None:
    try:
        record = find_record(run.attempt(attempt) / "job.json")
        return datetime.fromisoformat(record["submitted"]).timestamp()
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return None


def note_submissions(run: RunDir, state: RunState) -> None:
    """Add when attempts were submitted, which no event says."""
    for attempt in state.attempts.values():
        if attempt.submitted_s is None:
            attempt.submitted_s = _submitted(run, attempt.number)


class RunReader:
    """Follows the events, metrics and telemetry of a run."""

    def __init__(
        self,
        run: RunDir,
        seen: Callable[[Sample], None] = lambda _: None,
        *,
        first: int = HISTORY,
        most_nodes: int | None = None,
        metrics: bool = True,
    ) -> None:
        """Follow a run.

        Args:
            run: the run.
            seen: called with each sample.
            first: number of recent samples per node to read at first, and to keep.
            most_nodes: number of nodes whose samples are read; None for all.
            metrics: whether to read the training's metrics, a large file in a long run.
        """
        self._run, self._tell_seen, self._first = run, seen, first
        self._most_nodes, self._wants_metrics = most_nodes, metrics
        code = known_code(run)
        self.state = RunState(
            run_id=run.run_id, asked=summarise(run), code=code.describe() if code else ""
        )
        self.history: dict[int, deque[Sample]] = {}
        """By node of the newest attempt: its newest samples."""
        self._events = RunEvents(run)
        self._metrics = EventReader(run.metrics, MetricEvent)
        self._samples: dict[tuple[int, int], _SampleTail] = {}

    def read(self) -> RunState:
        """Process what is new, and return the state."""
        for number, record in self._events.read():
            self.state.feed_event(number, record)
        note_submissions(self._run, self.state)
        for metric in self._metrics.read() if self._wants_metrics else ():
            self.state.feed_metric(metric)
        self._read_samples()
        return self.state

    def _read_samples(self) -> None:
        attempt = self.state.attempt
        if attempt is None:
            return
        for node in list(self.state.nodes)[: self._most_nodes]:
            place = attempt.number, node
            if place not in self._samples:
                self._samples[place] = _SampleTail(self._run.telemetry(*place, 0), self._first)
                self.history[node] = deque(maxlen=self._first)
            for sample in self._samples[place].read():
                self.state.feed_sample(attempt.number, node, sample)
                self.history[node].append(sample)
                self._tell_seen(sample)
