"""A run that browsers look at: each is sent what it has not seen."""

import json
import os
import time

import pytest

from echelon.monitor.logbook import Wanted
from echelon.monitor.saves import Saves
from echelon.monitor.watched import Watched
from echelon.run.directory import RunDir
from echelon.run.event_log import EventWriter
from echelon.run.series import Sample, SeriesWriter
from eventlines import raw


class Live:
    """A run that is written to, and looked at whenever it is asked for."""

    def __init__(self, folder):
        self.run = RunDir.create(folder, "r-1")
        self.events = EventWriter(self.run.events_of("controller-1"), clock=time.time)
        self.metrics = EventWriter(self.run.metrics, clock=time.time)
        self.now_s = 0.0
        self.watched = Watched(self.run, timer=lambda: self.now_s)

    def begin(self, ranks=2):
        self.events.write(raw("attempt", job="7", slots=ranks))
        self.events.write(raw("joined", node=0, name="node1", gpus=0))
        self.events.write(raw("generation", generation=0, world_size=ranks, nodes=1))
        path = self.run.telemetry(1, 0, 0)
        path.parent.mkdir()
        self.series = SeriesWriter(lambda level: self.run.telemetry(1, 0, level))

    def measure(self, at_s, step):
        means = {"cpu": 0.5, "rank0.steps": 2.0, "rank0.busy": 0.9, "rank0.comm": 0.1}
        lasts = {"rank0.step": step, "rank0.generation": 0}
        self.series.append(Sample(time_s=at_s, means=means, lasts=lasts))

    def news(self, since):
        self.now_s += 1.0  # it reads no more than once a second
        version, text = self.watched.news(since)
        return version, json.loads(text) if text else None


@pytest.fixture
def live(tmp_path):
    one = Live(tmp_path)
    yield one
    one.events.close()
    one.metrics.close()


def test_at_first_all_is_told_and_then_what_has_changed(live):
    version, told = live.news(0)
    assert told["head"]["phase"] == "QUEUED"
    assert live.news(version)[1] is None
    live.begin()
    live.measure(1000.0, 5)
    version, told = live.news(version)
    assert told["head"]["phase"] == "RUNNING"
    assert [one["time"] for one in told["columns"]] == [1000]
    fields = told["head"]["fields"]
    assert dict(zip(fields, told["ranks"][0], strict=True)) == {
        "rank": 0, "node": 0, "alive": True, "failed": False, "step": 5, "steps": 2.0,
        "data": None, "stall": None, "comm": 0.1, "busy": 0.9, "mem": None, "util": None,
    }  # fmt: skip
    live.measure(1001.0, 6)
    version, told = live.news(version)
    assert told.keys() - {"now", "took"} == {"head", "ranks", "columns"}
    assert [one["time"] for one in told["columns"]] == [1001]


def test_two_browsers_are_each_sent_what_they_lack(live):
    live.begin()
    early, _ = live.news(0)
    live.metrics.write(raw("step", step=1, metrics={"loss": 3.0}))
    late, told = live.news(early)
    assert told["curves"] == {"loss": [[1.0], [3.0]]}
    assert live.news(late)[1] is None
    assert live.news(early)[1]["curves"] == {"loss": [[1.0], [3.0]]}


def test_what_ranks_did_before_is_recalled_once(live):
    live.begin()
    for at in range(30):
        live.measure(1000.0 + at, at)
    version, told = live.news(0)
    assert [one["time"] for one in told["columns"]] == [1029]
    assert live.watched.recall()
    assert not live.watched.recall()
    _, told = live.news(version)
    assert [one["time"] for one in told["columns"]] == list(range(1000, 1030))


def test_looking_costs_no_more_than_a_part_of_the_time(live):
    live.begin()
    live.watched.news(0)
    live.measure(1000.0, 5)
    assert live.watched.news(10**6) == (10**6, "")  # it was looked at just now


def test_numbers_that_json_does_not_have_are_left_out(live):
    live.begin()
    live.metrics.write(raw("step", step=1, metrics={"loss": float("nan")}))
    live.events.write(raw("verdict", failure={"message": float("inf")}, victims=[{"rank": 1}, 3]))
    _, told = live.news(0)
    assert told["curves"] == {"loss": [[1.0], [None]]}
    assert told["head"]["newest"] == {"loss": None}
    assert told["verdict"]["failure"]["message"] == ""
    assert told["verdict"]["victims"] == [1]


def test_a_job_that_waits_is_named(live):
    folder = live.run.attempt(1)
    folder.mkdir()
    record = {"job_id": "4711", "submitted": "2025-01-01T10:00:00+00:00"}
    (folder / "job.json").write_text(json.dumps(record))
    _, told = live.news(0)
    assert told["head"]["waiting"]["job"] == "4711"
    live.begin()
    assert live.news(0)[1]["head"]["waiting"] is None


@pytest.mark.parametrize(("next_step", "shown"), [("", False), ("standby", True)])
def test_a_standby_job_is_named_only_if_the_run_continues(live, next_step, shown):
    live.begin()
    live.events.write(raw("ended", state="COMPLETED"))
    for number, after in ((1, ""), (2, "4710")):
        live.run.attempt(number).mkdir(exist_ok=True)
        record = {"job_id": f"471{number}", "after": after}
        (live.run.attempt(number) / "job.json").write_text(json.dumps(record))
    outcome = {"state": "COMPLETED", "exit_code": 0, "next": next_step}
    live.run.outcome(1).write_text(json.dumps(outcome))
    _, told = live.news(0)
    assert (told["head"]["waiting"] is not None) == shown


def test_a_run_of_which_nothing_is_heard_says_so(live):
    live.begin()
    live.measure(time.time() - 100, 5)
    assert live.news(0)[1]["head"]["silent"] in (100, 110)
    live.events.write(raw("ended", state="FAILED"))
    assert live.news(0)[1]["head"]["silent"] == 0


def test_the_time_of_a_running_run_follows_its_own_clock(live):
    live.begin()
    live.measure(time.time() + 1, 5)
    days_s = 10 * 86400.0
    os.utime(live.run.telemetry(1, 0, 0), (time.time() + days_s,) * 2)
    _, told = live.news(0)
    assert told["now"] == pytest.approx(time.time() - days_s, abs=5)


def test_checkpoints_are_listed(live):
    live.begin()
    version, told = live.news(0)
    assert told["checkpoints"] == []
    folder = live.run.checkpoint(1200)
    folder.mkdir()
    manifest = {"step": 1200, "metrics": {"loss": 0.5}, "bytes": 7}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    live.run.checkpoint(1300).mkdir()  # one that is not whole
    (live.run.checkpoints / "best.json").write_text('{"step": 1200}')
    (row,) = live.news(version)[1]["checkpoints"]
    assert (row["step"], row["bytes"], row["best"]) == (1200, 7, True)
    assert row["metrics"] == {"loss": 0.5}


def test_output_is_followed(live):
    log = live.run.rank_log(attempt=1, generation=0, rank=3)
    log.parent.mkdir()
    log.write_text("one\n")
    told = live.watched.logs(None, Wanted())
    assert told["lines"] == [[3, "one"]]
    with log.open("a") as file:
        file.write("two\n")
    live.now_s += 1.0
    assert live.watched.logs(told["next"], Wanted())["lines"] == [[3, "two"]]


def test_a_best_checkpoint_that_is_no_number_is_none(tmp_path):
    (tmp_path / "best.json").write_text('{"step": {}}')
    saves = Saves(tmp_path)
    saves.read()
    assert saves.rows == []
