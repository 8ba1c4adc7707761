"""Making room for a node that has come: when ranks are asked, and what they are then told."""

import asyncio
import itertools

import pytest

from echelon.launch.controller import generation as module
from echelon.launch.controller.generation import Generation
from echelon.launch.controller.rendezvous import Meeting
from echelon.launch.controller.stopping import WITHDRAWN
from echelon.launch.pool.controller_events import Agent, Lost
from echelon.launch.pool.hang import HangWatch
from echelon.launch.protocol.messages import Commit, Ended, Hello, Place, Propose, RankExited
from echelon.launch.protocol.stop import Stop
from echelon.run.events import RanksStopped

LISTENS, DEAF, UNSAVED = [1, 1, 5, 5], [-1, -1, -1, -1], [-1, 1, -1, -1]
MEETING = Meeting(address="127.0.0.1", port=1, served=True)


class Link:
    def __init__(self):
        self.said = []

    def say(self, message):
        self.said.append(message)


class Clock:
    """Stands still until somebody waits in vain."""

    def __init__(self):
        self.now_s = 1000.0

    def monotonic(self):
        return self.now_s

    time = monotonic


class AgentPool:
    """Node 0 has a rank, node 1 has just come. Things happen as in the script.

    An entry of the script is a thing that happens, or a function of the crew that returns one, or
    None: nothing happens, for as long as whoever waits would wait.
    """

    def __init__(self, clock, *script, pace=LISTENS):
        self.clock, self.script = clock, list(script)
        self.agents = {}
        for node in (0, 1):
            hello = Hello(node=node, name=f"node{node}", host="h", addresses=[])
            self.agents[node] = Agent(hello=hello, link=Link(), pace=list(pace))
        self.first, self.newcomer = self.agents[0], self.agents[1]

    def has(self, agent):
        return self.agents.get(agent.node) is agent

    def post(self, stop):
        pass

    async def next(self, deadline_s=None):
        entry = self.script.pop(0)
        entry = entry(self) if callable(entry) else entry
        if entry is None:
            self.clock.now_s = max(self.clock.now_s, deadline_s)
        return entry

    def orders(self, kind):
        return [message for message in self.first.link.said if isinstance(message, kind)]


class Journal:
    def __init__(self):
        self.reports, self.notes = [], []
        self.run, self.attempt = None, 1

    def report(self, text):
        self.reports.append(text)

    def note(self, event):
        self.notes.append(event)


def place(proposed, furthest, *, waiting=False):
    answer = Place(generation=0, proposed=proposed, furthest=furthest, waiting=waiting)
    return lambda crew: (crew.first, answer)


def gone(step=7, code=0):
    return lambda crew: (crew.first, RankExited(generation=0, rank=0, code=code, step=step))


def ended(crew):
    return crew.first, Ended(generation=0)


def lost_newcomer(crew):
    del crew.agents[1]
    return crew.newcomer, Lost("killed")


AGREED = (place(0, 6), place(7, 7, waiting=True))
"""How far it is, and then it waits at the next place."""


@pytest.fixture
def clock(monkeypatch):
    one = Clock()
    monkeypatch.setattr(module, "time", one)
    return one


def live(clock, *script, pace=LISTENS):
    """Return a generation that has come to its end, and what was seen of it."""
    crew = AgentPool(clock, *script, pace=pace)
    journal, recalls = Journal(), itertools.count()

    async def explain(stop):
        return stop

    one = Generation(
        0,
        [crew.first],
        request=None,
        journal=journal,
        crew=crew,
        watch=HangWatch(0),
        explain=explain,
        recall=lambda: next(recalls),
    )
    asyncio.run(one.run(MEETING, lambda _: 1))
    assert crew.script == []
    return one, crew, journal


def test_ranks_that_listen_save_and_go(clock):
    one, crew, journal = live(clock, None, *AGREED, gone(), ended)
    assert (one.made_room, one.stop, one.failures) == (True, None, [])
    assert [order.place for order in crew.orders(Propose)] == [0, 7]
    assert [order.place for order in crew.orders(Commit)] == [7]
    assert RanksStopped(generation=0, step=7) in journal.notes
    assert journal.notes[-1].again is True


def test_a_newcomer_that_is_gone_again_disturbs_nobody(clock):
    one, crew, _ = live(clock, lost_newcomer, gone(), ended)
    assert not one.made_room
    assert crew.orders(Propose) == []


def test_nor_one_that_goes_while_they_are_asked(clock):
    one, crew, _ = live(clock, None, place(0, 6), lost_newcomer, None, gone(), ended)
    assert not one.made_room
    assert [order.place for order in crew.orders(Propose)] == [0, 7, WITHDRAWN]


def test_ranks_that_do_not_listen_go_on_and_it_is_said_once(clock):
    deaf = place(0, -1)
    one, crew, journal = live(clock, None, deaf, None, deaf, gone(), ended, pace=DEAF)
    assert not one.made_room
    assert [order.place for order in crew.orders(Propose)] == [0, WITHDRAWN] * 2
    assert [text.partition(":")[0] for text in journal.reports] == ["node1 waits"]


def test_ranks_that_have_saved_nothing_are_not_asked(clock):
    one, crew, journal = live(clock, None, None, gone(), ended, pace=UNSAVED)
    assert not one.made_room
    assert (crew.orders(Propose), journal.reports) == ([], [])


def test_ranks_that_do_not_come_to_a_place_go_on(clock):
    one, crew, journal = live(clock, None, place(0, 6), None, gone(), ended)
    assert not one.made_room
    assert crew.orders(Propose)[-1].place == WITHDRAWN
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
    stop = (None, Stop("cancelled", "it was cancelled", 143))
    again = (place(0, 7), place(8, 8, waiting=True), gone(8), ended)
    one, crew, _ = live(clock, None, *AGREED[:before], stop, *again)
    assert not one.made_room
    assert one.stop.message == "it was cancelled; all ranks stopped after step 8, and saved"
    assert [order.place for order in crew.orders(Commit)] == [8]


def test_a_stop_after_that_waits_for_what_is_agreed(clock):
    stop = (None, Stop("time limit", "its time is over", 75, deadline_s=clock.now_s + 60))
    one, crew, _ = live(clock, None, *AGREED, stop, gone(), ended)
    assert not one.made_room
    assert one.stop.message == "its time is over; all ranks stopped after step 7, and saved"
    assert [order.place for order in crew.orders(Propose)] == [0, 7]


def test_and_does_not_say_that_they_saved_when_the_time_was_over(clock):
    stop = (None, Stop("time limit", "its time is over", 75, deadline_s=clock.now_s + 60))
    one, _, journal = live(clock, None, *AGREED, stop, None, ended)
    assert one.stop.message == "its time is over"
    assert not any(isinstance(event, RanksStopped) for event in journal.notes)


def test_a_stop_at_the_very_end_is_not_forgotten(clock):
    stop = (None, Stop("cancelled", "it was cancelled", 143))
    one, _, journal = live(clock, None, *AGREED, gone(), stop, ended)
    assert one.stop.cause == "cancelled"
    assert journal.notes[-1].again is False
