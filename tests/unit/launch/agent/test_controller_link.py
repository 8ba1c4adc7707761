"""How an agent reaches its controller, and what it learns when that is gone."""

import asyncio
import socket

import pytest

from echelon.launch.agent import controller_link as module
from echelon.launch.agent.controller_link import ControllerLink
from echelon.launch.pool.agent_server import AgentServer
from echelon.launch.protocol.messages import Hello, Leave

HELLO = Hello(node=0, name="node0", host="h", addresses=[])


class Listener:
    """Greets the controller, and keeps what happens."""

    def __init__(self):
        self.seen = []
        self.over = asyncio.Event()
        self.link = None

    def controller_accepted(self, own_address):
        self.seen.append(own_address)
        self.link.say(HELLO)

    def controller_ordered(self, message):
        self.seen.append(message)

    def controller_lost(self):
        self.seen.append("lost")
        self.over.set()


def test_an_agent_is_accepted_follows_orders_and_learns_that_its_controller_has_gone():
    async def scenario():
        logged, listener = [], Listener()

        def answer(agent, _message):
            agent.link.say(Leave())
            agent.link.close()

        server = AgentServer(1, received=answer, lost=lambda *_: None, note=logged.append)
        (place,) = await server.open(["127.0.0.1"])
        address, _, port = place.rpartition(":")
        listener.link = ControllerLink([(address, int(port))], server.key, logged.append)
        listener.link.say(HELLO)  # nobody hears it yet
        await listener.link.reach(listener)
        await listener.over.wait()
        assert listener.link.host_answers()
        server.close()
        return listener.seen, logged

    seen, logged = asyncio.run(scenario())
    assert seen == ["127.0.0.1", Leave(), "lost"]
    assert [line.partition(":")[0] for line in logged] == ["connection to the controller lost"]


def test_where_nothing_listens_an_agent_gives_up(monkeypatch):
    monkeypatch.setattr(module, "_REFUSED_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]

    async def scenario():
        link = ControllerLink([("127.0.0.1", port)], b"key", print)
        await link.reach(Listener())

    with pytest.raises(ConnectionRefusedError):
        asyncio.run(scenario())
