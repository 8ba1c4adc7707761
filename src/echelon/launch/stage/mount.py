"""Puts a copy in the place of the original, for this process and its children alone.

A mount namespace of its own is needed for that, and a user namespace for ordinary users. In it,
the user and the group are the same as outside.
"""

import ctypes
import os
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_SLAVE = 1, 32, 4096, 16384, 1 << 19
_MS_KEPT = {"nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 1024, "relatime": 1 << 21}
"""Options that a user namespace must not take away."""

_CAPABILITIES_3 = 0x20080522
_NO_RIGHTS = ctypes.c_uint32 * 6


def mount_copy(copy: str, original: str) -> None:
    """Mount a copy over its original, read-only. This process must have one thread.

    Raises:
        OSError: the kernel does not allow it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    inside = os.getcwd()  # noqa: PTH109
    root = user == 0
    _check(libc.unshare(CLONE_NEWNS if root else CLONE_NEWNS | CLONE_NEWUSER), "unshare")
    if not root:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    # What others mount later appears here too, but not the other way round.
    _check(libc.mount(b"none", b"/", None, _MS_REC | _MS_SLAVE, None), "mount --make-rslave /")
    place = os.fsencode(original)
    _check(libc.mount(os.fsencode(copy), place, None, _MS_BIND | _MS_REC, None), "mount --bind")
    flags = os.statvfs(copy).f_flag
    kept = sum(bit for name, bit in _MS_KEPT.items() if flags & getattr(os, f"ST_{name.upper()}"))
    read_only = _MS_REMOUNT | _MS_BIND | _MS_RDONLY | kept
    _check(libc.mount(b"none", place, None, read_only, None), "mount -o remount,bind,ro")
    os.chdir(inside)  # it may be in what was just covered
    if not root:
        # Nobody has more rights here than outside, not even over one's own files.
        _check(libc.capset((ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0), _NO_RIGHTS()), "capset")


def _check(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
