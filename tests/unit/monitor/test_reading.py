"""Following the files of a run."""

import json
import time

from echelon.monitor.reading import HISTORY, RunReader
from echelon.run.directory import RunDir
from echelon.run.event_log import EventWriter
from echelon.run.series import Sample, SeriesWriter
from eventlines import raw


def sample(at_s, step):
    return Sample(time_s=at_s, lasts={"rank0.step": step, "rank0.generation": 0})


def test_a_run_is_followed(tmp_path):
    run = RunDir.create(tmp_path, "r-1")
    reader = RunReader(run)
    assert reader.read().phase == "QUEUED"
    with EventWriter(run.events_of("controller-1"), clock=time.time) as events:
        events.write(raw("attempt", job="7"))
        events.write(raw("joined", node=0, name="node1"))
        events.write(raw("generation", generation=0, world_size=1, nodes=1))
        assert reader.read().phase == "RUNNING"
        run.telemetry(1, 0, 0).parent.mkdir()
        writer = SeriesWriter(lambda level: run.telemetry(1, 0, level), lines=100)
        for step in range(150):  # the file is shortened on the way
            writer.append(sample(step + 1, step))
            if step % 7 == 0:
                assert reader.read().step == step
        assert reader.read().step == 149
        times = [one.time_s for one in reader.history[0]]
        assert times == [float(at) for at in range(151 - HISTORY, 151)]
        events.write(raw("ended", state="COMPLETED"))
    with EventWriter(run.metrics, clock=time.time) as metrics:
        metrics.write(raw("step", step=5, metrics={"loss": 0.5}))
    state = reader.read()
    assert (state.phase, state.metrics) == ("COMPLETED", {"loss": [(5, 0.5)]})


def test_a_sample_that_is_half_written_is_left_for_the_next_look(tmp_path):
    run = RunDir.create(tmp_path, "r-1")
    with EventWriter(run.events_of("controller-1"), clock=time.time) as events:
        events.write(raw("attempt", job="7"))
        events.write(raw("joined", node=0, name="node1"))
        events.write(raw("generation", generation=0, world_size=1, nodes=1))
    path = run.telemetry(1, 0, 0)
    path.parent.mkdir()
    reader = RunReader(run)
    whole = '{"time":1,"count":1,"last":{"rank0.step":3,"rank0.generation":0}}\n'
    path.write_text(whole[:20])
    assert reader.read().step == -1
    path.write_text(whole)
    assert reader.read().step == 3


def test_samples_count_again_after_the_clock_of_a_node_was_corrected(tmp_path):
    """Until its first ranks start, a node has only its own clock, which may be days ahead."""
    run = RunDir.create(tmp_path, "r-1")
    with EventWriter(run.events_of("controller-1"), clock=time.time) as events:
        events.write(raw("attempt", job="7"))
        events.write(raw("joined", node=0, name="node1"))
        events.write(raw("generation", generation=0, world_size=1, nodes=1))
    run.telemetry(1, 0, 0).parent.mkdir()
    writer = SeriesWriter(lambda level: run.telemetry(1, 0, level))
    reader = RunReader(run)
    writer.append(sample(864000 + 1, 1))
    assert reader.read().seen_s == 864001
    writer.append(sample(2, 2))
    assert (reader.read().seen_s, reader.read().step) == (2, 2)


def test_when_attempts_were_submitted_is_read_too(tmp_path):
    run = RunDir.create(tmp_path, "run")
    for attempt in (2, 10):
        with EventWriter(run.events_of(f"controller-{attempt}"), clock=time.time) as events:
            events.write(raw("attempt", attempt=attempt))
    (run.events / "controller-x.jsonl").touch()
    reader = RunReader(run)
    reader.read()
    run.attempt(2).mkdir()
    (run.attempt(2) / "job.json").write_text(
        json.dumps({"job_id": "7", "submitted": "1970-01-01T00:10:00+00:00"})
    )
    attempts = reader.read().attempts
    assert {number: one.submitted_s for number, one in attempts.items()} == {2: 600, 10: None}
