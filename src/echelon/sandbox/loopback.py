"""Simulated hosts for any user: each is a port on this machine's loopback interface.

All nodes share one host name and one address, and cannot be disconnected from the network.
"""

import random
import socket
from collections.abc import Sequence

from echelon.errors import NotPermittedError, UnavailableError
from echelon.sandbox.config import LOGIN, Network, SandboxConfig
from echelon.sandbox.layout import Layout
from echelon.sandbox.processes import end_sandbox_processes


class LoopbackHosts:
    """Hosts without namespaces: every program runs on this machine, identified by its port."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def start(self, hosts: Sequence[str]) -> None:
        pass

    def enter(self, host: str) -> list[str]:  # noqa: ARG002  the protocol's
        return []

    def stop(self, host: str) -> None:
        end_sandbox_processes(self._layout, host=host)

    def cut(self, host: str) -> None:
        raise NotPermittedError(
            f"'{host}' has no network of its own: this sandbox was started without root",
            hint=f"start the sandbox as root, or turn the node off: echelon sandbox kill {host}",
        )

    heal = cut

    def cut_hosts(self) -> set[str]:
        return set()


def plan_loopback(config: SandboxConfig) -> Network:
    """Choose free ports on 127.0.0.1."""
    daemons = [LOGIN, "slurmdbd", *config.node_names]
    return Network(
        kind="loopback",
        addresses=dict.fromkeys([LOGIN, *config.node_names], "127.0.0.1"),
        ports=dict(zip(daemons, free_ports(len(daemons)), strict=True)),
        machine=socket.gethostname().partition(".")[0],
    )


def free_ports(count: int) -> list[int]:
    """Return ports that are free now, below the kernel's ephemeral range."""
    found: list[int] = []
    for port in random.sample(range(20000, 32000), 12000):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise UnavailableError(
        f"fewer than {count} ports between 20000 and 32000 are free",
        hint="stop another sandbox: echelon sandbox down --name NAME",
    )
