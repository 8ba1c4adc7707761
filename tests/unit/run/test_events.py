"""Every event: it is described, it comes back as it was, and bad values become neutral ones."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.core.codec import decode, describe
from echelon.core.records import MOST_RANKS
from echelon.run.directory import RunDir
from echelon.run.event_log import parse_event, render_event
from echelon.run.events import (
    AttemptStarted,
    ControllerEvent,
    GenerationEnded,
    GenerationStarted,
    HangDetected,
    RestartDecided,
    RunEvents,
    StandbySubmitted,
)
from echelon.run.metrics import MetricEvent, StepLogged
from echelon.run.verdict import Failure, Verdict

EVENTS = [*ControllerEvent.kinds.values(), *MetricEvent.kinds.values()]
VERDICT = Verdict(
    failure=Failure(cause="signal", message="killed by SIGKILL", rank=3, node="n1", step=7),
    victims=(Failure(cause="lost peer", message="gone", rank=1),),
    stacks={"0": "train.py:3"},
)
odd = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@pytest.mark.parametrize("event", EVENTS)
def test_it_and_its_fields_are_described(event):
    assert event.__doc__.endswith(".")
    assert all(field.about for field in describe(event))


@pytest.mark.parametrize(
    "event",
    [
        HangDetected.of(VERDICT),
        RestartDecided(verdict=VERDICT, generation=2),
        GenerationEnded(
            generation=1, ranks=2, known=2, again=True, seconds={"productive": 3.5}, first=0,
            last=9, steps_s=0.25,
        ),
        StandbySubmitted(refused="QOSMaxSubmitJobPerUserLimit"),
    ],
    ids=lambda event: event.kind,
)  # fmt: skip
def test_it_comes_back_as_it_was(event):
    assert parse_event(render_event(1.0, event), ControllerEvent).event == event


def test_optional_fields_are_left_out_when_they_say_nothing():
    line = json.loads(render_event(1.0, StandbySubmitted(job="7", attempt=2)))
    assert line == {"time": 1.0, "kind": "standby", "job": "7", "attempt": 2}


@pytest.mark.parametrize("event", EVENTS)
@given(data=st.data())
def test_any_values_make_an_event_that_can_be_written(event, data):
    """Only a verdict needs one of its fields: there is none without a failure."""
    names = [field.name for field in describe(event)]
    record = data.draw(st.dictionaries(st.sampled_from(names), odd))
    if issubclass(event, Verdict):
        record["failure"] = {"rank": record.get("rank")}
    found = decode(event, record)
    again = json.loads(render_event(1.0, found))
    assert decode(event, again) == found or "nan" in repr(found)


@pytest.mark.parametrize("count", [-1, MOST_RANKS, 10**400, True, 2.0, "2", None])
def test_what_is_no_number_of_ranks_is_none(count):
    assert decode(GenerationStarted, {"world_size": count}).world_size == 0
    assert decode(AttemptStarted, {"saved": -5 if count == MOST_RANKS else count}).saved == -1


def test_numbers_of_a_training_may_be_any_but_they_are_numbers():
    metrics = {"loss": 1, "lr": -0.5, "inf": float("inf"), "a": True, "b": "x", "c": 10**400}
    event = decode(StepLogged, {"metrics": metrics})
    assert event.metrics == {"loss": 1, "lr": -0.5, "inf": float("inf")}


def test_all_controllers_of_a_run_are_followed(tmp_path):
    run = RunDir.create(tmp_path, "r-1")
    events = RunEvents(run)
    assert events.read() == []
    for number in (2, 10):
        run.events_of(f"controller-{number}").write_text('{"time":1,"kind":"slots"}\n')
    (run.events / "controller-x.jsonl").write_text('{"time":1,"kind":"slots"}\n')
    assert [(number, record.event.kind) for number, record in events.read()] == [
        (2, "slots"),
        (10, "slots"),
    ]
    with run.events_of("controller-2").open("a") as file:
        file.write('{"time":2,"kind":"ended"}\n')
    assert [(number, record.event.kind) for number, record in events.read()] == [(2, "ended")]
