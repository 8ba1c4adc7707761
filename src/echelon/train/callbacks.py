"""Your own objects, called during training."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol


class Callback(Protocol):
    """Your own object, called during training with its Trainer; every method is optional."""

    def step_ended(self, trainer: Any) -> None: ...

    def logged(self, trainer: Any, means: Mapping[str, float]) -> None: ...

    def epoch_ended(self, trainer: Any, metrics: Mapping[str, float]) -> None: ...


def collect_calls(callbacks: Sequence[Callback]) -> dict[str, list[Callable[..., Any]]]:
    """Return the methods to call for each event, from the callbacks that define it."""
    return {
        name: [getattr(callback, name) for callback in callbacks if hasattr(callback, name)]
        for name in ("step_ended", "logged", "epoch_ended")
    }
