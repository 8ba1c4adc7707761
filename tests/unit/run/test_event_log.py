"""Event files: what is written comes back, and what nobody here wrote does no harm."""

import json

from hypothesis import given
from hypothesis import strategies as st

from echelon.run.event_log import EventReader, EventWriter, Record, Unknown, parse_event
from echelon.run.event_log import render_event as render
from echelon.run.events import ControllerEvent, EventsLost, RankExited, SlotsCounted
from eventlines import raw

json_values = st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text())


@given(st.floats(0, 2e9), st.text(), st.dictionaries(st.text(), json_values))
def test_unknown_events_round_trip(time_s, kind, data):
    data = {key: value for key, value in data.items() if key not in ("time", "kind")}
    event = Unknown(kind=f"?{kind}", data=data)
    assert "\n" not in render(time_s, event)
    assert parse_event(render(time_s, event), ControllerEvent) == Record(time_s, event, data)


@given(st.text())
def test_a_line_that_is_no_event_is_none(line):
    assert parse_event(line, ControllerEvent) is None or '"kind"' in line


def test_fields_of_other_versions_are_kept():
    record = parse_event('{"time":1,"kind":"slots","slots":4,"colour":"red"}', ControllerEvent)
    assert record.event == SlotsCounted(slots=4)
    assert record.data == {"slots": 4, "colour": "red"}


def test_an_event_that_lacks_what_it_is_about_is_unknown():
    record = parse_event('{"time":1,"kind":"verdict","failure":3}', ControllerEvent)
    assert record.event == Unknown(kind="verdict", data={"failure": 3})


def test_a_reader_follows_a_writer(tmp_path):
    path, clock = tmp_path / "a.jsonl", iter([1.0, 2.0])
    reader = EventReader(path, ControllerEvent)
    assert reader.read() == []
    with EventWriter(path, clock=lambda: next(clock)) as writer:
        event = RankExited(rank=3, generation=0, code=1, signal=0, step=5)
        writer.write(event)
        fields = {"rank": 3, "generation": 0, "code": 1, "signal": 0, "step": 5}
        assert json.loads(path.read_text()) == {"time": 1.0, "kind": "exited", **fields}
        assert reader.read() == [Record(1.0, event, fields)]
        assert reader.read() == []
        writer.write(EventsLost(count=7))
        assert [record.event for record in reader.read()] == [EventsLost(count=7)]


def test_a_torn_last_line_waits_for_its_rest(tmp_path):
    path = tmp_path / "a.jsonl"
    reader = EventReader(path, ControllerEvent)
    path.write_text('{"time":1,"kind":"a"}\n{"time":2,"ki')
    assert [record.event.kind for record in reader.read()] == ["a"]
    with path.open("a") as file:
        file.write('nd":"b"}\n')
    assert [record.event.kind for record in reader.read()] == ["b"]


def test_a_successor_writes_after_a_torn_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"time":1,"kind":"a"}\n{"time":2,"ki')
    with EventWriter(path, clock=lambda: 3.0) as writer:
        writer.write(raw("b"))
    found = EventReader(path, ControllerEvent).read()
    assert [record.event.kind for record in found] == ["a", "b"]
