"""Variables of a login on a host that queries need, such as the PATH of Slurm's programs.

A login shell may take longer than the command: it loads modules and waits for file servers. So
commands that start nothing use the variables of the last login, for an hour or until a profile is
edited. Other variables are not kept, because they may hold secrets.
"""

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from echelon.core.atomic_file import write_atomic
from echelon.core.records import find_record

_NAMES = frozenset(
    {
        *("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ"),
        *("XDG_STATE_HOME", "XDG_CONFIG_HOME", "RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"),
    }
)
_PREFIXES = ("SLURM_", "SQUEUE_", "SACCT_", "SCONTROL_", "SCANCEL_", "ECHELON_")
_KEPT_S = 3600
_PROFILES = (
    *("/etc/environment", "/etc/profile", "/etc/profile.d", "/etc/bash.bashrc", "/etc/bashrc"),
    *("/etc/zshenv", "/etc/zprofile", "/etc/zshrc", "/etc/zsh"),
    *("~/.profile", "~/.bash_profile", "~/.bash_login", "~/.bashrc", "~/.kshrc"),
    *("~/.zshenv", "~/.zprofile", "~/.zshrc", "~/.zlogin", "~/.pam_environment"),
)


def recall(folder: Path, environ: Mapping[str, str], now_s: float) -> dict[str, str] | None:
    """Return the variables of the last login on this host; None if they are missing or outdated."""
    with contextlib.suppress(OSError, KeyError, TypeError, AttributeError):
        known = find_record(_file(folder))
        fresh = 0 <= now_s - known["time_s"] < _KEPT_S
        if fresh and known["profiles"] == _describe_profiles(environ):
            return {str(name): str(value) for name, value in known["environ"].items()}
    return None


def remember(folder: Path, environ: Mapping[str, str], now_s: float) -> None:
    """Keep the variables of a login."""
    kept = {
        name: value
        for name, value in environ.items()
        if name in _NAMES or name.startswith(_PREFIXES)
    }
    known = {"time_s": now_s, "profiles": _describe_profiles(environ), "environ": kept}
    with contextlib.suppress(OSError, ValueError):
        write_atomic(_file(folder), json.dumps(known), sync=False)


def _file(folder: Path) -> Path:
    # Several login hosts may share the home directory.
    return folder / f"login-{os.uname().nodename}.json"


def _describe_profiles(environ: Mapping[str, str]) -> str:
    found = [environ.get("SHELL", "")]
    for path in _PROFILES:
        with contextlib.suppress(OSError):
            status = Path(path.replace("~", environ.get("HOME", ""), 1)).stat()
            found.append(f"{path} {status.st_size} {status.st_mtime_ns}")
    return "\n".join(found)


def enter(folder: Path, *, light: bool) -> None:
    """Set the variables of the last login, or keep those of this one.

    Args:
        folder: the folder of this version of Echelon on the host.
        light: whether this process was started without a login. If no variables are known, it is
            replaced by one with a login.
    """
    if not light:
        remember(folder, os.environ, time.time())
        return
    known = recall(folder, os.environ, time.time())
    if known is None:
        os.execv("/bin/sh", ["/bin/sh", str(folder / "echelon")])  # noqa: S606  starts a login
    os.environ |= known
