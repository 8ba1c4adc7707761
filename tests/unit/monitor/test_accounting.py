"""Where the time of a run went: every second of every slot is found once, whatever was written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.monitor.accounting import CATEGORIES, account
from echelon.monitor.state import RunState
from echelon.run.rank_time import PHASES
from echelon.run.series import Sample
from eventlines import at


def generation(time_s, number=0, ranks=2):
    return at(time_s, "generation", generation=number, world_size=ranks)


def spent(time_s, number=0, *, again=False, steps=None, **seconds):
    named = {phase.replace(" ", "_").replace("-", "_"): phase for phase in PHASES}
    told = {named[name]: value for name, value in seconds.items()}
    facts = dict(zip(("first", "last", "steps_s"), steps or (), strict=False))
    return at(time_s, "spent", generation=number, again=again, seconds=told, **facts)


def fold(*files, submitted=()):
    """Return the state of a run whose controllers have written these events."""
    state = RunState(run_id="r")
    for number, records in enumerate(files, 1):
        for record in records:
            state.feed_event(number, record)
    for number, submitted_s in enumerate(submitted, 1):
        if number in state.attempts:
            state.attempts[number].submitted_s = submitted_s
    return state


def accounts(*files, submitted=()):
    return account(fold(*files, submitted=submitted))


def found(*files, submitted=()):
    told = accounts(*files, submitted=submitted)
    shown = {category: us / 1e6 for category, us in told.spent_us.items() if us}
    assert sum(shown.values()) - shown.get("queue", 0) == pytest.approx(told.allocated_us / 1e6)
    return shown


def test_an_attempt_that_went_well():
    events = [
        at(100, "attempt", attempt=1, slots=1),
        at(105, "slots", slots=4),
        generation(110, ranks=4),
        spent(
            210,
            steps=(0, 10, 1.0),
            rendezvous=20,
            warm_up=40,
            productive=300,
            data_wait=10,
            checkpoint_stall=18,
            peer_wait=0,
        ),
        at(215, "ended", state="COMPLETED"),
    ]
    told = accounts(events, submitted=[60])
    assert told.seconds == {
        "queue": 40,
        "launch": 40,
        "rendezvous": 20,
        "warm-up": 40,
        "productive": 300,
        "data wait": 10,
        "checkpoint stall": 18,
        "peer wait": 0,
        "redone work": 0,
        "restart": 0,
        "idle": 12 + 20,
        "running": 0,
    }
    assert tuple(told.seconds) == CATEGORIES
    assert told.allocated_us == 4 * 115 * 10**6
    assert told.effective == 300 / 460
    assert told.render() == "65 % of 460 rank-seconds"


def test_slots_are_gpus_where_nodes_have_any():
    events = [at(0, "attempt"), at(1, "joined", node=0, gpus=2), generation(1), spent(2001)]
    assert accounts(events).render() == "0 % of 4,002 GPU-seconds"


def test_a_generation_that_failed_is_followed_by_a_restart_and_some_work_is_redone():
    events = [
        at(0, "attempt", slots=2),
        generation(10),
        spent(110, again=True, steps=(0, 90, 1.0), productive=190, idle=3),
        generation(113, 1),
        spent(213, 1, steps=(60, 160, 1.0), productive=200),
        at(214, "ended"),
    ]
    assert found(events) == {
        "launch": 20,
        "restart": 7 + 6,
        "redone work": 60,
        "productive": 130 + 200,
        "idle": 3 + 2,
    }


def test_what_the_next_attempt_goes_back_behind_is_redone_over_all_generations():
    first = [
        *(at(0, "attempt", slots=1), generation(0, ranks=1)),
        spent(50, again=True, steps=(0, 50, 1.0), productive=50),
        generation(50, 1, ranks=1),
        spent(80, 1, again=True, steps=(40, 70, 1.0), productive=30),
        at(80, "ended"),
    ]
    second = [
        *(at(1000, "attempt", slots=1), generation(1000, ranks=1)),
        spent(1100, steps=(30, 130, 1.0), productive=100),
    ]
    told = found(first, second, submitted=[0, 20])
    assert told == {"queue": 920, "redone work": 20 + 30, "productive": 30 + 100}


def test_how_much_was_training_is_unknown_where_no_steps_were_reported():
    silent = [at(0, "attempt", slots=2), generation(20), spent(100, productive=160)]
    told = accounts(silent)
    assert (told.effective, told.running) == (None, 0.8)
    assert told.render() == "unknown, no steps were reported"
    steps = [
        at(100, "attempt", slots=2),
        generation(100),
        spent(200, steps=(0, 9, 1.0), productive=200),
    ]
    assert accounts(silent, steps).effective == 0.5


@pytest.mark.parametrize(("step", "category"), [(3, "productive"), (-1, "running")])
def test_a_measured_step_is_training_before_the_first_heartbeat(step, category):
    state = fold([at(0, "attempt", attempt=1, slots=1), generation(10, ranks=1)])
    state.feed_sample(1, 0, Sample(time_s=20, lasts={"rank0.generation": 0, "rank0.step": step}))
    assert account(state).seconds[category] == 10


def test_a_hang_is_no_training_either():
    hung = [at(0, "attempt", slots=2), generation(0), spent(70, again=True, productive=140)]
    assert found(hung) == {"running": 140}


def test_slots_of_a_lost_node_are_idle():
    events = [
        at(0, "attempt", slots=4),
        *(generation(0, ranks=4), spent(10, again=True, productive=40)),
        *(generation(10, 1, ranks=2), spent(110, 1, productive=200)),
        at(110, "ended"),
    ]
    assert found(events) == {"running": 240, "idle": 200}


def test_slots_of_a_node_that_has_left_the_job_are_nobodys():
    events = [
        *(at(0, "attempt", slots=4), at(0, "slots", slots=4)),
        *(generation(0, ranks=4), spent(10, again=True, productive=40)),
        generation(10, 1, ranks=2),
        at(13, "departed", slots=2),
        *(spent(110, 1, productive=200), at(110, "ended")),
    ]
    assert found(events) == {"running": 240, "idle": 6}


def test_a_node_that_leaves_before_all_have_come_had_slots_until_then():
    events = [
        *(at(0, "attempt", slots=4), at(10, "departed", slots=2), at(20, "slots", slots=2)),
        *(generation(20, ranks=2), spent(120, productive=200)),
    ]
    assert found(events) == {"launch": 40 + 20, "running": 200}


def test_ranks_that_are_lost_with_their_node_count_until_their_end_is_known():
    events = [
        *(at(0, "attempt", slots=4), at(0, "slots", slots=4), generation(0, ranks=4)),
        at(10, "departed", slots=2),
        *(spent(20, again=True, productive=60), at(20, "ended")),
    ]
    assert found(events) == {"running": 60, "restart": 20}


def test_an_attempt_for_which_nobody_came_is_all_launch():
    assert found([at(0, "attempt", slots=3), at(120, "ended")]) == {"launch": 360}


def test_one_that_vanished_is_counted_until_its_last_event():
    vanished = [
        at(0, "attempt", slots=2),
        generation(10),
        at(20, "alive", generation=0, step=-1),
        at(70, "alive", generation=0, step=100),
        at(130, "alive", generation=0, step=160),
        at(135, "rank", rank=0, generation=0),
    ]
    again = [at(500, "attempt", slots=2), generation(510), spent(520, steps=(140, 150, 1.0))]
    assert found(vanished) == {"launch": 20, "productive": 250}
    told = found(vanished, again)
    assert (told["productive"], told["redone work"]) == (210, 40)


def test_one_that_goes_on_counts_until_it_was_last_seen():
    events = [at(100, "attempt", attempt=1, slots=2), generation(110, ranks=2)]
    going_on = fold(events)
    assert account(going_on).effective == 0
    going_on.feed_sample(1, 0, Sample(time_s=140))
    told = account(going_on)
    assert (told.seconds["launch"], told.seconds["running"]) == (20, 60)
    over = fold([*events, at(120, "ended", state="FAILED")])
    before = account(over)
    over.feed_sample(1, 0, Sample(time_s=140))
    assert account(over) == before


def test_waiting_for_a_straggler_is_not_productive():
    events = [
        *(at(0, "attempt", slots=8), generation(0, ranks=8)),
        spent(100, steps=(0, 100, 0.336), warm_up=40, productive=228, peer_wait=532),
        at(100, "ended"),
    ]
    assert found(events) == {"warm-up": 40, "productive": 228, "peer wait": 532}
    assert accounts(events).render() == "28 % of 800 rank-seconds"


def test_a_generation_that_goes_on_is_divided_as_of_its_last_heartbeat():
    seconds = {"rendezvous": 5.0, "warm-up": 15.0, "productive": 20.0, "peer wait": 60.0}
    going_on = fold(
        [
            *(at(0, "attempt", attempt=1, slots=2), generation(0)),
            at(10, "alive", generation=0, step=0),
            at(50, "alive", generation=0, step=40, seconds=seconds),
        ]
    )
    told = account(going_on).seconds
    assert (told["warm-up"], told["productive"], told["peer wait"]) == (15, 20, 60)
    going_on.feed_sample(1, 0, Sample(time_s=90))  # 80 s of both ranks later
    told = account(going_on).seconds
    assert (told["warm-up"], told["productive"], told["peer wait"]) == (15, 40, 120)
    # Another attempt repeats 10 steps of a second, of which ranks worked a quarter.
    for record in (at(100, "attempt", slots=2), generation(100), spent(110, steps=(30, 40, 1.0))):
        going_on.feed_event(2, record)
    assert account(going_on).seconds["redone work"] == 5


def test_a_job_that_was_queued_again_waits_again():
    events = [
        *(at(100, "attempt", slots=1), generation(110, ranks=1)),
        at(120, "rank", rank=0, generation=0),
        *(at(300, "attempt", slots=1), generation(310, ranks=1), spent(320, productive=10)),
        at(320, "ended"),
    ]
    assert found(events, submitted=[40]) == {"queue": 60 + 180, "launch": 20, "running": 20}


def test_time_that_a_clock_was_set_forward_is_not_in_the_queue():
    days = 10 * 86400
    first = [
        *(at(100, "attempt", slots=1), generation(110, ranks=1)),
        *(at(115, "clock", seconds=days), spent(120, productive=10), at(120, "ended")),
    ]
    again = [at(150 + days, "attempt", slots=1), at(155 + days, "ended")]
    expected = {"queue": 30, "launch": 15, "running": 10}
    assert found(first, again) == expected
    # The next job was submitted before or after the clock was set.
    assert found(first, again, submitted=[None, 105]) == expected
    assert found(first, again, submitted=[None, 118 + days]) == expected


def test_more_than_there_was_is_shrunk():
    events = [at(0, "attempt", slots=1), generation(0, ranks=1), spent(10, productive=6, idle=9)]
    assert found(events) == {"running": 4, "idle": 6}


def test_no_more_is_redone_than_was_done():
    events = [
        *(at(0, "attempt", slots=1), generation(0, ranks=1)),
        spent(10, steps=(0, 50, 9.0), productive=8, data_wait=2),
        *(generation(10, 1, ranks=1), spent(11, 1, steps=(0, 1, 1.0), productive=1)),
    ]
    assert found(events) == {"redone work": 8, "data wait": 2, "productive": 1}


def test_of_nothing_there_is_nothing_to_say():
    told = accounts([], [at(5, "attempt")])
    assert told.effective is None
    assert told.render() == ""


# --- anything that may have been written ------------------------------------------------------

small = st.integers(0, 5)
numbers = st.integers(0, 1)
times = st.floats(0, 1e6)
wrong = st.sampled_from([None, "x", True, -1, 10**400, float("nan"), float("inf"), [], {}])
seconds = st.dictionaries(st.sampled_from(PHASES), times | wrong) | wrong
steps = st.integers(-1, 1000)
events = st.one_of(
    st.tuples(st.just("attempt"), st.fixed_dictionaries({"slots": small | wrong})),
    st.tuples(
        st.sampled_from(["slots", "departed"]), st.fixed_dictionaries({"slots": small | wrong})
    ),
    st.tuples(
        st.just("generation"),
        st.fixed_dictionaries({}, optional={"generation": numbers, "world_size": small | wrong}),
    ),
    st.tuples(
        st.just("spent"),
        st.fixed_dictionaries(
            {},
            optional={
                "generation": numbers,
                "again": st.booleans() | wrong,
                "seconds": seconds,
                "first": steps | wrong,
                "last": steps | wrong,
                "steps_s": times | wrong,
            },
        ),
    ),
    st.tuples(
        st.just("alive"),
        st.fixed_dictionaries(
            {"generation": numbers, "step": steps | wrong}, optional={"seconds": seconds}
        ),
    ),
    st.tuples(st.just("clock"), st.fixed_dictionaries({"seconds": times | wrong})),
    st.tuples(st.sampled_from(["ended", "rank", "joined"]), st.just({})),
)
"""Mostly what a controller writes, in any order, and sometimes what none would."""
files = st.lists(
    st.tuples(times | st.sampled_from([-1.0, float("nan"), 1e308]), events).map(
        lambda it: at(it[0], it[1][0], **it[1][1])
    ),
    max_size=12,
).map(lambda records: [record for record in records if record])


@given(st.lists(files, max_size=4), st.lists(st.none() | times, max_size=4))
def test_every_second_of_every_slot_has_one_purpose(files, submitted):
    told = accounts(*files, submitted=submitted)
    assert min(told.spent_us.values()) >= 0
    used = {category: us for category, us in told.spent_us.items() if category != "queue"}
    assert sum(used.values()) == told.allocated_us
    assert told.effective is None or 0 <= told.effective <= 1
