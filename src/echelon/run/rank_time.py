"""The phases into which the time of ranks is divided, in events and in reports.

A rank that uses the library measures when it had its process group, when its training began, and
how long it then waited. Nothing is known about other ranks: all of their time is in `productive`,
which monitor/accounting.py calls running where no steps are known.
"""

from collections.abc import Mapping

# Phases of a rank's time; `queue` and `launch` come before ranks exist.
RENDEZVOUS, WARM_UP, PRODUCTIVE = "rendezvous", "warm-up", "productive"
DATA_WAIT, STALL, PEER_WAIT = "data wait", "checkpoint stall", "peer wait"
REDONE, RESTART, IDLE = "redone work", "restart", "idle"
PHASES = (RENDEZVOUS, WARM_UP, PRODUCTIVE, DATA_WAIT, STALL, PEER_WAIT, REDONE, RESTART, IDLE)


def divide(measured: Mapping[str, int], *, failed: bool = False, steps: int = 0) -> dict[str, int]:
    """Divide a rank's time so far into phases, in microseconds, by what the rank measured.

    A rank that failed may have made no progress for a while: one unfinished step of that counts as
    redone work, the rest as the time until the failure was detected.
    """
    ran = left = measured.get("ran_us", 0)
    found = dict.fromkeys(PHASES, 0)

    def take(phase: str, wanted: int) -> None:
        nonlocal left
        found[phase] += (taken := min(left, max(0, wanted)))
        left -= taken

    if (met := measured.get("met_us", -1)) >= 0:
        take(RENDEZVOUS, met or ran)
    if (began := measured.get("began_us", -1)) >= 0:
        take(WARM_UP, (began or ran) - found[RENDEZVOUS])
    take(STALL, measured.get("stall_us", -1))
    take(DATA_WAIT, measured.get("data_us", -1))
    take(PEER_WAIT, measured.get("comm_us", -1))
    still = min(left, measured.get("still_us", 0)) if failed else 0
    take(PRODUCTIVE, left - still)
    if steps > 0:
        take(REDONE, found[PRODUCTIVE] // steps)
    take(RESTART, left)
    return found
