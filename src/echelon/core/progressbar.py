"""The progress of a training as one line of text, for ranks and for commands that watch. Pure."""

from dataclasses import dataclass

_BAR = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The progress of a training."""

    epoch: int
    """From 1."""
    epochs: int
    done: int
    """Within this epoch."""
    length: int
    rate: float
    """Per second."""
    left_s: float
    """Until the end of the training, at this rate."""
    loss: float
    unit: str = "samples"


def render_standing(standing: Standing, *, bar: bool) -> str:
    """Return the line, with or without a bar."""
    share = min(1.0, standing.done / max(1, standing.length))
    drawn = f"[{'#' * int(_BAR * share):<{_BAR}}] " if bar else ""
    return (
        f"epoch {standing.epoch}/{standing.epochs} {drawn}{share:4.0%}  loss {standing.loss:.4f}  "
        f"{standing.rate:,.0f} {standing.unit}/s  {render_time(standing.left_s)} left"
    )


def render_time(seconds: float) -> str:
    """Format a duration for people."""
    whole = max(0, round(seconds))
    if whole < 90:
        return f"{whole} s"
    if whole < 5400:
        return f"{whole // 60} min {whole % 60} s" if whole < 600 else f"{round(whole / 60)} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
