"""Facts that a node's probe collects locally: names, interface, devices, files."""

import asyncio
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from echelon.core import addresses

RESOLVE_S = 5.0
"""Limit for resolving a name; an unreachable resolver is tried twice, for 5 s each."""
_GLANCE_S = 0.05
_RDMA = Path("/sys/class/infiniband")


async def find_network(peers: Mapping[str, str], towards: str) -> dict[str, Any]:
    """Return the interface that leads to the coordinator, and names that do not resolve.

    Args:
        peers: name → address of the nodes to resolve.
        towards: the coordinator's address.
    """
    interface = addresses.interface_towards(towards)
    checked = await asyncio.gather(*(_check_name(*peer) for peer in peers.items()))
    return {
        "interface": interface,
        "mtu": read_mtu(interface),
        "addresses": addresses.host_addresses(),
        "unresolved": [wrong for wrong, _ in checked if wrong],
        "unnamed": [address for _, address in checked if address],
        "rdma": has_rdma(),
    }


def has_rdma() -> bool:
    try:
        return any(_RDMA.iterdir())
    except OSError:
        return False


def read_mtu(interface: str) -> int:
    try:
        return int(Path("/sys/class/net", interface, "mtu").read_text())
    except (OSError, ValueError):
        return 0


async def _check_name(name: str, address: str) -> tuple[str, str]:
    """Return the name if it resolves wrongly, and the address if it has no name; '' otherwise."""
    loop = asyncio.get_running_loop()

    async def look_up() -> set[str]:
        found = await loop.getaddrinfo(name, None, family=socket.AF_INET)
        return {str(entry[4][0]) for entry in found}

    try:
        async with asyncio.timeout(RESOLVE_S):
            known = await look_up()
        wrong = "" if address in known else f"{name} ({', '.join(sorted(known))})"
    except OSError:  # a time-out is one too
        wrong = name
    try:
        async with asyncio.timeout(RESOLVE_S):
            await loop.getnameinfo((address, 0), socket.NI_NAMEREQD)
    except OSError:
        return wrong, address
    return wrong, ""


async def await_text(path: Path, text: str, limit_s: float) -> float:
    """Return the seconds until a file contains a text; -1 if it never does."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while True:
        if await asyncio.to_thread(_read, path) == text:
            return round(loop.time() - began_s, 3)
        if loop.time() - began_s > limit_s:
            return -1.0
        await asyncio.sleep(_GLANCE_S)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
