"""What agents do when their controller's host has died.

With `--no-kill`, without which a run could lose no node, Slurm keeps such a job for as long as it
has any node, and so the one that waits for its end would wait for its time limit. The agents that
are left end it. A controller that lives has written down that it lost them, and ends the job by its
own end; but not if its host was away for so long that Slurm has taken it out of the job, and has
forgotten the batch script with it.
"""

import contextlib
import time
from collections.abc import Callable, Mapping

from echelon.core.events import EventReader
from echelon.core.nodes import expand
from echelon.core.rundir import RunDir
from echelon.core.shell import Shell
from echelon.core.slurm import scrub, word
from echelon.errors import EchelonError
from echelon.launch.attempts import orphan
from echelon.launch.contract import HERE

_LOOKS = 4
_PAUSE_S = 2.0
"""A controller that merely crashed takes its job with it in a moment: that is waited for."""
_MORE_LOOKS = 40
_SELDOM_S = 15.0
"""Slurm waits for a host that does not answer for five minutes, mostly, before it takes it out."""


def end_orphaned_job(
    run: RunDir,
    attempt: int,
    environ: Mapping[str, str],
    shell: Shell,
    *,
    mode: str,
    pid: int,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """End the job that we are in, unless Slurm does so itself.

    Args:
        run: the run.
        attempt: its attempt.
        environ: our variables.
        shell: runs programs.
        mode: the request's `hand_over`.
        pid: the agent's own.
        sleep: waits.
    """
    job_id = environ.get("SLURM_JOB_ID", "")
    if not job_id or HERE in environ:
        return  # nobody's job, or somebody else's
    own = scrub(environ)
    with contextlib.suppress(EchelonError, OSError):
        for look in range(1, _LOOKS + _MORE_LOOKS + 1):
            sleep(_PAUSE_S if look <= _LOOKS else _SELDOM_S)
            shown = shell.run(
                ["scontrol", "--oneliner", "show", "job", job_id], env=own, timeout_s=60
            )
            if word(shown.stdout, "JobState") not in ("RUNNING", ""):
                return
            if _is_missed(run, attempt, name=environ.get("SLURMD_NODENAME", ""), pid=pid):
                if _is_without_its_host(shown.stdout):
                    break
            elif look >= _LOOKS:
                break
        else:
            return
        orphan(run, attempt)
        end = ["scontrol", "requeue", job_id] if mode == "requeue" else ["scancel", job_id]
        shell.run(end, env=own, timeout_s=60)


def _is_without_its_host(shown: str) -> bool:
    """Tell whether Slurm has taken the host of the batch script out of its job."""
    host, nodes = word(shown, "BatchHost"), word(shown, "NodeList")
    return bool(host and nodes) and host not in expand(nodes)


def _is_missed(run: RunDir, attempt: int, *, name: str, pid: int) -> bool:
    """Tell whether the controller has seen us go: so it is there, and has the job in hand."""
    events = EventReader(run.events_of(f"controller-{attempt}")).read()
    ours = {"name": name, "pid": pid}
    return any(event.kind == "lost" and ours.items() <= event.data.items() for event in events)
