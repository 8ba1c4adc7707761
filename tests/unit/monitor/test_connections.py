"""Which connection makes room for another, and when one is given up."""

import resource

import pytest
import uvicorn
from uvicorn.server import ServerState

from echelon.monitor.connections import (
    BACKLOG,
    KNOWN,
    MOST,
    Connection,
    Room,
    raise_file_limit,
)


class Loop:
    """Keeps timers until a test has them run."""

    def __init__(self):
        self.timers = []

    def call_later(self, delay_s, action, *arguments):
        timer = Timer(delay_s, action, arguments)
        self.timers.append(timer)
        return timer

    def run_timers(self):
        due, self.timers = self.timers, []
        for timer in due:
            if not timer.cancelled:
                timer.action(*timer.arguments)


class Timer:
    def __init__(self, delay_s, action, arguments):
        self.delay_s = delay_s
        self.action, self.arguments, self.cancelled = action, arguments, False

    def cancel(self):
        self.cancelled = True


class Transport:
    def __init__(self):
        self.aborted, self.size = False, 0

    def abort(self):
        self.aborted = True

    def get_write_buffer_size(self):
        return self.size

    def get_extra_info(self, _name):
        return None


class Cycle:
    def __init__(self):
        self.response_complete = self.disconnected = False


@pytest.fixture
def connect():
    """Connects to one server that has room for three."""
    config = uvicorn.Config(app=lambda: None, lifespan="off", log_config=None)
    room, loop, state = Room(most=3), Loop(), ServerState()

    def connect(*, known=False, busy=False):
        one = Connection(room=room, config=config, server_state=state, app_state={}, _loop=loop)
        one.connection_made(Transport())
        if known:
            one.scope = {KNOWN: True}
        if busy:
            one.cycle = Cycle()
        return one

    connect.loop, connect.room = loop, room
    return connect


def dropped(*connections):
    return [number for number, one in enumerate(connections) if one.transport.aborted]


def test_the_oldest_idle_stranger_makes_room(connect):
    one, two, three = connect(), connect(), connect()
    connect()
    assert dropped(one, two, three) == [0]
    connect()
    assert dropped(one, two, three) == [0, 1]
    assert len(connect.room.connections) == 3


def test_whoever_showed_the_token_goes_last(connect):
    owner, asking, idle = connect(known=True), connect(busy=True), connect()
    more = [connect()]
    assert dropped(owner, asking, idle) == [2]
    more += [connect() for _ in range(9)]
    assert dropped(owner, asking) == []
    assert dropped(*more) == list(range(9))


def test_the_token_is_remembered_for_the_next_request(connect):
    one = connect(known=True)
    one.data_received(b"GET")
    one.scope = {}
    assert one.known


def test_one_that_sends_no_request_is_given_up(connect):
    silent, asking = connect(), connect()
    asking.cycle = Cycle()
    asking._time_request()
    connect.loop.run_timers()
    assert dropped(silent, asking) == [0]


def test_a_reader_that_takes_nothing_is_given_up_and_a_slow_one_is_not(connect):
    stuck, slow = connect(busy=True), connect(busy=True)
    for one in (stuck, slow):
        one._time_request()
        one.transport.size = 100_000
        one.pause_writing()
    slow.transport.size = 99_000
    connect.loop.run_timers()
    assert dropped(stuck, slow) == [0]
    connect.loop.run_timers()
    assert dropped(slow) == [0]


def test_the_end_of_a_long_answer_is_waited_for(connect):
    one = connect()
    one.transport.size = 100_000
    one.pause_writing()
    one.transport.size = 50_000
    connect.loop.run_timers()
    assert dropped(one) == []
    one.resume_writing()
    connect.loop.run_timers()
    assert dropped(one) == [0]


def test_limits_are_in_seconds(connect):
    """Long enough for a slow network, short enough that strangers cannot fill the room."""
    connect()
    (asked,) = connect.loop.timers
    assert 5 <= asked.delay_s <= 30
    reading = connect(busy=True)
    reading.transport.size = 100_000
    reading.pause_writing()
    assert 10 <= connect.loop.timers[-1].delay_s <= 60


def test_there_is_room_for_more_than_are_accepted_at_once():
    assert BACKLOG * 2 <= MOST < 4096


def test_as_many_files_as_needed_may_be_opened():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, before[0]), before[1]))
        limit = raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == limit >= min(512, before[0])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
