"""What ranks did with their time: from the numbers in their beacons to one event."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.launch.protocol.messages import Pace, RankExited
from echelon.launch.protocol.rank_shm import VARIABLE, RankShm
from echelon.launch.protocol.time_accounting import (
    PHASES,
    Motion,
    Spending,
    read_pace,
    read_spent,
    read_spent_so_far,
    split,
)
from echelon.train.stopping import StopBarrier

S = 1_000_000
TRAINED = {
    "ran_us": 100 * S,
    "met_us": 10 * S,
    "began_us": 15 * S,
    "first": 20,
    "data_us": 5 * S,
    "stall_us": 20 * S,
    "comm_us": 10 * S,
    "still_us": 20 * S,
}


def rank_exited(rank=0, *, step=-1, code=0, **spent):
    return RankExited(generation=0, rank=rank, step=step, code=code, spent=spent)


def found(exited):
    return {phase: us / S for phase, us in split(exited).items() if us}


# --- one rank ---------------------------------------------------------------------------------


def test_the_time_of_a_rank_that_trains():
    assert found(rank_exited(step=40, **TRAINED)) == {
        "rendezvous": 10,
        "warm-up": 5,
        "data wait": 5,
        "checkpoint stall": 20,
        "peer wait": 10,
        "productive": 50,
    }


def test_one_that_died_had_a_step_under_way_and_then_did_nothing():
    """20 s without a move, at 1.5 s for a step."""
    told = found(rank_exited(step=40, code=1, **TRAINED))
    assert (told["productive"], told["redone work"], told["restart"]) == (30, 1.5, 18.5)


def test_one_that_knows_nothing_of_the_library_is_productive():
    assert found(rank_exited(ran_us=7 * S, met_us=-1, began_us=-1, first=-1)) == {"productive": 7}


def test_one_that_writes_its_own_loop_is_productive_once_it_has_met():
    told = found(rank_exited(ran_us=7 * S, met_us=2 * S, began_us=-1, first=-1, stall_us=S))
    assert told == {"rendezvous": 2, "checkpoint stall": 1, "productive": 4}


@pytest.mark.parametrize(
    ("met", "began", "phases"),
    [(0, -1, {"rendezvous": 7}), (2 * S, 0, {"rendezvous": 2, "warm-up": 5})],
)
def test_one_that_did_not_get_far_was_still_at_it(met, began, phases):
    assert found(rank_exited(code=1, ran_us=7 * S, met_us=met, began_us=began)) == phases


@given(
    st.dictionaries(st.sampled_from([*TRAINED]), st.integers(-1, 2**60)),
    st.integers(-1, 2**40),
    st.integers(0, 1),
)
def test_every_microsecond_goes_to_one_phase(spent, step, code):
    ran_us = max(0, spent.pop("ran_us", 0))
    told = split(rank_exited(step=step, code=code, ran_us=ran_us, **spent))
    assert tuple(told) == PHASES
    assert min(told.values()) >= 0
    assert sum(told.values()) == ran_us


# --- the agent's side -------------------------------------------------------------------------


def test_the_numbers_are_those_of_the_beacon(tmp_path):
    agent = RankShm.create(tmp_path / "beacon")
    agent.started_us -= 3 * S
    with StopBarrier({VARIABLE: str(tmp_path / "beacon")}) as line:
        assert agent.began_us == 0
        line.begin(12)
        line.begin(99)  # another training of the same process
        line.wait_for_data(0.25)
        line.wait_for_data(0.5)
        line.wait_for_peers(0.25)
        line.wait_for_peers(1.0)  # in total
    told = read_spent(agent, 1.5)
    assert 3 * S <= told.pop("began_us") <= told.pop("ran_us")
    assert told == {
        "met_us": -1,
        "first": 12,
        "data_us": 750_000,
        "stall_us": -1,
        "comm_us": 1_000_000,
        "still_us": 1_500_000,
    }


def test_the_longest_way_between_two_places_is_known(tmp_path, monkeypatch):
    agent = RankShm.create(tmp_path / "beacon")
    now_s = [100.0]
    monkeypatch.setattr("echelon.train.stopping.time.monotonic", lambda: now_s[0])
    line = StopBarrier({VARIABLE: str(tmp_path / "beacon")})
    for _ in range(2):
        with line:
            for pause_s in (50.0, 1.0, 2.5, 1.0):  # the first step may be slow, and is only one
                now_s[0] += pause_s
                line.arrive()
    assert agent.pass_us == 2_500_000


def test_the_pace_of_a_node_is_that_of_its_slowest_rank(tmp_path):
    beacons = [RankShm.create(tmp_path / str(rank)) for rank in range(2)]
    assert read_pace(beacons) == Pace()
    beacons[0].save_us, beacons[0].saved = 5, 10
    beacons[1].save_us, beacons[1].saved, beacons[1].pass_us = 3, 20, 7
    assert read_pace(beacons) == Pace(save_us=5, way_us=7, saved_low=10, saved_high=20)
    assert read_pace([]) is None


def test_a_rank_is_seen_to_stand_still(tmp_path):
    beacon = RankShm.create(tmp_path / "beacon")
    motion = Motion(beacon)
    assert motion.look(10.0) == 0  # it has never moved, and perhaps never speaks of it
    beacon.step = 1
    assert [motion.look(now_s) for now_s in (11.0, 12.0, 13.5)] == [0, 1, 2.5]
    beacon.passed = 4  # in a validation
    assert motion.look(14.0) == 0


def test_a_nodes_ranks_tell_how_they_have_spent_their_time_so_far(tmp_path):
    beacons = [RankShm.create(tmp_path / str(rank)) for rank in range(2)]
    for beacon in beacons:
        beacon.started_us -= 10 * S
        beacon.met_us, beacon.began_us = S, 2 * S
    beacons[0].comm_us = 6 * S
    told = read_spent_so_far(beacons)
    assert told.pop("productive") >= 2 * 8 * S - 6 * S
    assert told == {"rendezvous": 2 * S, "warm-up": 2 * S, "peer wait": 6 * S}
    assert read_spent_so_far([]) == {}


# --- a generation -----------------------------------------------------------------------------


def test_the_account_of_a_generation():
    spending = Spending()
    spending.begin(range(2), 1000.0)
    spending.leave(rank_exited(0, step=40, **TRAINED), 1100.0)
    spending.leave(rank_exited(1, step=40, **TRAINED), 1110.0)
    told = spending.record(1112.0, again=False)
    assert told["seconds"] == {
        "rendezvous": 20,
        "warm-up": 10,
        "productive": 100,
        "data wait": 10,
        "checkpoint stall": 40,
        "peer wait": 20,
        "redone work": 0,
        "restart": 0,
        "idle": 14,
    }
    assert {name: fact for name, fact in told.items() if name != "seconds"} == {
        "ranks": 2,
        "known": 2,
        "again": False,
        "first": 20,
        "last": 40,
        "steps_s": 2.5,
    }


def test_who_was_lost_did_as_the_others_did_until_then():
    spending = Spending()
    spending.begin(range(3), 0.0)
    spending.leave(rank_exited(0, ran_us=5 * S, met_us=-1), 5.0)
    spending.lose(1, 10.0)
    spending.leave(rank_exited(2, step=4, ran_us=9 * S, met_us=9 * S, first=4), 10.0)
    record = spending.record(11.0, again=True)
    assert (record["ranks"], record["known"]) == (3, 2)
    told = record["seconds"]
    assert told["productive"] == pytest.approx(5 + 10 * 5 / 14, abs=1e-5)
    assert told["rendezvous"] == pytest.approx(9 + 10 * 9 / 14, abs=1e-5)
    assert told["idle"] == 5  # rank 0, until something failed


def test_of_ranks_that_all_vanished_nothing_is_known():
    spending = Spending()
    spending.begin(range(2), 0.0)
    told = spending.record(4.0, again=True)
    assert told["seconds"]["productive"] == 8
    assert "first" not in told
