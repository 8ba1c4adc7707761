"""Runs `echelon` as macOS would: `python macos.py ps` without what only Linux has.

macOS has, for example, os.SEEK_DATA, os.preadv, os.sendfile and O_CLOEXEC, but no /proc, no /sys,
and none of the names below; `mypy --platform darwin` reports each of them.
"""

import errno
import fcntl
import os
import resource
import select
import signal
import socket
import sys
import time

ABSENT = {
    os: (
        *("sched_getaffinity", "sched_setaffinity", "sched_setscheduler", "sched_getscheduler"),
        *("pidfd_open", "memfd_create", "eventfd", "setns", "unshare", "splice", "pipe2"),
        *("listxattr", "getxattr", "setxattr", "removexattr", "copy_file_range", "getrandom"),
        *("fdatasync", "posix_fallocate", "posix_fadvise", "getresuid", "getresgid", "setresuid"),
        *("setresgid", "waitid", "P_PIDFD", "O_PATH", "O_TMPFILE", "O_DIRECT", "O_NOATIME"),
        *("O_RSYNC", "O_LARGEFILE", "RWF_NOWAIT", "MFD_CLOEXEC", "EFD_CLOEXEC"),
    ),
    select: ("epoll", "EPOLLIN"),
    signal: (
        *("pidfd_send_signal", "sigtimedwait", "sigwaitinfo", "SIGRTMIN", "SIGRTMAX", "SIGPWR"),
        *("SIGPOLL", "SIGSTKFLT"),
    ),
    socket: (
        *("SOCK_CLOEXEC", "SOCK_NONBLOCK", "SO_PEERCRED", "SO_BINDTODEVICE", "AF_NETLINK"),
        *("AF_VSOCK", "TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "MSG_CMSG_CLOEXEC"),
    ),
    fcntl: ("F_SETPIPE_SZ", "F_ADD_SEALS", "F_NOTIFY"),
    resource: ("prlimit", "RLIMIT_SIGPENDING", "RLIMIT_MSGQUEUE", "RLIMIT_NICE"),
    time: ("CLOCK_BOOTTIME",),
    errno: ("EREMOTEIO",),
}
"""Module → what it does not have there."""
OPENING = ("open", "os.scandir", "os.listdir", "os.chdir")


def is_absent(path: object) -> bool:
    """Tell whether a path is below a folder that only Linux has."""
    if not isinstance(path, str | bytes | os.PathLike):
        return False
    text = os.fsdecode(path)
    return any(text == top or text.startswith(f"{top}/") for top in ("/proc", "/sys"))


def refuse(event: str, arguments: tuple) -> None:
    """Audit hook: refuse to open what is not there."""
    if event in OPENING and is_absent(arguments[0]):
        raise FileNotFoundError(2, "No such file or directory", arguments[0])
    if event == "ctypes.dlopen" and "libc.so" in str(arguments[0]):
        raise OSError(f"dlopen({arguments[0]}): image not found")
    if event == "ctypes.dlsym" and arguments[1] in ("prctl", "unshare", "setns"):
        raise AttributeError(f"symbol not found: {arguments[1]}")


def without(look):
    """Return a function of `os` that finds nothing below /proc and /sys."""

    def looking(path, *arguments, **options):
        if is_absent(path):
            raise FileNotFoundError(2, "No such file or directory", path)
        return look(path, *arguments, **options)

    return looking


def become_macos() -> None:
    """Take away what macOS does not have; before anything of Echelon is imported."""
    loaded = [name for name in sys.modules if name.partition(".")[0] == "echelon"]
    assert not loaded, loaded
    sys.platform = "darwin"
    for module, names in ABSENT.items():
        for name in names:
            if hasattr(module, name):  # it depends on Python's version
                delattr(module, name)
    for name in ("stat", "lstat", "readlink", "access"):
        setattr(os, name, without(getattr(os, name)))
    sys.addaudithook(refuse)


if __name__ == "__main__":
    become_macos()
    sys.argv[0] = "echelon"
    from echelon.cli.main import main

    main()
