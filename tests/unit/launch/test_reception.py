"""Who is let in by a controller, and what becomes of others; with real sockets: tests/local."""

import asyncio

import pytest

from echelon.errors import UnavailableError
from echelon.launch.messages import Hello, Note, Pulse
from echelon.launch.reception import STRANGERS, Reception

HELLO = Hello(node=0, name="n", host="h", addresses=[])


@pytest.fixture
def told():
    return []


@pytest.fixture
def reception(told):
    return Reception(
        1,
        received=lambda agent, message: told.append((agent.node, message)),
        lost=lambda agent, reason: told.append((agent.node, reason)),
        note=lambda kind, **data: told.append((kind, data["count"])),
    )


def test_an_agent_is_one_from_its_greeting_on(reception, told):
    link = reception.make_link()
    for message in (Pulse(), Note(text="early"), HELLO, Pulse()):
        link._received(link, message)
    link._lost(link, "it was killed")
    assert told == [(0, HELLO), (0, Pulse()), (0, "it was killed")]


def test_of_strangers_the_first_is_told_of_and_then_every_thousandth(reception, told):
    for _ in range(2001):
        link = reception.make_link()
        link._lost(link, "it does not know the key")
    assert told == [("stranger", count) for count in (1, 1000, 2000)]


def test_the_oldest_stranger_goes_where_too_many_wait_and_no_agent_does(reception, monkeypatch):
    dropped = []
    monkeypatch.setattr("echelon.launch.link.Link.drop", lambda link, _: dropped.append(link))
    agent, *strangers = [reception.make_link() for _ in range(STRANGERS + 1)]
    agent._opened(agent)
    strangers += [reception.make_link() for _ in range(3)]
    assert dropped == strangers[:2]


def test_where_none_of_our_addresses_is_ours_that_is_said(reception):
    with pytest.raises(UnavailableError, match=r"at none of 192\.0\.2\.1"):
        asyncio.run(reception.open(["192.0.2.1"]))
