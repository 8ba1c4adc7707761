"""The agent's connection to its controller: reached with retries, and lost once."""

import asyncio
import itertools
import logging
import random
import time
from collections.abc import Callable
from typing import Protocol

from echelon.launch.agent.orphans import answers_at
from echelon.launch.protocol.link import Link, connect
from echelon.launch.protocol.messages import Message, Pulse

_logger = logging.getLogger(__name__)
_REACH_S = 60.0
"""How long to try to reach the controller."""
_REFUSED_S = 15.0
"""The same where the connection is refused: nothing listens there."""
_PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.6)
"""The longest pause after each attempt; the last value applies to all further attempts."""


class ControllerListener(Protocol):
    """Receives what happens on the connection."""

    def controller_accepted(self, own_address: str) -> None:
        """Handle that the controller has accepted us, and reached us at this address."""

    def controller_ordered(self, message: Message) -> None: ...

    def controller_lost(self) -> None: ...


class ControllerLink:
    """See the module."""

    def __init__(
        self, candidates: list[tuple[str, int]], key: bytes, log: Callable[[str], None]
    ) -> None:
        """Prepare it.

        Args:
            candidates: addresses and ports at which the controller may be reached.
            key: proves that we belong to the run.
            log: writes a line to the agent's own log.
        """
        self.candidates = candidates
        self._key, self._log = key, log
        self._link: Link | None = None
        self._listener: ControllerListener | None = None
        self._accepted: asyncio.Future[bool] | None = None
        """Whether the controller accepts the connection that is being established."""

    async def reach(self, listener: ControllerListener) -> None:
        """Connect and authenticate, with retries: a flood of other connections may keep us out.

        Raises:
            OSError: the controller cannot be reached, or does not accept us.
        """
        self._listener = listener
        began_s = time.monotonic()
        for attempt in itertools.count():
            failure: OSError = ConnectionAbortedError("it did not accept the connection")
            self._accepted = asyncio.get_running_loop().create_future()
            try:
                await connect(self.candidates, self._make_link, attempt=attempt)
            except OSError as error:
                failure = error
                _logger.info("cannot connect to %s: %s", self.candidates, error)
            else:
                if await self._accepted:
                    return
            patience_s = _REFUSED_S if isinstance(failure, ConnectionRefusedError) else _REACH_S
            if time.monotonic() - began_s > patience_s:
                raise failure
            # Random, so that agents that were refused together do not retry together.
            await asyncio.sleep(random.uniform(0, _PAUSES_S[min(attempt, len(_PAUSES_S) - 1)]))  # noqa: S311

    def say(self, message: Message) -> None:
        """Send a message; does nothing without a connection."""
        if self._link is not None:
            self._link.say(message)

    def beat(self, heartbeat: Message, paused_s: float) -> None:
        """Send a heartbeat; see `Link.beat`."""
        if self._link is not None:
            self._link.beat(heartbeat, paused_s)

    def host_answers(self) -> bool:
        """Tell whether the controller's host responds at the address of the lost connection."""
        reached = self._link.peer_address if self._link else ""
        return any(answers_at(*one) for one in self.candidates if one[0] == reached)

    def _make_link(self) -> Link:
        return Link(self._key, "agent", opened=self._open, received=self._receive, lost=self._lose)

    def _open(self, link: Link) -> None:
        assert self._listener is not None
        assert self._accepted is not None
        self._link = link
        self._accepted.set_result(True)
        _logger.info("connected to the controller at %s", link.peer_address)
        self._listener.controller_accepted(link.own_address)

    def _receive(self, _link: Link, message: Message) -> None:
        assert self._listener is not None
        if not isinstance(message, Pulse):
            _logger.info("received %s", message)
        self._listener.controller_ordered(message)

    def _lose(self, _link: Link, reason: str) -> None:
        assert self._listener is not None
        assert self._accepted is not None
        self._log(f"connection to the controller lost: {reason}")
        if self._link is not None:
            self._listener.controller_lost()
        elif not self._accepted.done():
            self._accepted.set_result(False)
