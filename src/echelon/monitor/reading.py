"""Follows a run's files: each `read` takes in what was written since the last."""

from collections import deque
from collections.abc import Callable
from pathlib import Path

from echelon.core.records import open_regular
from echelon.monitor.state import RunState
from echelon.run.directory import RunDir
from echelon.run.event_log import EventReader
from echelon.run.series import MOST_TAIL, Sample, parse_sample, read_last_lines

HISTORY = 120
"""How many samples of a node are kept for drawing: two minutes."""
_AT_LEAST = 3
"""How many may have come while a file was shortened."""


class _SampleTail:
    """Follows a file of samples, which is shortened now and then."""

    def __init__(self, path: Path, first: int) -> None:
        self._path, self._first = path, first
        self._newest_s = 0.0
        self._size = 0

    def _lines(self) -> int:
        return max(self._first, _AT_LEAST) if self._newest_s else self._first

    def read(self) -> list[Sample]:
        """Return those that are newer than the last; at first, the newest few."""
        try:
            with open_regular(self._path) as file:
                size = file.seek(0, 2)
                if 0 < self._size <= size <= self._size + MOST_TAIL:
                    file.seek(self._size)
                    content = file.read()
                else:
                    self._size, content = read_last_lines(file, self._lines())
        except OSError:
            return []
        whole = content.rpartition(b"\n")[0]
        self._size += len(whole) + bool(whole)
        found = []
        for line in whole.decode(errors="replace").split("\n"):
            sample = parse_sample(line)
            if sample and sample.time_s > self._newest_s:
                self._newest_s = sample.time_s
                found.append(sample)
        return found


class RunReader:
    """See the module."""

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
            run: which.
            seen: hears of each sample.
            first: of each node, how many of the newest samples are read at first, and kept.
            most_nodes: of how many nodes samples are read; None for all.
            metrics: whether what the training measured is read; of a long run that is much.
        """
        self._run, self._tell_seen, self._first = run, seen, first
        self._most_nodes, self._wants_metrics = most_nodes, metrics
        self.state = RunState(run_id=run.run_id)
        self.history: dict[int, deque[Sample]] = {}
        """By node of the newest attempt: its last samples."""
        self._events: dict[int, EventReader] = {}
        self._metrics = EventReader(run.metrics)
        self._samples: dict[tuple[int, int], _SampleTail] = {}

    def read(self) -> RunState:
        """Take in what is new."""
        for number in self._run.begun_numbers():
            reader = self._events.setdefault(
                number, EventReader(self._run.events_of(f"controller-{number}"))
            )
            for event in reader.read():
                self.state.feed_event(number, event)
        for event in self._metrics.read() if self._wants_metrics else ():
            self.state.feed_metric(event)
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
