"""The first look at all nodes: a few lines of sh that need neither Python nor a shared directory.

A node that cannot be reached, has a different Python or lacks a mount is therefore named and does
not delay the others. The script prints each step before it runs, so the last one is where it hangs.
Nodes that do not respond are tried once more: a cloud node, or one that Slurm powered down, may
still be starting.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
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
class Setup:
    """What an examination works with."""

    shell: Shell
    starter: Starter
    environ: Mapping[str, str]
    """The variables of a process in the allocation."""
    probe: Sequence[str]
    """The command that starts a probe on a node, from a launcher in the shared directory."""
    folder: Path
    """Our part of the shared directory; nodes are checked for seeing it."""
    python: str
    """The Python of the ranks."""
    scratch: Path
    """A directory local to this host."""
    tell: Callable[[str], None]
    """Reports progress."""
    short: bool
    """Whether to skip the GPU measurements."""


WAIT_S = 3
"""How long a node waits for the file that was just written."""
SCRIPT = r"""
folder=$1 nonce=$2 python=$3
echo "host=$(uname -n)"
sed -n 's/^Max open files *\([0-9a-z]*\) .*/files=\1/p
s/^Max processes *\([0-9a-z]*\) .*/processes=\1/p
s/^Max locked memory *\([0-9a-z]*\) .*/locked=\1/p' /proc/self/limits
df -Pk /dev/shm 2>/dev/null | sed -n '2s/^[^ ]* *\([0-9]*\) .*/shm=\1/p'
echo "at=the directory $folder"
waited=0
while [ "$(cat "$folder/nonce" 2>/dev/null)" != "$nonce" ] && [ -d "$folder" ] &&
    [ $waited -lt WAIT ]; do
    sleep 1
    waited=$((waited + 1))
done
if [ "$(cat "$folder/nonce" 2>/dev/null)" = "$nonce" ]; then echo folder=seen
elif [ -n "$(ls "$folder" 2>/dev/null)" ]; then echo folder=stale
else echo folder=missing; fi
echo "type=$(stat -f -c %T "$folder" 2>/dev/null)"
echo "at=the Python $python"
"$python" -c 'import os, sys
print("python=" + os.path.realpath(sys.executable))
print("version=%d.%d.%d" % sys.version_info[:3])
print("prefix=" + sys.prefix)' 2>&1
echo "code=$?"
echo "at="
""".replace("WAIT", str(WAIT_S))
_NAMES = frozenset(
    {
        *("host", "files", "processes", "locked", "shm", "at", "folder", "type"),
        *("python", "version", "prefix", "code"),
    }
)


def parse_look(text: str, error: str = "") -> Look:
    """Parse the script's output. Pure.

    Args:
        text: the output; lines may be missing.
        error: why the script failed, or ''.
    """
    values: dict[str, str] = {}
    other = []
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and name in _NAMES:
            values[name] = value.strip()
        elif line.strip():
            other.append(line.strip())
    if "host" not in values:
        return Look(error=error or " ".join(other[-1:]) or "no output")
    step = values.get("at", "its limits")
    counts: dict[str, int] = {
        name: read_count(values[name], -1)
        for name in ("files", "processes", "locked", "shm")
        if name in values
    }
    shm_kib = counts.pop("shm", -1)
    if "locked" in counts:
        counts["locked_kib"] = counts.pop("locked") >> 10
    code = values.get("code", "")
    return Look(
        error=f"{error or 'the check stopped'} while checking {step}" if step else "",
        hostname=values["host"],
        folder=values.get("folder", ""),
        folder_type=values.get("type", ""),
        python=values.get("python", ""),
        python_version=values.get("version", ""),
        python_prefix=values.get("prefix", ""),
        python_error=(other or [f"exit code {code}"])[-1] if code not in ("", "0") else "",
        limits=counts,
        shm_mib=shm_kib >> 10,
    )


AT_ONCE = 64
"""Number of steps that run in parallel."""
LIMIT_S, LONGER_LIMIT_S = 30.0, 60.0
"""How long a look may take, and how long the second one at a node that did not respond."""


async def look_at_nodes(setup: Setup, probes: ProbeClient) -> dict[int, Look]:
    """Return the first look at each node.

    Raises:
        StopError: a stop was requested.
    """
    count = setup.starter.nodes
    setup.tell(f"first look at {counted(count, 'node')}")
    nonce = secrets.token_hex(8)
    write_atomic(setup.folder / "nonce", nonce)
    room = asyncio.Semaphore(AT_ONCE)

    async def look_at(nodes: Sequence[int], limit_s: float) -> dict[int, Look]:
        loop = asyncio.get_running_loop()
        tasks = {
            node: loop.create_task(_look_at(setup, node, nonce, limit_s, room)) for node in nodes
        }
        await probes.attend(list(tasks.values()))
        return {node: task.result() for node, task in tasks.items()}

    looks = await look_at(range(count), LIMIT_S)
    if silent := [node for node, look in looks.items() if not look.hostname]:
        setup.tell(f"trying {counted(len(silent), 'node')} again that did not respond")
        looks |= await look_at(silent, LONGER_LIMIT_S)
    return looks


async def _look_at(
    setup: Setup, node: int, nonce: str, limit_s: float, room: asyncio.Semaphore
) -> Look:
    argv = ["sh", "-c", SCRIPT, "sh", str(setup.folder), nonce, setup.python]
    if job := setup.environ.get("SLURM_JOB_ID", ""):
        argv = [*look_step(job, setup.starter.host(node), limit_s), *argv]
    async with room:
        code, output = await run_program(
            setup.shell,
            argv,
            env=without_shape(setup.environ),
            log=setup.scratch / f"look-{node}-{limit_s:g}.log",
            limit_s=limit_s,
        )
    return parse_look(output, describe_failure(code, output, limit_s))


def describe_failure(code: int | None, output: str, limit_s: float) -> str:
    """Return why a look failed, with Slurm's message if there is one; empty if it did not. Pure."""
    if code is None:
        return f"no answer within {limit_s:g} s"
    srun = [line for line in output.splitlines() if line.startswith("srun: error:")]
    if srun and code:
        return srun[0].removeprefix("srun: error:").strip()
    return f"the check exited with code {code}" if code else ""


def look_step(job: str, host: str, limit_s: float) -> list[str]:
    """Return the command prefix that runs a step on one node of a job, beside its other steps.

    The step starts in /, because the current directory may be the one that is missing. Slurm gets
    two thirds of the time to start it.
    """
    return [
        *("srun", f"--jobid={job}", f"--nodelist={host}", "--nodes=1", "--ntasks=1"),
        *("--overlap", "--cpu-bind=none", "--mem=0", "--gres=none", "--no-kill", "--export=ALL"),
        *(f"--immediate={limit_s * 2 / 3:.0f}", "--unbuffered", "--input=none", "--chdir=/"),
    ]


def can_run_probe(look: Look) -> bool:
    """Tell whether a probe can be started on the node."""
    return not (look.error or look.python_error) and look.folder == "seen"
