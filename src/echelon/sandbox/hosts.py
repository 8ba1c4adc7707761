"""What a sandbox needs of its simulated machines, whichever way they are made.

namespaces.py makes them as root, loopback.py without.
"""

from collections.abc import Sequence
from typing import Protocol


class Hosts(Protocol):
    """What the cluster needs of its machines, whichever way they are made."""

    def start(self, hosts: Sequence[str]) -> None:
        """Make them: ready to run programs, and reaching each other."""

    def enter(self, host: str) -> list[str]:
        """Return the beginning of a command line that runs a program on the host."""

    def stop(self, host: str) -> None:
        """Turn it off: everything on it is gone when this returns."""

    def cut(self, host: str) -> None:
        """Unplug its network cable."""

    def heal(self, host: str) -> None:
        """Plug it in again."""

    def cut_hosts(self) -> set[str]:
        """Return those that are unplugged."""
