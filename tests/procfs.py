"""What the kernel knows of processes: their arguments, their variables, where they listen."""

import os
import socket
import struct
from pathlib import Path

LISTEN = "0A"
"""The state's number in the kernel's tables."""


def all_pids():
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def cmdline(pid):
    return _read(pid, "cmdline")


def environ_of(pid):
    """What a process was started with."""
    return _read(pid, "environ")


def _read(pid, name):
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it is gone, or another user's
        return b""


def sockets(pid):
    """Return the inodes of a process's sockets, as the kernel's tables have them."""
    found = set()
    try:
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            kind, _, inode = os.readlink(handle).partition(":[")  # noqa: PTH115  it leads nowhere
            if kind == "socket":
                found.add(inode.rstrip("]"))
    except OSError:  # it is gone, or another user's
        return set()
    return found


def listeners(pid):
    """Return (address, port) of every socket on which a process listens."""
    own, found = sockets(pid), []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in _read(pid, f"net/{table}").decode().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTEN and words[9] in own:
                address, port = words[1].split(":")
                found.append((_address(address, family), int(port, 16)))
    return found


def unix_names(pid):
    """Return inode → name of every local socket that a process could see; '' has none."""
    lines = _read(pid, "net/unix").decode(errors="replace").splitlines()[1:]
    rows = [line.split(maxsplit=7) for line in lines]
    return {row[6]: row[7] if len(row) > 7 else "" for row in rows}


def _address(text, family):
    """The kernel prints 32-bit words as the machine has them in memory."""
    words = [int(text[start : start + 8], 16) for start in range(0, len(text), 8)]
    return socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words))
