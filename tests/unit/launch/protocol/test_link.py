"""Links on real sockets, two ends in one process."""

import asyncio
import socket

import pytest

from echelon.launch.protocol import link as module
from echelon.launch.protocol.link import Link
from echelon.launch.protocol.messages import Leave, Pulse
from echelon.launch.protocol.wire import GREETING, MAX_PAYLOAD, Channel

KEY = b"k" * 32


class End:
    """One end, and what its owner was told."""

    def __init__(self, role, key=KEY):
        self.opened, self.lost = asyncio.Event(), asyncio.Event()
        self.heard, self.reasons = asyncio.Queue(), []
        self.link = Link(
            key,
            role,
            opened=lambda _link: self.opened.set(),
            received=lambda _link, message: self.heard.put_nowait(message),
            lost=self._lose,
        )

    def _lose(self, _link, reason):
        self.reasons.append(reason)
        self.lost.set()

    async def attach(self, sock):
        await asyncio.get_running_loop().connect_accepted_socket(lambda: self.link, sock)


def run(scenario):
    """Run a scenario with both ends of a connection; its time is limited."""

    async def limited():
        with socket.create_server(("127.0.0.1", 0)) as listener:
            theirs = socket.create_connection(listener.getsockname())
            ours, _ = listener.accept()
        with ours, theirs:
            theirs.setblocking(False)
            async with asyncio.timeout(20):
                await scenario(ours, theirs)

    asyncio.run(limited())


async def shake_hands(sock):
    """Do an agent's part of the handshake on a plain socket, and read nothing afterwards."""
    loop, channel = asyncio.get_running_loop(), Channel(KEY, "agent")
    while not channel.open:
        await loop.sock_sendall(sock, channel.take_outgoing())
        channel.receive(await loop.sock_recv(sock, 4096))


async def said_until_closed(sock):
    found = b""
    try:
        while data := await asyncio.get_running_loop().sock_recv(sock, 4096):
            found += data
    except ConnectionResetError:
        pass
    return found


def test_two_ends_meet_talk_and_part():
    async def scenario(ours, theirs):
        controller, agent = End("controller"), End("agent")
        await controller.attach(ours)
        await agent.attach(theirs)
        await controller.opened.wait()
        await agent.opened.wait()
        agent.link.say(Pulse(generation=3))
        assert await controller.heard.get() == Pulse(generation=3)
        controller.link.say(Leave())
        controller.link.close()
        assert await agent.heard.get() == Leave()
        await agent.lost.wait()
        await controller.lost.wait()
        assert agent.reasons == controller.reasons == ["the connection was closed"]
        agent.link.say(Pulse())  # in vain

    run(scenario)


def test_a_wrong_key_is_dropped_with_its_reason_and_nothing_is_delivered():
    async def scenario(ours, theirs):
        controller, agent = End("controller"), End("agent", b"o" * 32)
        await controller.attach(ours)
        await agent.attach(theirs)
        await controller.lost.wait()
        assert controller.reasons == ["the peer does not know the run's key"]
        assert not controller.opened.is_set()
        await agent.lost.wait()
        assert not agent.opened.is_set()

    run(scenario)


@pytest.mark.parametrize("talks", [False, True], ids=["silent", "slow"])
def test_a_handshake_has_an_end_even_one_that_goes_on(monkeypatch, talks):
    """The time is counted from the beginning, not from the last byte."""
    monkeypatch.setattr(module, "HANDSHAKE_S", 0.3)

    async def scenario(ours, theirs):
        controller = End("controller")
        await controller.attach(ours)

        async def trickle():
            for byte in GREETING + bytes(60):
                await asyncio.get_running_loop().sock_sendall(theirs, bytes([byte]))
                await asyncio.sleep(0.02)

        trickling = asyncio.create_task(trickle()) if talks else None
        await controller.lost.wait()
        assert controller.reasons == ["no handshake within 0.3 s"]
        if trickling:
            with pytest.raises(OSError):
                await trickling
        else:
            assert (await said_until_closed(theirs)).startswith(GREETING)

    run(scenario)


def test_one_dropped_before_it_was_connected_is_gone_at_once():
    async def scenario(ours, theirs):
        controller = End("controller")
        controller.link.drop("too many")
        await controller.attach(ours)
        await controller.lost.wait()
        assert controller.reasons == ["too many"]
        assert await said_until_closed(theirs) == b""

    run(scenario)


def test_one_that_does_not_read_is_dropped():
    async def scenario(ours, theirs):
        controller = End("controller")
        await controller.attach(ours)
        await shake_hands(theirs)
        await controller.opened.wait()
        half = Pulse(ranks=[["x" * (MAX_PAYLOAD // 2)]])
        for _ in range(40):
            controller.link.say(half)
        await controller.lost.wait()
        assert controller.reasons == ["it does not read what is sent to it"]

    run(scenario)


def test_a_peer_on_our_own_machine_may_be_silent_for_longer():
    async def scenario(ours, _theirs):
        near, far = End("controller"), End("controller")
        await near.attach(ours)
        assert near.link.silence_s == module.NEAR_SILENCE_S
        far.link.own_address, far.link.peer_address = "10.0.0.1", "10.0.0.2"
        assert far.link.silence_s == module.SILENCE_S < module.NEAR_SILENCE_S
        near.link.drop("the end")
        await near.lost.wait()

    run(scenario)
