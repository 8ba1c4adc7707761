"""Simulated hosts for any user: each is a port of this machine.

All nodes share one host name and one address, and cannot be disconnected from the network.
"""

import random
import socket
from collections.abc import Sequence

from echelon.core.addresses import address_towards
from echelon.errors import NotPermittedError, UnavailableError
from echelon.sandbox.config import LOGIN, SSHD, Network, SandboxConfig
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


def plan_loopback(config: SandboxConfig, machine: str) -> Network:
    """Choose free ports of this machine, whose host name is given."""
    daemons = [LOGIN, "slurmdbd", SSHD, *config.node_names]
    own = find_address(machine)
    # Told to listen at one address only, Slurm's programs take the one of their host name, and call
    # each other back where connections come from: not from 127.0.1.1, which Debian assigns.
    confined = bool(own) and address_towards(own) == own
    return Network(
        kind="loopback",
        addresses=dict.fromkeys([LOGIN, *config.node_names], own if confined else "127.0.0.1"),
        ports=dict(zip(daemons, free_ports(len(daemons)), strict=True)),
        machine=machine.partition(".")[0],
        confined=confined,
    )


def find_address(host: str) -> str:
    """Return a host's IPv4 address; empty if its name does not resolve."""
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET)[0][4][0])
    except OSError:
        return ""


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
