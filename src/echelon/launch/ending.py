"""In which way ranks are told to go, when they do not stop at a place of their own. Pure."""

import math
import signal

from echelon.launch.entries import Stop
from echelon.launch.messages import End
from echelon.launch.request import LaunchRequest

KILL_S = 3.0
"""What ranks get between being asked to go, when they would not agree, and being killed."""


def order_end(
    generation: int, stop: Stop | None, deaf: LaunchRequest | None, *, now_s: float
) -> End:
    """Return the order: a signal first, where there is time for that.

    Args:
        generation: whose ranks.
        stop: why the run is to stop; None for ranks whose generation has failed.
        deaf: the wishes for ranks that know of no places; None for those that do.
        now_s: by the clock of the stop's deadline.
    """
    if not stop or stop.at_once:
        return End(generation=generation)
    left_s = math.inf
    if stop.deadline_s is not None:
        left_s = max(0.0, stop.deadline_s - now_s)
    grace_s, ask = float(deaf.grace_s) if deaf else KILL_S, signal.SIGTERM
    if deaf and deaf.lead_s and stop.cause == "time limit":
        # It wants to be warned, and what it does with the time that is left is its own affair.
        grace_s, ask = max(grace_s, deaf.lead_s), signal.Signals(deaf.lead_signal)
    return End(generation=generation, grace_s=min(grace_s, left_s), signal=0 if stop.told else ask)
