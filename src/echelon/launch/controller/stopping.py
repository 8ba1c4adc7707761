"""Where all ranks stop: agreed in two phases, because a step number in a message is already stale.

The controller proposes a place a little ahead. Ranks that reach it wait there; if some are past it
already, the controller proposes a later one. Once all wait, it commits, and all stop there after
the same number of steps. A place is a count of the points at which a rank could stop.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable

from echelon.launch.backends.stop import Stop
from echelon.launch.protocol.messages import Commit, End, Pace, Place, Propose
from echelon.spec.job_spec import JobSpec

WITHDRAWN = -1
"""No place: ranks that wait at another one continue."""
_FAR = 64


class StopConsensus:
    """The controller's side. Pure: takes the agents' answers and returns what to send them."""

    def __init__(self, nodes: Iterable[int], generation: int) -> None:
        self._nodes, self._generation = set(nodes), generation
        self._answers: dict[int, Place] = {}
        self._proposed = 0
        self._margin = 1
        self.committed = False
        self.unresponsive = False
        """Whether some rank does not listen, so that there will be no consensus."""

    def begin(self) -> Propose:
        """Return the first question, which only asks how far each rank is."""
        return Propose(generation=self._generation, place=0)

    def hear(self, node: int, answer: Place) -> Propose | Commit | None:
        """Take an agent's answer; return what to send to all agents once all have answered."""
        if self.committed or answer.proposed != self._proposed or node not in self._nodes:
            return None
        self._answers[node] = answer
        if answer.furthest < 0:
            self.unresponsive = True
        if self.unresponsive or self._answers.keys() != self._nodes:
            return None
        if self._proposed and all(known.waiting for known in self._answers.values()):
            self.committed = True
            return Commit(generation=self._generation, place=self._proposed)
        furthest = max(known.furthest for known in self._answers.values())
        self._proposed = furthest + self._margin
        self._margin = min(_FAR, 2 * self._margin)
        self._answers = {}
        return Propose(generation=self._generation, place=self._proposed)


KILL_S = 3.0
"""Grace period of ranks that did not reach an agreed place, before they are killed."""


def order_end(generation: int, stop: Stop | None, request: JobSpec | None, *, now_s: float) -> End:
    """Return the order to end ranks: a signal first, if there is time.

    Args:
        generation: whose ranks.
        stop: why the run stops; None if the generation has failed.
        request: the request, for ranks that do not listen; None for those that do.
        now_s: the time, by the clock of the stop's deadline.
    """
    if not stop or stop.at_once:
        return End(generation=generation)
    left_s = math.inf
    if stop.deadline_s is not None:
        left_s = max(0.0, stop.deadline_s - now_s)
    grace_s, ask = float(request.grace_s) if request else KILL_S, stop.ask
    if request and request.limit_lead_s and request.limit_signal and stop.cause == "time limit":
        # It wants a warning, and uses the time that is left as it likes.
        grace_s, ask = max(grace_s, request.limit_lead_s), request.limit_signal.number
    return End(
        generation=generation, grace_s=min(grace_s, left_s), signal=0 if stop.signalled else ask
    )


def are_about_to_listen(stop: Stop | None, paces: Iterable[Pace], *, listened: bool) -> bool:
    """Tell whether ranks that do not listen yet should be left alone until the stop's deadline.

    While they start they have nothing to save, and a signal would end them. With the time that is
    left they may take a step, so that the job was not in vain.

    Args:
        stop: why the run stops.
        paces: of the agents' ranks.
        listened: whether ranks of an earlier attempt did.
    """
    has_time = stop is not None and stop.deadline_s is not None
    return listened and has_time and all(pace.stop_interval_us < 0 for pace in paces)


class Reason:
    """Asks the cluster for the reason of a stop while ranks stop: a preemption leaves little time.

    The answer is posted, because it may be more urgent than the signal was.
    """

    def __init__(
        self,
        stop: Stop | None,
        explain: Callable[[Stop], Awaitable[Stop]],
        post: Callable[[Stop], None],
    ) -> None:
        self._first, self._explain, self._post = stop, explain, post
        self._asking: asyncio.Task[Stop] | None = None
        if stop and not stop.at_once:
            self._asking = asyncio.get_running_loop().create_task(self._ask(stop))

    async def _ask(self, stop: Stop) -> Stop:
        explained = await self._explain(stop)
        if explained != stop:
            self._post(explained)
        return explained

    async def settle(self, last: Stop) -> Stop:
        """Return the stop that counts, as the cluster explains it: the first, or a user's later.

        A user who ends a run while it saves before its time limit does not want it to continue.
        """
        if self._first is None or self._asking is None:
            return await self._explain(last)
        explained = await self._asking
        if last.cause not in (self._first.cause, explained.cause):
            last = await self._explain(last)
            if last.cause == "cancelled":
                return last
        return explained
