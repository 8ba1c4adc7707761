"""Making room for a node that has come: when ranks are asked, and what they are then told."""

import asyncio
import itertools

import pytest

from echelon.launch.backends.stop import Stop
from echelon.launch.controller import generation as module
from echelon.launch.controller.generation import Generation
from echelon.launch.controller.rendezvous import Endpoint
from echelon.launch.controller.rendezvous_watch import RendezvousWatch
from echelon.launch.controller.stopping import WITHDRAWN
from echelon.launch.pool.controller_events import Lost, Received
from echelon.launch.pool.hang import Hang
from echelon.launch.program import Program
from echelon.launch.protocol.messages import (
    Commit,
    End,
    Ended,
    Pace,
    Place,
    Propose,
    RankExited,
    Stacks,
    Traces,
)
from echelon.run.events import HangDetected, RanksStopped
from echelon.spec.job_spec import JobSpec
from unit.launch.fakes import FakeJournal, FakePool

LISTENS, DEAF, UNSAVED = Pace(1, 1, 5, 5), Pace(), Pace(stop_interval_us=1)
ENDPOINT = Endpoint(address="127.0.0.1", port=1, served=True)


class Clock:
    """Stands still until somebody waits in vain."""

    def __init__(self):
        self.now_s = 1000.0

    def monotonic(self):
        return self.now_s

    time = monotonic


def received(message):
    """An event of a script: the first node's agent has sent a message."""
    return lambda pool: Received(agent=pool.agents[0], message=message)


def place(proposed, furthest, *, waiting=False):
    return received(Place(generation=0, proposed=proposed, furthest=furthest, waiting=waiting))


def gone(step=7, code=0, saved=-1):
    return received(RankExited(generation=0, rank=0, code=code, step=step, saved=saved))


def ended(pool):
    return Received(agent=pool.agents[0], message=Ended(generation=0))


def lost_newcomer(pool):
    return Lost(agent=pool.agents.pop(1), reason="killed")


AGREED = (place(0, 6), place(7, 7, waiting=True))
"""How far it is, and then it waits at the next place."""


@pytest.fixture
def clock(monkeypatch):
    one = Clock()
    monkeypatch.setattr(module, "time", one)
    return one


def orders(pool, kind):
    return [message for message in pool.agents[0].link.said if isinstance(message, kind)]


def live(clock, *script, pace=LISTENS, listened=False):
    """Return a generation that has come to its end, and what was seen of it."""
    pool, journal = FakePool(0, 1, script=script, pace=pace, clock=clock), FakeJournal()
    first = pool.agents[0]
    recoveries = itertools.count()

    async def explain(stop):
        return stop

    one = Generation(
        0,
        [first],
        request=JobSpec(script="train.py", hang_timeout_s=0),
        journal=journal,
        pool=pool,
        rendezvous_watch=RendezvousWatch(Program(argv=("true",), kind="binary"), frozenset()),
        explain=explain,
        recover=lambda: next(recoveries),
        listened=listened,
    )
    asyncio.run(one.run(ENDPOINT, lambda _: 1))
    assert pool.script == []
    return one, pool, journal


def test_ranks_that_listen_save_and_go(clock):
    one, pool, journal = live(clock, None, *AGREED, gone(), ended)
    assert (one.made_room, one.stop, one.failures) == (True, None, [])
    assert [order.place for order in orders(pool, Propose)] == [0, 7]
    assert [order.place for order in orders(pool, Commit)] == [7]
    assert RanksStopped(generation=0, step=7) in journal.notes
    assert journal.notes[-1].again is True


def test_a_newcomer_that_is_gone_again_disturbs_nobody(clock):
    one, pool, _ = live(clock, lost_newcomer, gone(), ended)
    assert not one.made_room
    assert orders(pool, Propose) == []


def test_nor_one_that_goes_while_they_are_asked(clock):
    one, pool, _ = live(clock, None, place(0, 6), lost_newcomer, None, gone(), ended)
    assert not one.made_room
    assert [order.place for order in orders(pool, Propose)] == [0, 7, WITHDRAWN]


def test_ranks_that_do_not_listen_go_on_and_it_is_said_once(clock):
    deaf = place(0, -1)
    one, pool, journal = live(clock, None, deaf, None, deaf, gone(), ended, pace=DEAF)
    assert not one.made_room
    assert [order.place for order in orders(pool, Propose)] == [0, WITHDRAWN] * 2
    assert [text.partition(":")[0] for text in journal.reports] == ["node1 is idle"]


def test_ranks_that_have_saved_nothing_are_not_asked(clock):
    one, pool, journal = live(clock, None, None, gone(), ended, pace=UNSAVED)
    assert not one.made_room
    assert (orders(pool, Propose), journal.reports) == ([], [])


def test_ranks_that_do_not_come_to_a_place_go_on(clock):
    one, pool, journal = live(clock, None, place(0, 6), None, gone(), ended)
    assert not one.made_room
    assert orders(pool, Propose)[-1].place == WITHDRAWN
    assert journal.reports == []


def test_ranks_that_are_done_meanwhile_are_done(clock):
    one, _, journal = live(clock, None, place(0, 6), gone(), ended)
    assert (one.made_room, one.failures) == (False, [])
    assert journal.notes[-1].again is False


def test_a_rank_that_neither_saves_nor_goes_has_failed(clock):
    one, _, journal = live(clock, None, *AGREED, None, ended)
    assert not one.made_room
    assert [failure.cause for failure in one.failures] == ["hang"]
    assert not any(isinstance(event, RanksStopped) for event in journal.notes)


@pytest.mark.parametrize("before", [0, 1])
def test_a_stop_before_they_agree_comes_to_a_place_of_its_own(clock, before):
    stop = Stop("cancelled", "it was cancelled", 143)
    again = (place(0, 7), place(8, 8, waiting=True), gone(8), ended)
    one, pool, _ = live(clock, None, *AGREED[:before], stop, *again)
    assert not one.made_room
    assert one.stop.message == "it was cancelled; all ranks stopped after step 8"
    assert [order.place for order in orders(pool, Commit)] == [8]


def test_a_stop_after_that_waits_for_what_is_agreed(clock):
    stop = Stop("time limit", "its time is over", 75, deadline_s=clock.now_s + 60)
    one, pool, _ = live(clock, None, *AGREED, stop, gone(), ended)
    assert not one.made_room
    assert one.stop.message == "its time is over; all ranks stopped after step 7"
    assert [order.place for order in orders(pool, Propose)] == [0, 7]


def test_that_ranks_saved_is_said_only_if_a_checkpoint_of_that_step_is_known(clock):
    stop = Stop("cancelled", "it was cancelled", 143)
    one, _, _ = live(clock, None, *AGREED, stop, gone(saved=7), ended)
    assert one.stop.message == "it was cancelled; all ranks saved and stopped after step 7"


def test_and_does_not_say_that_they_saved_when_the_time_was_over(clock):
    stop = Stop("time limit", "its time is over", 75, deadline_s=clock.now_s + 60)
    one, _, journal = live(clock, None, *AGREED, stop, None, ended)
    assert one.stop.message == "its time is over"
    assert not any(isinstance(event, RanksStopped) for event in journal.notes)


@pytest.mark.parametrize("listened", [True, False])
def test_ranks_that_still_start_take_a_step_if_such_ranks_have_listened_before(clock, listened):
    limit = Stop("time limit", "its time is over", 75, deadline_s=clock.now_s + 60)
    later = (place(0, 0), place(1, 1, waiting=True), gone(1, saved=1), ended)
    one, pool, _ = live(clock, limit, place(0, -1), None, *later, pace=DEAF, listened=listened)
    assert one.stop.message == "its time is over; all ranks saved and stopped after step 1"
    said = pool.agents[0].link.said
    before = said[: said.index(orders(pool, Commit)[0])]
    assert any(isinstance(order, End) for order in before) is not listened


def test_ranks_that_still_start_are_signalled_if_no_deadline_leaves_them_time(clock):
    stop = Stop("cancelled", "it was cancelled", 143)
    _, pool, _ = live(clock, stop, place(0, -1), gone(0, 143), ended, pace=DEAF, listened=True)
    assert any(order.signal for order in orders(pool, End))


def test_a_stop_at_the_very_end_is_not_forgotten(clock):
    stop = Stop("cancelled", "it was cancelled", 143)
    one, _, journal = live(clock, None, *AGREED, gone(), stop, ended)
    assert one.stop.cause == "cancelled"
    assert journal.notes[-1].again is False


def test_ranks_that_exit_while_their_stacks_are_read_do_not_hang(clock):
    hang = Hang(rank=0, message="all ranks wait")
    traces = Traces(generation=0, ranks={}, counts={})
    stacks = Stacks(generation=0, ranks={})
    one, _, journal = live(clock, hang, received(traces), gone(), received(stacks), ended)
    assert one.failures == []
    assert not any(isinstance(event, HangDetected) for event in journal.notes)
