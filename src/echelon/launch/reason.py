"""Why a run is to stop: a signal alone does not say, and several may come one after the other."""

import asyncio
from collections.abc import Awaitable, Callable

from echelon.launch.entries import Stop


class Reason:
    """Asks the cluster while ranks come to a place: who preempts gives little time.

    What it says is posted, for it may be more urgent than the signal was.
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
        """Return which stop counts, in the cluster's words: the first, unless a user's came later.

        Who ends a run while it saves before its time limit does not want it to go on.
        """
        if self._first is None or self._asking is None:
            return await self._explain(last)
        explained = await self._asking
        if last.cause not in (self._first.cause, explained.cause):
            last = await self._explain(last)
            if last.cause == "cancelled":
                return last
        return explained
