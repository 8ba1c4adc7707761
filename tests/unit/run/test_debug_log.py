"""Debug logs: bounded, written in the background, merged by time."""

import logging
import threading
import time

import pytest

from echelon.core.waiting import wait_until
from echelon.run import debug_log as module
from echelon.run.debug_log import DebugLog, read_debug_lines
from echelon.run.directory import RunDir

log = logging.getLogger("echelon.launch.somewhere")


@pytest.fixture
def run(tmp_path):
    found = RunDir.create(tmp_path, "a")
    for number in (1, 2):
        found.attempt(number).mkdir()
    return found


def path_of(run, writer="controller", attempt=1):
    return run.debug_logs(attempt) / f"{writer}.log"


def test_a_line_has_its_time_level_module_and_message(run):
    with DebugLog(path_of(run), "info", clock=lambda: 1.5):
        log.info("it has %d ranks", 3)
        log.debug("not at this level")
    assert path_of(run).read_text() == "1970-01-01T00:00:01.500Z INFO somewhere: it has 3 ranks\n"
    assert path_of(run).stat().st_mode & 0o777 == 0o600
    log.info("after the end")
    assert len(list(read_debug_lines(run))) == 1


def test_the_level_debug_has_all_messages(run):
    with DebugLog(path_of(run), "debug"):
        log.debug("details")
    (line,) = read_debug_lines(run)
    assert line.text == "DEBUG somewhere: details"


def test_lines_of_all_writers_are_merged_by_time_one_attempt_after_the_other(run):
    for attempt, writer, times in (
        (1, "agent-0", (2, 4)),
        (1, "controller", (1, 3)),
        (2, "controller", (0,)),
    ):
        clock = iter(times)
        with DebugLog(path_of(run, writer, attempt), "info", clock=lambda clock=clock: next(clock)):
            for _ in times:
                log.info("here")
    found = [(line.time_s, line.writer) for line in read_debug_lines(run)]
    assert found == [
        *((1, "controller"), (2, "agent-0"), (3, "controller"), (4, "agent-0")),
        (0, "controller"),
    ]


def test_a_message_of_several_lines_stays_together(run):
    with DebugLog(path_of(run), "info", clock=lambda: 0.0):
        log.info("first\nsecond")
        log.info("third")
    found = [line.text for line in read_debug_lines(run)]
    assert found == ["INFO somewhere: first\n    second", "INFO somewhere: third"]


def test_a_log_is_bounded_and_keeps_the_newest_lines(run):
    with DebugLog(path_of(run), "info", limit_bytes=1000):
        for number in range(200):
            log.info("line %d", number)
    names = {path.name: path.stat().st_size for path in run.debug_logs(1).iterdir()}
    assert names.keys() == {"controller.log", "controller.log.1"}
    assert max(names.values()) <= 1000
    numbers = [int(line.text.split()[-1]) for line in read_debug_lines(run)]
    assert numbers == list(range(numbers[0], 200))
    assert len(numbers) > 20


def test_a_long_message_is_cut(run):
    with DebugLog(path_of(run), "info"):
        log.info("x" * 10_000)
    assert len(path_of(run).read_text()) < module.LONGEST + 100


def test_a_message_that_cannot_be_formatted_is_kept_as_it_is(run, monkeypatch):
    monkeypatch.setattr(logging.getLogger("echelon"), "propagate", False)  # not to pytest's handler
    with DebugLog(path_of(run), "info"):
        log.info("%d ranks", "some")
    (line,) = read_debug_lines(run)
    assert line.text == "INFO echelon.launch.somewhere: '%d ranks'"


def test_an_exception_that_ends_the_process_is_logged(run):
    def work():
        with DebugLog(path_of(run), "info"):
            raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        work()
    (line,) = read_debug_lines(run)
    assert "ended by an exception" in line.text
    assert line.text.endswith("ValueError: no such thing")


def test_storage_that_hangs_blocks_nobody(run, monkeypatch):
    monkeypatch.setattr(module, "_CLOSE_S", 0.05)
    answers = threading.Event()
    write = module.write_whole

    def hang(file, line):
        answers.wait()
        write(file, line)

    monkeypatch.setattr(module, "write_whole", hang)
    began_s = time.monotonic()
    with DebugLog(path_of(run), "info"):
        for number in range(module._ROOM + 100):
            log.info("line %d", number)
    assert time.monotonic() - began_s < 5
    answers.set()
    lines = lambda: [line.text for line in read_debug_lines(run)]  # noqa: E731
    assert wait_until(lambda: any("lines were dropped" in text for text in lines()), timeout_s=10)


def test_what_is_no_line_is_skipped(run):
    run.debug_logs(1).mkdir()
    path_of(run).write_bytes(b"rubbish\n\xff\xfe\n1970-01-01T00:00:01.000Z INFO a: b\n")
    assert [line.render() for line in read_debug_lines(run)] == [
        "1970-01-01T00:00:01.000Z controller INFO a: b"
    ]


def test_a_run_without_debug_logs_has_no_lines(run):
    assert list(read_debug_lines(run)) == []
