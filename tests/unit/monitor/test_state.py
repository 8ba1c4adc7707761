"""All that a run's processes have written, as one value."""

from echelon.monitor.state import RunState
from echelon.run.metrics import MetricEvent
from echelon.run.series import Sample
from eventlines import at

BEGUN = [
    at(10, "attempt", attempt=1, job="7"),
    at(11, "joined", node=0, name="node1", gpus=0),
    at(11, "joined", node=1, name="node2", gpus=0),
]
RUNNING = [*BEGUN, at(12, "generation", generation=0, world_size=2, nodes=2)]


def state(*events, attempt=1):
    one = RunState(run_id="r")
    for event in events:
        one.feed_event(attempt, event)
    return one


def sample(rank, *, generation=0, **numbers):
    means = {f"rank{rank}.{name}": value for name, value in numbers.items()}
    lasts = {f"rank{rank}.step": 5, f"rank{rank}.generation": generation}
    return Sample(time_s=20, means={"cpu": 0.5, **means}, lasts=lasts)


def test_the_phases_of_a_run():
    assert state().phase == "QUEUED"
    assert state(*BEGUN).phase == "STARTING"
    assert state(*RUNNING).phase == "RUNNING"
    assert state(*RUNNING, at(30, "spent", generation=0, again=True)).phase == "RESTARTING"
    assert state(*RUNNING, at(30, "ended", state="COMPLETED")).phase == "COMPLETED"


def test_a_job_that_is_queued_again_begins_anew():
    one = state(*RUNNING, at(30, "ended", state="PREEMPTED"), at(90, "attempt", job="7"))
    assert (one.phase, one.nodes, one.ranks) == ("STARTING", {}, {})


def test_why_ranks_were_started_again():
    failure = {"rank": 1, "node": "node2", "message": "killed by SIGKILL"}
    one = state(*RUNNING, at(30, "spent"), at(31, "restart", verdict={"failure": failure}))
    (generation,) = one.attempt.generations
    assert generation.why == "rank 1 on node2: killed by SIGKILL"
    assert (generation.began_s, generation.ended_s) == (12, 30)


def test_what_a_validation_measures_is_a_curve_of_its_own():
    one = state()
    for kind, value in (("step", 0.5), ("validation", 0.75), ("step", 10**400)):
        one.feed_metric(at(20, kind, MetricEvent, step=3, metrics={"loss": value}))
    assert one.metrics == {"loss": [(3, 0.5)], "validation loss": [(3, 0.75)]}


def test_ranks_are_where_they_were_measured():
    one = state(*RUNNING)
    one.feed_sample(1, 1, sample(1, steps=3.0))
    assert one.ranks[1].node == 1
    assert one.ranks[1].numbers == {"steps": 3, "step": 5, "generation": 0}
    assert one.nodes[1].numbers == {"cpu": 0.5}
    assert one.step == 5


def test_what_was_measured_before_is_not_taken_for_now():
    one = state(*RUNNING, at(30, "generation", generation=1, world_size=2, nodes=2))
    one.feed_sample(1, 1, sample(1, steps=3.0))
    one.feed_sample(0, 1, sample(1, generation=1))
    assert one.step == -1
    assert one.ranks[1].node == -1


def test_a_rank_that_died_and_a_node_that_was_lost():
    one = state(*RUNNING, at(20, "exited", rank=1, code=0, signal=9), at(20, "lost", node=1))
    assert (one.ranks[1].alive, one.ranks[1].failed) == (False, True)
    assert (one.nodes[0].here, one.nodes[1].here) == (True, False)


def test_metrics_by_their_names():
    one = state(*RUNNING)
    one.feed_metric(
        at(13, "step", MetricEvent, step=5, metrics={"loss": 1.5, "note": "x", "ok": True})
    )
    one.feed_metric(at(14, "step", MetricEvent, step=10, metrics={"loss": 1}))
    one.feed_metric(at(15, "other", MetricEvent))
    assert one.metrics == {"loss": [(5, 1.5), (10, 1.0)]}


def test_records_that_are_none_change_nothing():
    one = state(*RUNNING, at(1, "joined"), at(1, "exited", rank="x"), at(1, "restart", verdict=3))
    assert one.phase == "RUNNING"


def test_a_sample_that_is_older_than_a_ranks_last_word_takes_nothing_back():
    state = RunState(run_id="r")
    for kind, data in [
        ("attempt", {"job": "7"}),
        ("generation", {"generation": 0, "world_size": 1, "nodes": 1}),
        ("exited", {"rank": 0, "generation": 0, "code": 0, "signal": 0, "step": 469}),
    ]:
        state.feed_event(1, at(1.0, kind, **data))
    lasts = {"rank0.generation": 0, "rank0.step": 428}
    state.feed_sample(1, 0, Sample(time_s=0.5, lasts=lasts))
    assert state.step == 469
