"""The first look at all nodes: a few lines of sh that need neither Python nor a shared directory.

A node that cannot be reached, has a different Python or lacks a mount is therefore named and does
not delay the others. The script prints each step before it runs, so the last one is where it hangs.
Nodes that do not respond are tried once more: a cloud node, or one that Slurm powered down, may
still be starting.
"""

import asyncio
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from echelon.core.atomic_file import write_atomic
from echelon.core.frozen import frozen
from echelon.core.shell import Shell
from echelon.core.units import counted
from echelon.launch.backends.base import Starter
from echelon.launch.backends.slurm.starter import without_shape
from echelon.launch.doctor.probe_client import ProbeClient
from echelon.launch.doctor.results import Look, read_count
from echelon.launch.doctor.timed_program import run_program


@frozen
class DoctorPaths:
    """Paths that an examination uses."""

    probe: Sequence[str]
    """The command that starts a probe on a node, from a launcher in the shared directory."""
    folder: Path
    """Our part of the shared directory; nodes are checked for seeing it."""
    python: str
    """The Python of the ranks."""
    scratch: Path
    """A directory local to this host."""


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


AT_ONCE = 64
"""Number of steps that run in parallel."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Time limits of one attempt."""

    step_s: int
    """How long Slurm may take to start the step."""
    look_s: float
    """How long the step may take in total."""


FIRST, AGAIN = Turn(20, 30.0), Turn(40, 60.0)


@frozen
class FirstLook:
    """See the module."""

    probes: ProbeClient
    shell: Shell
    starter: Starter
    environ: Mapping[str, str]
    paths: DoctorPaths
    tell: Callable[[str], None]

    async def look(self) -> dict[int, Look]:
        """Return the first look at each node.

        Raises:
            StopError: a stop was requested.
        """
        count = self.starter.nodes
        self.tell(f"first look at {counted(count, 'node')}")
        nonce = secrets.token_hex(8)
        write_atomic(self.paths.folder / "nonce", nonce)
        found = await self._look_at(range(count), nonce, FIRST)
        if silent := [node for node, look in found.items() if not look.hostname]:
            self.tell(f"trying {counted(len(silent), 'node')} again that did not respond")
            found |= await self._look_at(silent, nonce, AGAIN)
        return found

    async def _look_at(self, nodes: Sequence[int], nonce: str, turn: Turn) -> dict[int, Look]:
        room = asyncio.Semaphore(AT_ONCE)
        loop = asyncio.get_running_loop()
        tasks = {node: loop.create_task(self._ask(node, nonce, turn, room)) for node in nodes}
        await self.probes.attend(list(tasks.values()))
        return {node: task.result() for node, task in tasks.items()}

    async def _ask(self, node: int, nonce: str, turn: Turn, room: asyncio.Semaphore) -> Look:
        argv = ["sh", "-c", SCRIPT, "sh", str(self.paths.folder), nonce, self.paths.python]
        if job := self.environ.get("SLURM_JOB_ID", ""):
            argv = [*look_step(job, self.starter.host(node), turn.step_s), *argv]
        async with room:
            asked_s = time.time()
            code, said = await run_program(
                self.shell,
                argv,
                env=without_shape(self.environ),
                log=self.paths.scratch / f"look-{node}-{turn.step_s}.log",
                limit_s=turn.look_s,
            )
            answered_s = time.time()
        error = tell_failure(code, said, turn.look_s)
        return parse_look(said, asked_s=asked_s, answered_s=answered_s, error=error)


def tell_failure(code: int | None, said: str, limit_s: float) -> str:
    """Return why a look failed, with Slurm's message if there is one; empty if it did not. Pure."""
    if code is None:
        return f"no answer within {limit_s:g} s"
    srun = [line for line in said.splitlines() if line.startswith("srun: error:")]
    if srun and code:
        return srun[0].removeprefix("srun: error:").strip()
    return f"the check exited with code {code}" if code else ""


def look_step(job: str, host: str, patience_s: int) -> list[str]:
    """Return the command prefix that runs a step on one node of a job, beside its other steps.

    The step starts in /, because the current directory may be the one that is missing.
    """
    return [
        *("srun", f"--jobid={job}", f"--nodelist={host}", "--nodes=1", "--ntasks=1"),
        *("--overlap", "--cpu-bind=none", "--mem=0", "--gres=none", "--no-kill", "--export=ALL"),
        *(f"--immediate={patience_s}", "--unbuffered", "--input=none", "--chdir=/"),
    ]


def is_well(look: Look) -> bool:
    """Tell whether a probe can be started on the node."""
    return not (look.error or look.python_error) and look.folder == "seen"
