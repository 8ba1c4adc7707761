"""The events in a run's `metrics.jsonl`, written by the Trainer. See run/events.py."""

from dataclasses import dataclass
from typing import Annotated

from echelon.core.codec import Index, Metrics, Seconds
from echelon.run.event_log import Event


class MetricEvent(Event):
    """What rank 0 measured."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLogged(MetricEvent):
    """Metrics of the training since the last such line."""

    kind = "step"
    step: Annotated[Index, "number of completed steps"]
    epoch: Annotated[int, "current epoch, counted from 0"]
    epochs: Annotated[int, "number of epochs"]
    done: Annotated[int, "how much of the epoch is done"]
    length: Annotated[int, "length of the epoch"]
    unit: Annotated[str, "unit of `done` and `length`: `samples` or `batches`"]
    left_s: Annotated[Seconds, "estimated time until the end of the training, in seconds"]
    metrics: Annotated[
        Metrics,
        "name → mean over all ranks, with `rate` (units per second) and `data_wait` (fraction of "
        "the time spent waiting for data)",
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationLogged(MetricEvent):
    """Metrics of a validation."""

    kind = "validation"
    step: Annotated[Index, "number of completed steps"]
    epoch: Annotated[int, "number of completed epochs"]
    metrics: Annotated[Metrics, "name → mean over all samples"]
