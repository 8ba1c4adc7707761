"""Files that are damaged, hostile or no files at all."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.core.records import (
    MOST_RANKS,
    UnreadableError,
    open_regular,
    parse_json,
    parse_toml,
    read_bytes,
    read_record,
    render_json,
    to_count,
)
from echelon.run.directory import RunDir
from echelon.run.event_log import EventReader, parse_event
from echelon.run.events import ControllerEvent
from echelon.run.series import parse_sample, read_file


def make_odd(path, kind):
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(kind)


@pytest.mark.parametrize("kind", ["pipe", "folder", "/dev/zero"])
@pytest.mark.timeout(60)
def test_what_is_no_file_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "record.json"
    make_odd(path, kind)
    for read in (open_regular, read_bytes, read_record):
        with pytest.raises(UnreadableError, match="not a regular file"):
            read(path)
    assert EventReader(path, ControllerEvent).read() == []
    assert read_file(path) == []


def test_a_link_to_itself_is_no_storage_that_is_away(tmp_path):
    path = tmp_path / "record.json"
    path.symlink_to(path)
    (tmp_path / "file").touch()
    for odd in (path, tmp_path / "file" / "record.json"):
        with pytest.raises(UnreadableError):
            open_regular(odd)
        assert EventReader(odd, ControllerEvent).read() == []


def test_a_file_of_a_terabyte_is_not_read_into_memory(tmp_path):
    path = tmp_path / "record.json"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(UnreadableError, match="larger than"):
        read_record(path)


def test_a_folder_with_a_file_that_never_ends_its_line(tmp_path, monkeypatch):
    monkeypatch.setattr("echelon.run.event_log.MOST_READ", 100)
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"x" * 250 + b'\n{"time":1,"kind":"after"}\n')
    reader = EventReader(path, ControllerEvent)
    found = [one.event.kind for _ in range(4) for one in reader.read()]
    assert found == ["after"]


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" * 400 + "]" * 400])
def test_deep_json_is_an_error_of_its_own(text):
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(text)


def test_brackets_in_texts_are_not_nesting():
    value = {"trace": '[{"\\' * 1000, "list": [[1]] * 1000}
    assert parse_json(json.dumps(value)) == value


def test_deep_toml_is_an_error_of_its_own():
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_toml("a = " + "[" * 100_000)


@pytest.mark.parametrize("text", ["3", "[1]", '"x"', "null", "", "{", "NaN"])
def test_a_record_is_an_object(tmp_path, text):
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"expected|Expecting|property"):
        read_record(path)


@pytest.mark.parametrize("time", ["NaN", "Infinity", "1e300", "-5", "1e999", "1" * 400, "null"])
def test_an_event_of_an_impossible_time_is_passed_over(time):
    assert parse_event(f'{{"time":{time},"kind":"note"}}', ControllerEvent) is None
    assert parse_sample(f'{{"time":{time},"count":1}}') is None


def test_measurements_that_are_no_numbers_are_left_out():
    line = '{"time":1,"count":1,"mean":{"a":NaN,"b":1e999,"c":-1e300,"d":0.5}}'
    assert parse_sample(line).means == {"d": 0.5}


def test_numbers_out_of_range_are_none():
    assert [to_count(one) for one in (3, 0, -1, True, 2.0, "3", None, 2**53)] == [
        *(3, 0),
        *[None] * 6,
    ]
    assert to_count(10**8, below=MOST_RANKS) is None


def test_json_for_others_has_neither_nan_nor_control_characters():
    value = {"a": [float("nan"), float("inf"), 1.0], "b": "\x7f\x1b"}
    assert render_json(value) == '{"a":[null,null,1.0],"b":"\\u007f\\u001b"}'


@given(st.text())
def test_any_line_is_an_event_or_none(line):
    parse_event(line, ControllerEvent)
    parse_sample(line)


def test_folders_with_odd_names_are_no_attempts(tmp_path):
    run = RunDir.create(tmp_path, "r-1")
    for name in ("1", "2", "03", "x", "-4", "99999999999", "٣"):
        (run.attempts / name).mkdir()
        (run.events / f"controller-{name}.jsonl").touch()
    assert run.attempt_numbers() == run.begun_numbers() == [1, 2]
    assert run.claim_attempt() == 3
