"""What agents do when their controller's host has died.

With `--no-kill`, without which a run could lose no node, Slurm keeps such a job for as long as it
has any node, and so the one that waits for its end would wait for its time limit. The agents that
are left end it. A controller that lives has written down that it lost them, and ends the job by its
own end; but not if its host was away for so long that Slurm has taken it out of the job, and has
forgotten the batch script with it.

How long they wait first depends on the host. One that answers will end the job by itself, if it is
to end. For one that does not answer nobody else will; but it may be the network, for a moment.
"""

import contextlib
import socket
import time
from collections.abc import Callable, Mapping

from echelon.core.nodes import expand
from echelon.core.shell import Shell
from echelon.core.slurm import scrub, word
from echelon.errors import EchelonError
from echelon.launch.protocol.rank_environment import HERE
from echelon.run.attempts import orphan
from echelon.run.directory import RunDir
from echelon.run.event_log import EventReader

_LOOKS = 4
_PAUSE_S = 2.0
"""A controller that merely crashed takes its job with it in a moment: that is waited for."""
_PROBES = 3
_PROBE_S = 1.0
"""A host that answers none of these, a second apart, is taken for dead."""
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
    answers: Callable[[], bool],
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
        answers: tells whether the controller's host does.
        sleep: waits.
    """
    job_id = environ.get("SLURM_JOB_ID", "")
    if not job_id or HERE in environ:
        return  # nobody's job, or somebody else's
    own = scrub(environ)
    with contextlib.suppress(EchelonError, OSError):
        dead = not any(answers() for _ in range(_PROBES))
        for look in range(0 if dead else 1, _LOOKS + _MORE_LOOKS + 1):
            if look:
                sleep(_PAUSE_S if look <= _LOOKS else _SELDOM_S)
            shown = shell.run(
                ["scontrol", "--oneliner", "show", "job", job_id], env=own, timeout_s=60
            )
            state = word(shown.stdout, "JobState")
            if state not in ("RUNNING", ""):
                return
            if _is_missed(run, attempt, name=environ.get("SLURMD_NODENAME", ""), pid=pid):
                if _is_without_its_host(shown.stdout):
                    break
            elif look >= _LOOKS or (dead and state):  # else it may be we who are cut off
                break
        else:
            return
        orphan(run, attempt)
        end = ["scontrol", "requeue", job_id] if mode == "requeue" else ["scancel", job_id]
        shell.run(end, env=own, timeout_s=60)


def answers_at(address: str, port: int) -> bool:
    """Tell within a second whether a host answers; one that refuses a connection does, too."""
    began_s = time.monotonic()
    try:
        socket.create_connection((address, port), timeout=_PROBE_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:  # a time-out, or the network knows no way
        time.sleep(max(0.0, began_s + _PROBE_S - time.monotonic()))
        return False
    return True


def _is_without_its_host(shown: str) -> bool:
    """Tell whether Slurm has taken the host of the batch script out of its job."""
    host, nodes = word(shown, "BatchHost"), word(shown, "NodeList")
    return bool(host and nodes) and host not in expand(nodes)


def _is_missed(run: RunDir, attempt: int, *, name: str, pid: int) -> bool:
    """Tell whether the controller recorded that it lost us: then it is alive and ends the job."""
    # Every agent loads this module at its start, and few need the events.
    from echelon.run.events import AgentLost, ControllerEvent  # noqa: PLC0415

    records = EventReader(run.events_of(f"controller-{attempt}"), ControllerEvent).read()
    lost = (one.event for one in records if isinstance(one.event, AgentLost))
    return any((one.name, one.pid) == (name, pid) for one in lost)
