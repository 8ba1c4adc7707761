"""What happens in an attempt, one event at a time: the types of the agent pool's queue."""

from dataclasses import dataclass, field

from echelon.core.frozen import frozen
from echelon.launch.backends.base import Started
from echelon.launch.backends.stop import Stop
from echelon.launch.pool.hang import Hang
from echelon.launch.protocol.link import Link
from echelon.launch.protocol.messages import Hello, Message, Pace, Pulse


@dataclass(slots=True)
class AgentHandle:
    """The controller's view of an agent that has connected."""

    hello: Hello
    link: Link
    pace: Pace = field(default_factory=Pace)
    """From its last pulse that had ranks."""
    pulse: Pulse = field(default_factory=Pulse)
    """The last one."""
    held: bool = False
    """Whether a rank is blocked on storage, so that not even SIGKILL ends it."""

    @property
    def node(self) -> int:
        return self.hello.node

    @property
    def name(self) -> str:
        return self.hello.name

    def note_saved(self, step: int) -> None:
        """Take note of a checkpoint that one of its ranks reported last."""
        self.pace = self.pace._replace(saved_high=max(self.pace.saved_high, step))

    @property
    def save_s(self) -> float:
        """Longest time that one of its ranks took to save."""
        return max(0, self.pace.save_us) / 1e6

    @property
    def stop_interval_s(self) -> float:
        """Longest time between two points at which its ranks could stop."""
        return max(0, self.pace.stop_interval_us) / 1e6

    @property
    def trains_unsaved(self) -> bool:
        """Whether its ranks train with the library and one of them has not saved yet."""
        return self.pace.stop_interval_us >= 0 > self.pace.saved_low


@frozen
class Received:
    """An agent has sent a message other than a heartbeat; the first one is its greeting."""

    agent: AgentHandle
    message: Message


@frozen
class Lost:
    """The connection to an agent was lost, or its node was excluded."""

    agent: AgentHandle
    reason: str
    excluded: bool = False


@frozen
class StarterExited:
    """A process that starts agents has exited."""

    started: Started
    killed: bool = False
    """Whether by a signal."""


@frozen
class Woken:
    """Something else has changed, which the controller's loops are to look at."""


PoolEvent = Received | Lost | StarterExited | Stop | Hang | Woken
