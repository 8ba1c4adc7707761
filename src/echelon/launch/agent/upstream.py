"""A process's connection to the one that it takes orders from: an agent's controller, say."""

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Mapping

from echelon.launch.agent.orphans import answers_at
from echelon.launch.protocol.link import Link, connect
from echelon.launch.protocol.messages import Message
from echelon.launch.protocol.rank_environment import CONTROLLER, parse_candidates

_REACH_S = 60.0
"""How long to try to connect."""
_REFUSED_S = 15.0
"""The same where the connection is refused: nothing listens there."""
_PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.6)
"""The longest pause after each attempt; the last value applies to all further attempts."""


class Upstream:
    """See the module."""

    def __init__(
        self,
        key: bytes,
        environ: Mapping[str, str],
        *,
        opened: Callable[[Link], None],
        received: Callable[[Message], None],
        lost: Callable[[str], None],
    ) -> None:
        """Prepare it.

        Args:
            key: the key that both ends know.
            environ: our variables, one of which has the addresses.
            opened: called once the connection is established.
            received: called with each message.
            lost: called with the reason when an established connection has ended.
        """
        self.candidates = parse_candidates(environ[CONTROLLER])
        self._key, self._opened, self._received, self._lost = key, opened, received, lost
        self._link: Link | None = None
        self._accepted: asyncio.Future[bool] | None = None

    async def reach(self) -> None:
        """Connect and authenticate, with retries: a flood of other connections may keep us out.

        Raises:
            OSError: it cannot be reached, or does not accept us.
        """
        began_s = time.monotonic()
        for attempt in itertools.count():
            failure: OSError = ConnectionAbortedError("it did not accept the connection")
            self._accepted = asyncio.get_running_loop().create_future()
            try:
                await connect(self.candidates, self._make_link, attempt=attempt)
            except OSError as error:
                failure = error
            else:
                if await self._accepted:
                    return
            patience_s = _REFUSED_S if isinstance(failure, ConnectionRefusedError) else _REACH_S
            if time.monotonic() - began_s > patience_s:
                raise failure
            # Random, so that processes that were refused together do not retry together.
            await asyncio.sleep(random.uniform(0, _PAUSES_S[min(attempt, len(_PAUSES_S) - 1)]))  # noqa: S311

    def say(self, message: Message) -> None:
        """Send a message; does nothing without a connection."""
        if self._link is not None:
            self._link.say(message)

    def beat(self, heartbeat: Message, paused_s: float) -> None:
        """Send a heartbeat, and notice if those of the other end have stopped."""
        if self._link is not None:
            self._link.beat(heartbeat, paused_s)

    def answers(self) -> bool:
        """Tell whether the host responds at the address of the lost connection."""
        reached = self._link.peer_address if self._link else ""
        return any(answers_at(*one) for one in self.candidates if one[0] == reached)

    def _make_link(self) -> Link:
        return Link(
            self._key,
            "agent",
            opened=self._open,
            received=lambda _link, message: self._received(message),
            lost=self._lose,
        )

    def _open(self, link: Link) -> None:
        assert self._accepted is not None
        self._link = link
        self._accepted.set_result(True)
        self._opened(link)

    def _lose(self, _link: Link, reason: str) -> None:
        if self._link is not None:
            self._lost(reason)
        elif self._accepted is not None and not self._accepted.done():
            self._accepted.set_result(False)
