"""End the job when the controller's host has died.

Jobs run with `--no-kill`, so that a run survives the loss of a node. Slurm then keeps the job for
as long as it has any node, even without the host of the batch script: it would run until its time
limit. Therefore the remaining agents end it. They do not if the controller is alive: it has then
recorded that it lost them, and ends the job itself. There is one exception: Slurm has removed the
controller's host from the job, and with it the batch script.

How long agents wait first depends on the host. If it responds, the job ends by itself. If it does
not, only the agents can end the job; but the network may be interrupted for a moment.
"""

import contextlib
import socket
import time
from collections.abc import Callable, Mapping

from echelon.core.jobs import own_job
from echelon.core.nodes import expand
from echelon.core.shell import Shell
from echelon.core.slurm import scrub
from echelon.core.slurm_text import word
from echelon.errors import EchelonError
from echelon.launch.protocol.rank_environment import HERE
from echelon.run.attempts import orphan
from echelon.run.directory import RunDir
from echelon.run.event_log import EventReader

_LOOKS = 4
_PAUSE_S = 2.0
"""A controller that only crashed ends its job within this time."""
_PROBES = 3
_PROBE_S = 1.0
"""A host that responds to none of these, a second apart, counts as dead."""
_MORE_LOOKS = 40
_SELDOM_S = 15.0
"""Slurm usually waits five minutes before it removes an unresponsive host from a job."""


def end_orphaned_job(
    run: RunDir,
    attempt: int,
    environ: Mapping[str, str],
    shell: Shell,
    *,
    requeue: bool,
    pid: int,
    answers: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """End the job of this agent, unless Slurm does so itself.

    Args:
        run: the run.
        attempt: its attempt.
        environ: the agent's variables.
        shell: runs programs.
        requeue: whether Slurm is asked to start the job again.
        pid: the agent's pid.
        answers: tells whether the controller's host responds.
        sleep: pauses; replaced in tests.
    """
    job_id = own_job(environ)
    if not job_id or HERE in environ:
        return  # not in a job, or in a job that is not the run's own
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
            elif look >= _LOOKS or (dead and state):  # otherwise this node may be cut off
                break
        else:
            return
        orphan(run, attempt)
        end = ["scontrol", "requeue", job_id] if requeue else ["scancel", job_id]
        shell.run(end, env=own, timeout_s=60)


def answers_at(address: str, port: int) -> bool:
    """Tell within a second whether a host responds; a refused connection is a response."""
    began_s = time.monotonic()
    try:
        socket.create_connection((address, port), timeout=_PROBE_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:  # a time-out, or no route
        time.sleep(max(0.0, began_s + _PROBE_S - time.monotonic()))
        return False
    return True


def _is_without_its_host(shown: str) -> bool:
    """Tell whether Slurm has removed the host of the batch script from the job."""
    host, nodes = word(shown, "BatchHost"), word(shown, "NodeList")
    return bool(host and nodes) and host not in expand(nodes)


def _is_missed(run: RunDir, attempt: int, *, name: str, pid: int) -> bool:
    """Tell whether the controller has recorded our loss: then it is alive and handles the job."""
    # Every agent loads this module at its start, and few need the events.
    from echelon.run.events import AgentLost, ControllerEvent  # noqa: PLC0415

    records = EventReader(run.events_of(f"controller-{attempt}"), ControllerEvent).read()
    lost = (one.event for one in records if isinstance(one.event, AgentLost))
    return any((one.name, one.pid) == (name, pid) for one in lost)
