"""A generation that gets no endpoint: because a zygote hangs, or a node cannot start ranks."""

import asyncio

import pytest

from echelon.launch.controller.rendezvous import Rendezvous, RendezvousError
from echelon.launch.pool.controller_events import Lost, Received
from echelon.launch.pool.hang import Hang
from echelon.launch.protocol.messages import Opened
from echelon.run.verdict import Failure
from unit.launch.fakes import FakePool

HANG = Hang(rank=0, message="not started", generation=3)


def find(*script, hung):
    async def wait():
        pool = FakePool(0, script=script)
        return await Rendezvous(pool).find([pool.agents[0]], 3, hung)

    return asyncio.run(wait())


def opens(pool):
    opened = Opened(generation=3, ports={"127.0.0.1": 7}, served=True)
    return Received(agent=pool.agents[0], message=opened)


def loses(reason, **options):
    return lambda pool: Lost(agent=pool.agents[0], reason=reason, **options)


def test_a_hang_that_is_only_reported_is_waited_for():
    reported = []
    endpoint = find(HANG, opens, hung=reported.append)
    assert (endpoint.port, reported) == (7, [HANG])


def test_a_hang_that_ends_the_ranks_ends_the_agent_too_whose_zygote_hangs():
    failure = Failure(cause="hang", message=HANG.message)
    with pytest.raises(RendezvousError) as caught:
        find(HANG, loses("not started"), hung=lambda _: failure)
    assert caught.value.failure is failure


def test_a_hang_of_an_earlier_generation_is_over():
    late = Hang(rank=0, message="not started", generation=2)
    assert find(late, opens, hung=lambda _: pytest.fail("was reported")).served


def test_a_node_whose_zygotes_die_cannot_start_ranks():
    with pytest.raises(RendezvousError) as caught:
        find(loses("its zygotes die", excluded=True), hung=None)
    failure = caught.value.failure
    assert (failure.cause, failure.message, failure.exit_code) == ("start", "its zygotes die", 69)
