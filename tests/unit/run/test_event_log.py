from hypothesis import given
from hypothesis import strategies as st

from echelon.run.event_log import Event, EventReader, EventWriter, parse_event, render_event

json_values = st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text())


@given(st.floats(0, 2e9), st.text(), st.dictionaries(st.text(), json_values))
def test_events_round_trip(time_s, kind, data):
    data = {key: value for key, value in data.items() if key not in ("time", "kind")}
    event = Event(time_s=time_s, kind=kind, data=data)
    assert "\n" not in render_event(event)
    assert parse_event(render_event(event)) == event


@given(st.text())
def test_a_line_that_is_no_event_is_none(line):
    assert parse_event(line) is None or '"kind"' in line


def test_a_reader_follows_a_writer(tmp_path):
    path, clock = tmp_path / "a.jsonl", iter([1.0, 2.0])
    reader = EventReader(path)
    assert reader.read() == []
    with EventWriter(path, clock=lambda: next(clock)) as writer:
        writer.write("started", rank=3)
        assert reader.read() == [Event(time_s=1.0, kind="started", data={"rank": 3})]
        assert reader.read() == []
        writer.write("exited", code=1)
        assert [event.kind for event in reader.read()] == ["exited"]


def test_a_torn_last_line_waits_for_its_rest(tmp_path):
    path = tmp_path / "a.jsonl"
    reader = EventReader(path)
    path.write_text('{"time":1,"kind":"a"}\n{"time":2,"ki')
    assert [event.kind for event in reader.read()] == ["a"]
    with path.open("a") as file:
        file.write('nd":"b"}\n')
    assert [event.kind for event in reader.read()] == ["b"]


def test_a_successor_writes_after_a_torn_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"time":1,"kind":"a"}\n{"time":2,"ki')
    with EventWriter(path, clock=lambda: 3.0) as writer:
        writer.write("b")
    assert [event.kind for event in EventReader(path).read()] == ["a", "b"]
