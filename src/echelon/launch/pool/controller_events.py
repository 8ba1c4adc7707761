"""What can happen to an attempt, and who says it: the entries of its crew's queue (crew.py)."""

from dataclasses import dataclass, field
from typing import Any

from echelon.launch.backends.base import Started
from echelon.launch.protocol.link import Link
from echelon.launch.protocol.messages import Hello


@dataclass(slots=True)
class Agent:
    """One that has joined."""

    hello: Hello
    link: Link
    pace: list[int] = field(default_factory=list)
    """Of the last pulse with ranks: see `Pulse.pace`."""
    held: bool = False
    """Whether storage holds one of its ranks: not even a kill ends that before storage is back."""

    @property
    def node(self) -> int:
        return self.hello.node

    @property
    def name(self) -> str:
        return self.hello.name

    @property
    def save_s(self) -> float:
        """How long its ranks took to save, at most."""
        return max(0, self.pace[0]) / 1e6 if self.pace else 0.0

    @property
    def way_s(self) -> float:
        """How long they went, at most, between two places where they could stop."""
        return max(0, self.pace[1]) / 1e6 if self.pace else 0.0

    @property
    def trains_unsaved(self) -> bool:
        """Whether they train with the library, and one of them has saved nothing yet."""
        return bool(self.pace) and self.pace[1] >= 0 > self.pace[2]


@dataclass(frozen=True, slots=True)
class Lost:
    """An agent is gone."""

    reason: str


@dataclass(frozen=True, slots=True)
class Gone:
    """A process that brings up agents has ended."""

    started: Started


Entry = tuple[Agent | None, Any]
"""Who says it, if an agent does, and what has happened."""
