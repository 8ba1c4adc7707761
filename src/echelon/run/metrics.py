"""The events in a run's `metrics.jsonl`, written by the Trainer. See run/events.py."""

import math
from typing import Annotated

from echelon.core.codec import Index, Metrics, Seconds
from echelon.core.frozen import frozen
from echelon.core.units import render_time
from echelon.run.event_log import Event

_BAR = 12


class MetricEvent(Event):
    """What rank 0 measured."""

    __slots__ = ()


@frozen
class StepLogged(MetricEvent):
    """Metrics of the training since the last such line."""

    kind = "step"
    step: Annotated[Index, "number of completed steps"]
    epoch: Annotated[int, "current epoch, counted from 0"]
    epochs: Annotated[int, "number of epochs"]
    done: Annotated[int, "how much of the epoch is done"]
    length: Annotated[int, "length of the epoch"]
    unit: Annotated[str, "unit of `done` and `length`: `samples`, `batches` or `steps`"]
    left_s: Annotated[Seconds, "estimated time until the end of the training, in seconds"]
    metrics: Annotated[
        Metrics,
        "name → mean over all ranks, with `rate` (units per second) and `data_wait` (fraction of "
        "the time spent waiting for data)",
    ]


@frozen
class ValidationLogged(MetricEvent):
    """Metrics of a validation."""

    kind = "validation"
    step: Annotated[Index, "number of completed steps"]
    epoch: Annotated[int, "number of completed epochs"]
    metrics: Annotated[Metrics, "name → mean over all samples"]


def render_progress(logged: StepLogged, *, bar: bool) -> str:
    """Return the progress of a training as a line, with or without a bar.

    Events of other versions may lack fields.
    """
    share = min(1.0, logged.done / max(1, logged.length))
    drawn = f"[{'#' * int(_BAR * share):<{_BAR}}] " if bar else ""
    loss, rate = logged.metrics.get("loss", math.nan), logged.metrics.get("rate", 0.0)
    unit = logged.unit if logged.unit in ("batches", "steps") else "samples"
    return (
        f"epoch {logged.epoch + 1}/{logged.epochs or 1} {drawn}{share:4.0%}  loss {loss:.4f}  "
        f"{rate:,.0f} {unit}/s  {render_time(logged.left_s)} left"
    )
