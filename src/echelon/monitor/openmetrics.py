"""The runs of a folder in OpenMetrics' text format, for Prometheus. Pure.

Names and units follow Prometheus' conventions: base units, a gauge for what may fall. A step is a
gauge, because a restart repeats steps.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from echelon.core.frozen import frozen

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_MOST_METRICS = 50
"""Number of a run's own metrics that are exported."""
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@frozen
class RunSample:
    """What is known of a run now."""

    run: str
    phase: str
    began_s: float | None = None
    """When its newest attempt began, since the epoch."""
    ended_s: float | None = None
    step: int = -1
    """-1 if none was reported."""
    attempts: int = 0
    restarts: int = 0
    ranks: int = 0
    nodes: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Where the time went, by category."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The newest of each that the training logged."""


def render_metrics(samples: Sequence[RunSample]) -> str:
    """Return all runs as one exposition."""
    lines = [line for family in _FAMILIES for line in family.render(samples)]
    return "\n".join([*lines, "# EOF", ""])


Values = Iterable[tuple[str, float]]
"""Values of the other label, with their numbers."""


@dataclass(frozen=True, slots=True)
class _Family:
    """A gauge with one number for each run, or one for each value of another label."""

    name: str
    help: str
    read: Callable[[RunSample], Values]
    label: str = ""
    """The other label."""

    def render(self, samples: Sequence[RunSample]) -> Iterator[str]:
        name = f"echelon_run_{self.name}"
        yield f"# TYPE {name} gauge"
        if name.endswith("_seconds"):
            yield f"# UNIT {name} seconds"
        yield f"# HELP {name} {self.help}"
        for sample in samples:
            for value, number in self.read(sample):
                other = f',{self.label}="{_escape(value)}"' if self.label else ""
                yield f'{name}{{run="{_escape(sample.run)}"{other}}} {_number(number)}'


def _known(number: float | None) -> Values:
    return [] if number is None or number < 0 else [("", number)]


_FAMILIES = (
    _Family("state", "1 for the state that it is in.", lambda one: [(one.phase, 1)], "state"),
    _Family("start_time_seconds", "When its newest job began.", lambda one: _known(one.began_s)),
    _Family("end_time_seconds", "When its newest job ended.", lambda one: _known(one.ended_s)),
    _Family("step", "Newest step that a rank reported.", lambda one: _known(one.step)),
    _Family("attempts", "Jobs that it took so far.", lambda one: _known(one.attempts)),
    _Family("restarts", "Restarts of its ranks so far.", lambda one: _known(one.restarts)),
    _Family("ranks", "Ranks of its newest generation.", lambda one: _known(one.ranks)),
    _Family("nodes", "Nodes that take part.", lambda one: _known(one.nodes)),
    _Family(
        "time_seconds",
        "Time of its GPUs, or ranks, by category.",
        lambda one: one.seconds.items(),
        "category",
    ),
    _Family(
        "metric",
        "Newest value of a metric that the training logged.",
        lambda one: list(one.metrics.items())[:_MOST_METRICS],
        "name",
    ),
)


def _escape(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode().translate(_ESCAPES)


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))
