"""Addresses of this host, from the kernel: host names may resolve to anything or not at all."""

import array
import fcntl
import ipaddress
import os
import socket
import struct
from pathlib import Path

LOOPBACK = "127.0.0.1"
_SIOCGIFCONF = 0x8912
_IFREQ = 40  # size of one entry on 64-bit Linux
_NAME = 16


def interface_addresses() -> list[tuple[str, str]]:
    """Return (interface, IPv4 address) of all interfaces that are up, in the kernel's order."""
    room = array.array("B", bytes(_IFREQ * 256))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("iL", len(room), room.buffer_info()[0])
        used, _ = struct.unpack("iL", fcntl.ioctl(probe, _SIOCGIFCONF, request))
    found = []
    for start in range(0, used, _IFREQ):
        entry = room[start : start + _IFREQ].tobytes()
        name = entry[:_NAME].partition(b"\0")[0].decode(errors="replace").partition(":")[0]
        found.append((name, socket.inet_ntoa(entry[_NAME + 4 : _NAME + 8])))
    return found


def host_addresses() -> list[str]:
    """Return the addresses at which others may reach this host."""
    found = [address for _, address in interface_addresses()]
    return [a for a in found if not ipaddress.ip_address(a).is_loopback]


def address_towards(peer: str) -> str:
    """Return our address that the kernel would use to reach a peer; empty if there is no route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((peer, 9))  # sends nothing
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def interface_towards(peer: str) -> str:
    """Return the name of the interface that leads to a peer; empty if none does."""
    own = address_towards(peer)
    return next((name for name, address in interface_addresses() if address == own), "")


def host_identity() -> str:
    """Return an id that is equal for processes that share a network stack."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"  # noqa: PTH116  a link to nowhere
