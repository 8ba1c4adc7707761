"""When another job takes over, and when not."""

import json

import pytest

from echelon.core.jobs import Job
from echelon.errors import UnavailableError
from echelon.launch.controller.standby import (
    Objection,
    decide_hand_over,
    find_exhaustion,
    find_objection,
)
from echelon.run.attempts import Attempt, orphan
from echelon.run.directory import RunDir
from echelon.run.history import History
from echelon.run.verdict import Failure


def decide(cause, *, failures=0, stalled=0, **more):
    facts = {"mode": "auto", "restarts": 3, "saved": 10, "progress": True, "nodes_are_why": False}
    lost = Failure(cause="lost node", message="gone")
    history = History(failures=(lost,) * failures, stalled=stalled)
    return decide_hand_over(Failure(cause=cause, message="x"), history, **{**facts, **more})


@pytest.mark.parametrize("cause", ["time limit", "preemption", "maintenance"])
def test_a_planned_stop_hands_over_however_much_has_failed_before(cause):
    assert decide(cause, failures=99) == ""


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"mode": "never"}, "disabled"),
        ({"saved": -1}, "no checkpoint"),
        ({"progress": False, "stalled": 1}, "2 jobs in a row made no progress: no new checkpoint"),
        *(
            ({"mode": mode, "saved": -1, "progress": False, "stalled": 1}, "no file written")
            for mode in ("always", "requeue")
        ),
    ],
)
def test_a_time_limit_does_not_hand_over_where_nobody_would_get_further(facts, why):
    assert why in decide("time limit", **facts)


@pytest.mark.parametrize(
    "facts",
    [
        {"saved": -1, "mode": "always"},  # it saves by itself
        {"saved": -1, "mode": "requeue"},
        {"progress": False},  # the first time
    ],
)
def test_a_time_limit_hands_over_where_somebody_may(facts):
    assert decide("time limit", **facts) == ""


def test_a_preempted_run_may_begin_anew():
    assert decide("preemption", saved=-1, progress=False, stalled=7) == ""


@pytest.mark.parametrize("cause", ["exception", "exit", "cuda out of memory", "import error"])
def test_other_nodes_do_not_mend_a_bug(cause):
    assert decide(cause) == "other nodes would not help"


def test_what_somebody_stopped_stays_stopped():
    assert decide("cancelled", nodes_are_why=True)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({}, ""),
        ({"failures": 3}, "all 3 restarts are used up"),
        ({"restarts": 0}, "restarts are disabled"),
        ({"progress": False, "stalled": 1}, ""),
        ({"progress": False, "stalled": 2}, "3 jobs in a row made no progress: no new checkpoint"),
    ],
)
def test_too_few_nodes_hand_over_within_the_budget(facts, why):
    assert decide("lost node", nodes_are_why=True, **facts) == why


@pytest.fixture
def run(tmp_path):
    return RunDir.create(tmp_path, "r-1")


# --- who may begin ------------------------------------------------------------------------------


class Told:
    """A Slurm that knows of jobs what it was told."""

    def __init__(self, **states):
        self.states = states

    def job(self, job_id, *, run_id):  # noqa: ARG002
        state = self.states.get(f"j{job_id}")
        if state is None:
            raise UnavailableError("slurmctld is away", hint="")
        return Job(id=job_id, state=state)


def earlier(run, *, outcome=None):
    number = run.claim_attempt()
    record = {"job_id": str(number), "submitted": "", "output": ""}
    (run.attempt(number) / "job.json").write_text(json.dumps(record))
    if outcome:
        run.outcome(number).write_text(json.dumps({"exit_code": 1, **outcome}))


def own(*, after="1"):
    return Attempt(number=2, job_id="2", after=after)


@pytest.mark.parametrize(
    ("state", "after", "why"),
    [
        ("NODE_FAIL", "1", ""),
        ("TIMEOUT", "1", ""),
        ("CANCELLED", "1", "was cancelled"),
        ("CANCELLED", "", ""),  # whoever submitted this one knew
        ("RUNNING", "1", "is RUNNING"),
        ("RUNNING", "", "is RUNNING"),
        ("UNKNOWN", "", ""),
    ],
)
def test_whether_an_earlier_attempt_lives_is_asked_of_slurm(run, state, after, why):
    earlier(run)
    said = find_objection(run, own(after=after), Told(j1=state))
    assert (why in said.why) if why else said is None


@pytest.mark.parametrize(
    ("outcome", "after", "allowed"),
    [
        ({"state": "TIMEOUT", "next": "standby"}, "1", True),
        ({"state": "FAILED"}, "1", False),
        ({"state": "FAILED"}, "", True),  # somebody has mended it
        ({"state": "COMPLETED"}, "1", False),
    ],
)
def test_what_a_controller_has_said_is_believed(run, outcome, after, allowed):
    earlier(run, outcome=outcome)
    assert (find_objection(run, own(after=after), Told()) is None) == allowed


def test_a_job_that_was_cancelled_while_it_saved_stays_cancelled(run):
    earlier(run, outcome={"state": "TIMEOUT", "next": "standby"})
    cancelled = Objection(why="job 1 was cancelled", state="CANCELLED")
    assert find_objection(run, own(), Told(j1="CANCELLED")) == cancelled
    assert find_objection(run, own(), Told(j1="FAILED")) is None
    assert find_objection(run, own(after=""), Told(j1="CANCELLED")) is None
    orphan(run, 1)
    assert find_objection(run, own(), Told(j1="CANCELLED")) is None


def test_a_standby_trusts_that_slurm_started_it(run):
    earlier(run)
    assert find_objection(run, own(), Told()) is None
    with pytest.raises(UnavailableError):
        find_objection(run, own(after=""), Told())


def test_a_job_that_was_queued_again_is_not_its_own_enemy(run):
    earlier(run)
    again = Attempt(number=2, job_id="1")
    assert find_objection(run, again, Told(j1="RUNNING")) is None


def test_nor_is_the_one_that_waits_for_its_end(run):
    earlier(run)
    earlier(run)
    (run.attempt(2) / "job.json").write_text('{"job_id": "2", "after": "1"}')
    again = Attempt(number=3, job_id="1")
    assert find_objection(run, again, Told(j1="RUNNING", j2="PENDING")) is None


def test_one_that_had_no_business_here_says_nothing_about_the_run(run):
    earlier(run, outcome={"state": "TIMEOUT", "next": "standby"})
    earlier(run, outcome={"state": "SKIPPED"})
    assert find_objection(run, Attempt(number=3, job_id="3", after="1"), Told()) is None


NOTHING = "no checkpoint was reported, and no file written"
SILENT = "attempt 1 exited without reporting an outcome; all 1 restarts are used up"


@pytest.mark.parametrize(
    ("failures", "stalled", "own", "why"),
    [
        (1, 0, {"after": "1"}, ""),
        (
            2,
            0,
            {"after": "1"},
            SILENT,
        ),
        (1, 2, {"after": "1"}, ""),
        (1, 3, {"after": "1"}, f"3 jobs in a row made no progress: {NOTHING}"),
        (
            2,
            0,
            {"job_id": "1"},
            SILENT,
        ),
        (2, 9, {}, ""),  # somebody wants it
    ],
)
def test_whoever_takes_over_from_a_silent_one_looks_at_the_budget(run, failures, stalled, own, why):
    earlier(run)
    (run.attempt(1) / "owner").touch()
    lost = Failure(cause="lost node", message="gone")
    history = History(failures=(lost,) * failures, stalled=stalled)
    attempt = Attempt(number=2, **{"job_id": "2", **own})
    given_up = Objection(why=why, state="FAILED") if why else None
    assert find_exhaustion(run, attempt, history, restarts=1) == given_up
    run.outcome(1).write_text('{"state": "TIMEOUT", "exit_code": 75, "next": "standby"}')
    assert find_exhaustion(run, attempt, history, restarts=1) is None
