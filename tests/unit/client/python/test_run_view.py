"""Waiting for one run and for several runs."""

import pytest

import echelon
from echelon.core.jobs import Job

DONE = Job(id="7", state="COMPLETED")


class Jobs:
    """Answers with one mapping after the other; with the last one from then on."""

    every_s = 0.0

    def __init__(self, *answers):
        self._answers, self.asked = list(answers), 0

    def ended(self):
        self.asked += 1
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


class Source:
    place, trusts = "", False

    def __init__(self, run_id, jobs):
        self.run_id, self.jobs = run_id, jobs


def make_runs(jobs, *names):
    return [echelon.Run.of(Source(name, jobs)) for name in names]


def test_waiting_continues_while_the_state_of_a_run_is_unknown():
    jobs = Jobs({}, {"a": None}, {"a": DONE})
    (run,) = make_runs(jobs, "a")
    assert run.wait() == "COMPLETED"
    assert jobs.asked == 3


def test_a_time_out_while_waiting_names_the_run():
    (run,) = make_runs(Jobs({"a": None}), "a")
    with pytest.raises(echelon.EchelonError, match="the run 'a' has not ended in time"):
        run.wait(0)


def test_tasks_of_a_sweep_are_queried_together():
    jobs = Jobs(dict.fromkeys("abc", DONE))
    assert [run.id for run in echelon.as_completed(make_runs(jobs, "a", "b", "c"))] == [*"abc"]
    assert jobs.asked == 1


def test_runs_are_yielded_as_they_end(monkeypatch):
    monkeypatch.setattr("echelon.client.python.run_view._ASK_S", 0)
    jobs = Jobs({"a": None, "b": DONE}, {"a": DONE, "b": DONE})
    assert [run.id for run in echelon.as_completed(make_runs(jobs, "a", "b"))] == ["b", "a"]


def test_a_time_out_of_several_runs_names_the_remaining_ones():
    runs = echelon.as_completed(make_runs(Jobs({"a": None, "b": DONE}), "a", "b"), timeout=0)
    assert next(runs).id == "b"
    with pytest.raises(echelon.EchelonError, match="1 runs have not ended in time: a"):
        next(runs)
