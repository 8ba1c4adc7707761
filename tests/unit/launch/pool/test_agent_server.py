"""Who is let in by a controller, and what becomes of others; with real sockets: tests/local."""

import asyncio
import errno
import socket
from contextlib import ExitStack

import pytest

from echelon.errors import UnavailableError
from echelon.launch.pool import agent_server as module
from echelon.launch.pool.agent_server import AgentServer
from echelon.launch.protocol.messages import Hello, Note, Pulse
from echelon.launch.protocol.wire import GREETING, Channel

HELLO = Hello(node=0, name="n", host="h", addresses=[])


@pytest.fixture
def told():
    return []


@pytest.fixture
def server(told):
    return AgentServer(
        1,
        received=lambda agent, message: told.append((agent.node, message)),
        lost=lambda agent, reason: told.append((agent.node, reason)),
        note=lambda kind, **data: told.append((kind, data["count"])),
    )


def test_an_agent_is_one_from_its_greeting_on(server, told):
    link = server.make_link()
    for message in (Pulse(), Note(text="early"), HELLO, Pulse()):
        link._received(link, message)
    link._lost(link, "it was killed")
    assert told == [(0, HELLO), (0, Pulse()), (0, "it was killed")]


def test_of_strangers_the_first_is_told_of_and_then_every_thousandth(server, told):
    for _ in range(2001):
        link = server.make_link()
        link._lost(link, "it does not know the key")
    assert told == [("stranger", count) for count in (1, 1000, 2000)]


def test_where_a_knock_is_replayed_too_often_the_oldest_goes_and_no_agent(server, monkeypatch):
    dropped = []
    monkeypatch.setattr(
        "echelon.launch.protocol.link.Link.drop", lambda link, _: dropped.append(link)
    )
    monkeypatch.setattr(module, "STRANGERS", 8)
    agent, *replays = [server.make_link() for _ in range(9)]
    agent._opened(agent)
    replays += [server.make_link() for _ in range(3)]
    assert dropped == replays[:2]


def among_silent_strangers(server, scenario):
    """Run a scenario at an open server, with as many silent connections as it keeps."""

    async def limited():
        (place,) = await server.open(["127.0.0.1"])
        address, _, port = place.rpartition(":")
        with ExitStack() as stack:

            async def connect():
                link = stack.enter_context(socket.socket())
                link.setblocking(False)
                await asyncio.get_running_loop().sock_connect(link, (address, int(port)))
                return link

            async with asyncio.timeout(20):
                await scenario(connect, [await connect() for _ in range(module._room())])
            server.close()

    asyncio.run(limited())


async def hear(link, size=4096):
    return await asyncio.get_running_loop().sock_recv(link, size)


@pytest.mark.usefixtures("few")
def test_a_knock_is_heard_among_silent_strangers_who_lose_their_places(server):
    async def scenario(connect, silent):
        loop, agent = asyncio.get_running_loop(), Channel(server.key, "agent")
        first = await connect()
        await loop.sock_sendall(first, agent.take_outgoing())
        agent.receive(await hear(first))
        # So many more that each place is another's by now; the agent keeps its own.
        crowd = [await connect() for _ in range(2 * len(silent))]
        assert [await hear(link) for link in silent] == [b""] * len(silent)
        await loop.sock_sendall(first, agent.take_outgoing())
        agent.receive(await hear(first))
        assert agent.open
        assert crowd

    among_silent_strangers(server, scenario)


@pytest.mark.usefixtures("few")
def test_first_words_in_portions_are_put_together(server):
    async def scenario(connect, _silent):
        agent, link = Channel(server.key, "agent"), await connect()
        for byte in agent.take_outgoing():
            await asyncio.get_running_loop().sock_sendall(link, bytes([byte]))
        agent.receive(await hear(link))
        await asyncio.get_running_loop().sock_sendall(link, agent.take_outgoing())
        agent.receive(await hear(link))
        assert agent.open

    among_silent_strangers(server, scenario)


def test_a_stranger_hears_nothing_and_has_no_more_time_than_others(server, told, monkeypatch):
    monkeypatch.setattr(module, "HANDSHAKE_S", 0.1)
    monkeypatch.setattr(module, "STRANGERS", 1)

    async def scenario(_connect, silent):
        assert [await hear(link) for link in silent] == [b""]
        assert told == [("stranger", 1)]

    among_silent_strangers(server, scenario)


@pytest.mark.usefixtures("few")
def test_where_no_file_is_left_strangers_make_room(server, told, monkeypatch):
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)

    async def scenario(connect, silent):
        (listener,) = server._listeners
        refusing = Refusing(listener)
        server._listeners = [refusing]
        asyncio.get_running_loop().remove_reader(listener)
        server._resume(refusing)
        agent, link = Channel(server.key, "agent"), await connect()
        await asyncio.get_running_loop().sock_sendall(link, agent.take_outgoing())
        assert (await hear(link)).startswith(GREETING)
        assert [await hear(link) for link in silent] == [b""] * len(silent)
        assert told == [("stranger", 1)]

    among_silent_strangers(server, scenario)


class Refusing:
    """A listener that fails once."""

    def __init__(self, listener):
        self._listener, self._failures = listener, 1
        self.fileno, self.close = listener.fileno, listener.close

    def accept(self):
        if self._failures:
            self._failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._listener.accept()


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(module, "STRANGERS", 8)


def test_where_none_of_our_addresses_is_ours_that_is_said(server):
    with pytest.raises(UnavailableError, match=r"at none of 192\.0\.2\.1"):
        asyncio.run(server.open(["192.0.2.1"]))
