"""The interface of a sandbox's simulated hosts.

Implemented in namespaces.py (needs root) and loopback.py (any user).
"""

from collections.abc import Sequence
from typing import Protocol


class Hosts(Protocol):
    """The simulated hosts of a sandbox."""

    def start(self, hosts: Sequence[str]) -> None:
        """Create the hosts, ready to run programs and connected to each other."""

    def enter(self, host: str) -> list[str]:
        """Return the command prefix that runs a program on the host."""

    def stop(self, host: str) -> None:
        """Turn the host off, and wait until all its processes have ended."""

    def cut(self, host: str) -> None:
        """Disconnect the host from the network."""

    def heal(self, host: str) -> None:
        """Reconnect the host to the network."""

    def cut_hosts(self) -> set[str]:
        """Return the disconnected hosts."""
