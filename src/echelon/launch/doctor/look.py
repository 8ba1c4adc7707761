"""The first look at a node: a few lines of sh that need neither Python nor a shared directory.

A node that cannot be reached, has a different Python or lacks a mount is therefore named and does
not delay the others. The script prints each step before it runs, so the last one is where it hangs.
"""

import re

from echelon.launch.doctor.answers import read_count
from echelon.launch.doctor.record import Look

WAIT_S = 3
"""How long a node waits for the file that was just written."""
SCRIPT = r"""
folder=$1 nonce=$2 python=$3
echo "host=$(uname -n)"
echo "clock=$(date +%s.%N)"
while IFS= read -r line; do echo "limit=$line"; done < /proc/self/limits
echo "shm=$(df -Pk /dev/shm 2>/dev/null | tail -n 1)"
echo "at=the directory $folder"
if [ -d "$folder" ]; then
    late=0
    while [ "$(cat "$folder/nonce" 2>/dev/null)" != "$nonce" ] && [ $late -lt WAIT ]; do
        sleep 1
        late=$((late + 1))
    done
    if [ "$(cat "$folder/nonce" 2>/dev/null)" = "$nonce" ]; then echo folder=seen
    elif [ -e "$folder/nonce" ] || [ -n "$(ls "$folder" 2>/dev/null)" ]; then echo folder=stale
    else echo folder=missing; fi
    echo "late=$late"
    echo "type=$(stat -f -c %T "$folder" 2>/dev/null)"
else
    echo folder=missing
fi
echo "at=the Python $python"
"$python" -c 'import os, sys
print("python=" + os.path.realpath(sys.executable))
print("version=%d.%d.%d" % sys.version_info[:3])
print("prefix=" + sys.prefix)' 2>&1
echo "code=$?"
echo "at="
""".replace("WAIT", str(WAIT_S))
_CLOCK = re.compile(r"[0-9]{1,12}(\.[0-9]{0,9})?N?")
"""Seconds; a `date` without %N prints whole seconds and an 'N'."""
_LIMITS = {"Max open files": "files", "Max locked memory": "locked", "Max processes": "processes"}


def parse_look(text: str, *, asked_s: float, answered_s: float, error: str = "") -> Look:
    """Parse the script's output. Pure.

    Args:
        text: the output; lines may be missing.
        asked_s: our time of day before the script was started.
        answered_s: our time of day after its answer; its clock was read between the two.
        error: why the script failed, or ''.
    """
    words: dict[str, str] = {}
    limits: dict[str, int] = {}
    other = []
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if name == "limit" and equals:
            limits |= _parse_limit(value)
        elif equals and name in _WORDS:
            words[name] = value.strip()
        elif line.strip():
            other.append(line.strip())
    if "host" not in words:
        return Look(error=error or " ".join(other[-1:]) or "no output")
    low_s, high_s = _skew(words.get("clock", ""), asked_s, answered_s)
    code = words.get("code", "")
    return Look(
        error=_told(words, error),
        hostname=words["host"],
        skew_low_s=low_s,
        skew_high_s=high_s,
        folder=words.get("folder", ""),
        folder_late_s=read_count(words.get("late", ""), 0),
        folder_type=words.get("type", ""),
        python=words.get("python", ""),
        python_version=words.get("version", ""),
        python_prefix=words.get("prefix", ""),
        python_error=(other or [f"exit code {code}"])[-1] if code not in ("", "0") else "",
        limits=limits,
        shm_mib=_parse_room(words.get("shm", "")),
    )


_WORDS = frozenset(
    {
        *("host", "clock", "shm", "at", "folder", "late", "type"),
        *("python", "version", "prefix", "code"),
    }
)


def _told(words: dict[str, str], error: str) -> str:
    """Return why the script did not finish, and at which step."""
    if "at" in words and not words["at"]:
        return ""
    where = f" while checking {words['at']}" if words.get("at") else ""
    return f"{error or 'the check stopped'}{where}"


def _skew(clock: str, asked_s: float, answered_s: float) -> tuple[float, float]:
    if not _CLOCK.fullmatch(clock):
        return 0.0, 0.0
    its_s = float(clock.removesuffix("N"))
    coarse_s = 0.0 if re.search(r"\.\d", clock) else 1.0
    return its_s - answered_s, its_s + coarse_s - asked_s


def _parse_limit(line: str) -> dict[str, int]:
    """`Max open files            1024                 524288               files`."""
    for title, name in _LIMITS.items():
        if line.startswith(title):
            words = line.removeprefix(title).split()
            soft = words[0] if words else ""
            value = read_count(soft, -1)
            if name == "locked":
                return {"locked_kib": value >> 10 if value >= 0 else -1}
            return {name: value}
    return {}


def _parse_room(line: str) -> int:
    """`tmpfs  4058312  0  4058312  0% /dev/shm`, in KiB."""
    words = line.split()
    return read_count(words[1], -1) >> 10 if len(words) >= 6 else -1
