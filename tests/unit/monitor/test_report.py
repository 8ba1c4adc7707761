"""What a report is made of."""

from echelon.monitor.accounting import Accounts, account
from echelon.monitor.report import failures, gather, make_report, of_generation
from echelon.monitor.state import AttemptState, RunState
from echelon.run.directory import RunDir
from echelon.run.series import Sample
from echelon.spec.job_spec import JobSpec
from eventlines import at


def sample(at_s, **lasts):
    named = {name.replace("_", "."): value for name, value in lasts.items()}
    return Sample(time_s=at_s, lasts=named)


def test_only_what_was_measured_of_the_last_ranks_counts():
    before = sample(1.0, rank0_generation=0, rank1_generation=0)
    empty = sample(2.0)
    after = sample(3.0, rank0_generation=1)
    assert of_generation([before, empty, after], 1) == [after]
    assert of_generation([], 1) == []


def test_ranks_that_say_nothing_of_steps_are_there_too():
    total = Sample(
        time_s=1.0,
        means={"gpu0.util": 0.25, "rank1.data": 0.5},
        lasts={"rank0.generation": 2, "rank0.gpu": 0, "rank1.generation": 2},
    )
    state = RunState(run_id="r")
    plain, speaking = gather(state, account(state), {0: total}, JobSpec()).ranks
    assert (plain.speaks, plain.gpu_util) == (False, 0.25)
    assert (speaking.speaks, speaking.data, speaking.gpu_util) == (True, 0.5, None)


def test_of_a_run_that_has_not_begun_there_is_little_to_say(tmp_path):
    run = RunDir.create(tmp_path, "r-1")
    run.spec.write_text('script = "train.py"\n')
    report = make_report(run)
    assert report.state.phase == "QUEUED"
    assert report.accounts.allocated_us == 0
    assert report.findings == []


def test_without_a_job_the_nodes_are_ones_own_machine():
    for job, cluster in (("42", True), ("", False)):
        state = RunState(run_id="r", attempts={1: AttemptState(number=1, job_id=job)})
        assert gather(state, account(state), {}, JobSpec()).cluster is cluster


def test_training_time_is_that_of_one_rank():
    state = RunState(run_id="r")
    state.feed_event(1, at(1.0, "attempt"))
    state.feed_event(1, at(1.0, "generation", generation=0, world_size=4, nodes=1))
    spent_us = {"launch": 10**9, "productive": 30_000_000, "data wait": 10_000_000}
    accounts = Accounts(spent_us=spent_us, allocated_us=sum(spent_us.values()))
    assert gather(state, accounts, {}, JobSpec()).trained_s == 10.0


def test_each_job_of_a_run_says_why_it_was_not_the_last():
    state = RunState(run_id="r")

    def feed(number, kind, **data):
        state.feed_event(number, at(1.0, kind, **data))

    feed(1, "attempt", job="7")
    feed(1, "generation", generation=0, world_size=2, nodes=1)
    feed(1, "restart", generation=1, verdict={"failure": {"message": "bang", "rank": 1}})
    feed(1, "generation", generation=1, world_size=2, nodes=1)
    feed(1, "hang", failure={"message": "no rank moved"})
    feed(1, "verdict", failure={"message": "no rank moved"})
    feed(1, "ended", state="TIMEOUT", why="the time limit is near")
    feed(2, "attempt", job="8")  # its host is turned off
    feed(4, "attempt", job="10")
    feed(4, "generation", generation=0, world_size=2, nodes=1)
    feed(4, "restart", verdict={"failure": {"message": "node2 is gone"}})  # in another job
    feed(4, "ended", state="NODE_FAIL", why="node2 is gone")
    feed(5, "attempt", job="11")
    told = [
        "job 7, restarted: rank 1: bang",
        "job 7, TIMEOUT: the time limit is near",
        "job 8 exited without reporting an outcome; its controller or host probably died",
        "job 10, NODE_FAIL: node2 is gone",
    ]
    assert failures(state) == told
    feed(5, "verdict", failure={"message": "no rank moved"})
    assert failures(state) == [*told, "now: no rank moved"]
    feed(5, "ended", state="FAILED", why="ValueError: 3")
    assert failures(state) == [*told, "ended: ValueError: 3"]
