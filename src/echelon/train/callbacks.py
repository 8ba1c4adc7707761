"""Things of the user's own that are called as a training goes on."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from echelon.train.trainer import Trainer


class Callback(Protocol):
    """Something of yours that is called as the training goes on; every method may be left out."""

    def step_ended(self, trainer: "Trainer") -> None: ...

    def logged(self, trainer: "Trainer", means: Mapping[str, float]) -> None: ...

    def epoch_ended(self, trainer: "Trainer", metrics: Mapping[str, float]) -> None: ...


def collect_calls(callbacks: Sequence[Callback]) -> dict[str, list[Callable[..., Any]]]:
    """Return whom to call at each occasion: those that have a method for it."""
    return {
        name: [getattr(callback, name) for callback in callbacks if hasattr(callback, name)]
        for name in ("step_ended", "logged", "epoch_ended")
    }
