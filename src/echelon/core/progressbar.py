"""How far a training is, as one line of text: what a rank draws, and whoever watches it. Pure."""

from dataclasses import dataclass

_BAR = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a training is."""

    epoch: int
    """Counted from 1."""
    epochs: int
    done: int
    """Of this epoch."""
    length: int
    rate: float
    """Per second."""
    left_s: float
    """Until the end of the training, if it goes on like this."""
    loss: float
    unit: str = "samples"


def render_standing(standing: Standing, *, bar: bool) -> str:
    """Return the line, with or without a bar in it."""
    share = min(1.0, standing.done / max(1, standing.length))
    drawn = f"[{'#' * int(_BAR * share):<{_BAR}}] " if bar else ""
    return (
        f"epoch {standing.epoch}/{standing.epochs} {drawn}{share:4.0%}  loss {standing.loss:.4f}  "
        f"{standing.rate:,.0f} {standing.unit}/s  {render_time(standing.left_s)} left"
    )


def render_time(seconds: float) -> str:
    """Return a time as a person would say it."""
    whole = max(0, round(seconds))
    if whole < 90:
        return f"{whole} s"
    if whole < 5400:
        return f"{whole // 60} min {whole % 60} s" if whole < 600 else f"{round(whole / 60)} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
