"""What ranks did with their time: from the numbers in their shared memory to one event."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.launch.controller.generation_times import GenerationTimes, split
from echelon.launch.protocol.messages import RankExited
from echelon.run.rank_time import PHASES

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


# --- a generation -----------------------------------------------------------------------------


def test_the_account_of_a_generation():
    times = GenerationTimes()
    times.begin(range(2), 1000.0)
    times.leave(rank_exited(0, step=40, **TRAINED), 1100.0)
    times.leave(rank_exited(1, step=40, **TRAINED), 1110.0)
    told = times.record(1112.0, again=False)
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
    times = GenerationTimes()
    times.begin(range(3), 0.0)
    times.leave(rank_exited(0, ran_us=5 * S, met_us=-1), 5.0)
    times.lose(1, 10.0)
    times.leave(rank_exited(2, step=4, ran_us=9 * S, met_us=9 * S, first=4), 10.0)
    record = times.record(11.0, again=True)
    assert (record["ranks"], record["known"]) == (3, 2)
    told = record["seconds"]
    assert told["productive"] == pytest.approx(5 + 10 * 5 / 14, abs=1e-5)
    assert told["rendezvous"] == pytest.approx(9 + 10 * 9 / 14, abs=1e-5)
    assert told["idle"] == 5  # rank 0, until something failed


def test_of_ranks_that_all_vanished_nothing_is_known():
    times = GenerationTimes()
    times.begin(range(2), 0.0)
    told = times.record(4.0, again=True)
    assert told["seconds"]["productive"] == 8
    assert "first" not in told
