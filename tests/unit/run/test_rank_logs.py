import os
import resource
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.run import rank_logs as ranklogs
from echelon.run.rank_logs import LogClock, RankLog, RunLogs, Tail, last_lines_start

NOW_S = 1000.0


@pytest.fixture
def logs(tmp_path):
    (tmp_path / "1.0").mkdir()
    return tmp_path


def write(path, content):
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as file:
        file.write(content)


def texts(reader, *, over=False):
    return [line.text for line in reader.read(over=over, now_s=NOW_S)]


def test_lines_are_merged_by_when_they_were_written(logs):
    clock = LogClock()
    paths = [logs / "1.0" / f"rank-{rank:05}.log" for rank in range(3)]
    for path in paths:
        clock.add(path)
    for now_s, rank, content in (
        (1.0, 2, b"a\nb\n"),
        (2.0, 0, b"c\n"),
        (3.0, 1, b"d"),
        (4.0, 0, b"e\n"),
        (5.0, 1, b"d\n"),
    ):
        write(paths[rank], content)
        clock.tick(now_s)
    found = list(RunLogs(logs).read(over=True, now_s=NOW_S))
    assert [line.text for line in found] == ["a", "b", "c", "e", "dd"]
    assert [line.time_s for line in found] == [1.0, 1.0, 2.0, 4.0, 5.0]
    assert [line.rank for line in found] == [2, 2, 0, 0, 1]


def test_a_line_that_nobody_has_timed_yet_is_of_now(logs):
    clock, path = LogClock(), logs / "1.0" / "rank-00000.log"
    clock.add(path)
    write(path, b"timed\n")
    clock.tick(5.0)
    write(path, b"not yet\n")
    log = RankLog(path)
    assert [line.time_s for line in log.read(over=False, now_s=NOW_S)] == [5.0, NOW_S]
    write(path, b"later\n")
    clock.finish(path, 6.0)
    assert [line.time_s for line in log.read(over=True, now_s=NOW_S)] == [6.0]


def test_a_clock_that_goes_back_does_not_turn_a_rank_around(logs):
    clock, paths = LogClock(), [logs / "1.0" / f"rank-0000{rank}.log" for rank in (0, 1)]
    for path in paths:
        clock.add(path)
    for now_s, content in ((9.0, b"1\n"), (2.0, b"2\n"), (8.0, b"3\n")):
        write(paths[0], content)
        write(paths[1], content)
        clock.tick(now_s)
    found = list(RunLogs(logs).read(over=True, now_s=NOW_S))
    for rank in (0, 1):
        assert [line.text for line in found if line.rank == rank] == ["1", "2", "3"]


@pytest.mark.parametrize("notes", [b"", b"no time\n", b"1.5", b"\xff\xff\n7.0 3\n", b"nan x\n1\n"])
def test_damaged_times_lose_no_line(logs, notes):
    write(logs / "1.0" / "rank-00000.log", b"a\nb\n")
    write(logs / "1.0" / "rank-00000.times", notes)
    assert texts(RunLogs(logs), over=True) == ["a", "b"]


def test_an_unfinished_line_waits_until_the_end(logs):
    path = logs / "1.0" / "rank-00000.log"
    write(path, b"a\nhal")
    reader = RunLogs(logs)
    assert texts(reader) == ["a"]
    assert texts(reader) == []
    write(path, b"f\n\nrest")
    assert texts(reader) == ["half", ""]
    assert texts(reader, over=True) == ["rest"]
    assert texts(reader, over=True) == []


def test_an_unfinished_line_of_ranks_that_are_gone_waits_no_longer(logs):
    reader = RunLogs(logs)
    write(logs / "1.0" / "rank-00000.log", b"cut of")
    assert texts(reader) == []
    write(logs / "1.1" / "rank-00000.log", b"again\nunfin")
    assert texts(reader) == ["cut of", "again"]


def test_generations_come_one_after_the_other(logs):
    for folder in ("1.2", "2.0", "1.10", "1.0"):
        write(logs / folder / "rank-00000.log", f"{folder}\n".encode())
    write(logs / "job-1.out", b"no rank's\n")
    assert texts(RunLogs(logs)) == ["1.0", "1.2", "1.10", "2.0"]


def test_a_rank_that_comes_later_is_read_too(logs):
    reader = RunLogs(logs)
    assert texts(reader) == []
    for rank in (0, 1):
        write(logs / "1.0" / f"rank-{rank:05}.log", b"here\n")
        assert texts(reader) == ["here"]


def test_the_output_of_one_rank_can_be_read_alone(logs):
    for rank in (3, 30):
        write(logs / "1.0" / f"rank-{rank:05}.log", f"{rank}\n".encode())
    assert texts(RunLogs(logs, ranks=frozenset({3}))) == ["3"]


def test_what_is_not_text_is_marked_and_the_ends_of_windows_lines_go(logs):
    write(logs / "1.0" / "rank-00000.log", b"a\xffb\r\n10%\r20%\r30%\n\xc3\xa9\xf0\x9f\n")
    assert texts(RunLogs(logs)) == ["a\ufffdb", "10%\r20%\r30%", "é\ufffd"]


def test_a_line_that_never_ends_is_cut_and_loses_nothing(logs):
    path = logs / "1.0" / "rank-00000.log"
    size = 2 * ranklogs._LONGEST + 5
    write(path, b"x" * size)
    reader = RunLogs(logs)
    assert [len(text) for text in texts(reader)] == [ranklogs._LONGEST] * 2
    write(path, b"y\nnext\n")
    assert texts(reader) == ["xxxxxy", "next"]


def test_a_writer_that_does_not_stop_cannot_keep_a_reader(logs):
    path = logs / "1.0" / "rank-00000.log"
    write(path, b"0\n")
    seen = []
    reader = RunLogs(logs)
    for line in reader.read(over=False, now_s=NOW_S):
        seen.append(line.text)
        write(path, f"{len(seen)}\n".encode())
        assert len(seen) == 1
    assert texts(reader) == ["1"]


def test_a_reader_that_was_interrupted_goes_on_with_the_same_line(logs):
    for rank in (0, 1):
        write(logs / "1.0" / f"rank-{rank:05}.log", b"".join(b"%d\n" % n for n in range(5)))
    reader, seen = RunLogs(logs), []
    for line in reader.read(over=True, now_s=NOW_S):
        if len(seen) == 3:
            break  # as by Ctrl-C in the middle of a print
        seen.append((line.rank, line.text))
    seen += [(line.rank, line.text) for line in reader.read(over=True, now_s=NOW_S)]
    assert sorted(seen) == [(rank, str(n)) for rank in (0, 1) for n in range(5)]


def test_many_ranks_need_few_open_files(logs):
    for rank in range(100):
        write(logs / "1.0" / f"rank-{rank:05}.log", b"a\nb\n")
        write(logs / "1.0" / f"rank-{rank:05}.times", b"1.0 2\n2.0 4\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        found = texts(RunLogs(logs), over=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found == ["a"] * 100 + ["b"] * 100


def test_a_long_log_is_not_held_in_memory(logs):
    path = logs / "1.0" / "rank-00000.log"
    line = b"x" * 999 + b"\n"
    write(path, line * 20_000)
    # As if looked at for hours: its times must not be held either.
    write(path.with_suffix(".times"), b"".join(b"%d.0 %d\n" % (n, n * 1000) for n in range(20_001)))
    tracemalloc.start()
    try:
        count = sum(len(found.text) + 1 for found in RankLog(path).read(over=True, now_s=NOW_S))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 20_000_000
    assert peak < 1_000_000


_CONTENT = st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\xc3", b"\xa9", b" "]), max_size=60)


@given(pieces=st.lists(_CONTENT.map(b"".join), max_size=8))
def test_pieces_make_the_same_lines_as_the_whole(tmp_path_factory, pieces):
    path = tmp_path_factory.mktemp("logs") / "file"
    path.touch()
    tail, found = Tail(path), []
    for piece in pieces:
        write(path, piece)
        found += [text for _, text in tail.read(over=False)]
    found += [text for _, text in tail.read(over=True)]
    whole = b"".join(pieces)
    assert found == [text for _, text in Tail(path).read(over=True)]
    assert tail.offset == len(whole)
    lines = whole.split(b"\n")
    expected = lines if lines[-1] else lines[:-1]
    assert found == [line.decode(errors="replace").rstrip("\r") for line in expected]


@pytest.mark.timeout(120)
def test_a_hole_of_a_terabyte_is_skipped(tmp_path):
    log = tmp_path / "rank-00000.log"
    log.write_bytes(b"before\nhalf")
    with log.open("r+b") as file:
        file.truncate(1 << 40)
        file.seek(1 << 40)
        file.write(b"after\n")
    lines = [text.strip("\0") for _, text in Tail(log).read(over=True)]
    assert [line for line in lines if line] == ["before", "half", "after"]
    assert len(lines) < 10


LINES = st.lists(st.sampled_from(["", "a", "b\r", "c" * 20_000, "d" * 40_000]), max_size=12)


@given(LINES, st.booleans(), st.integers(0, 14))
def test_the_last_lines_of_a_file_begin_where_they_should(tmp_path_factory, lines, ended, count):
    path = tmp_path_factory.mktemp("logs") / "log"
    path.write_text("\n".join(lines) + "\n" * ended, newline="")
    whole = [text for _, text in Tail(path).read(over=True)]
    start = last_lines_start(path, count)
    found = [text for _, text in Tail(path, start=start).read(over=True)]
    assert found == (whole[-count:] if count else [])
    assert start <= path.stat().st_size


def test_only_the_end_of_a_large_log_is_read(tmp_path):
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a hole: reading it would take for ever
        file.seek(0, os.SEEK_END)
        file.write(b"\na\nb\n")
    assert [text for _, text in Tail(path, start=last_lines_start(path, 2)).read(over=True)] == [
        "a",
        "b",
    ]


def test_the_last_lines_of_all_ranks_and_what_is_added(logs):
    for name, content in (("1.0", b"old\n" * 9), ("1.1", b"a\nb\n")):
        write(logs / name / "rank-00000.log", content)
    write(logs / "1.1" / "rank-00001.log", b"c\n")
    reader = RunLogs(logs)
    reader.skip(2)
    assert sorted(texts(reader)) == ["a", "b", "c"]
    write(logs / "1.1" / "rank-00001.log", b"d\n")
    assert texts(reader) == ["d"]


def test_another_reader_reads_on_where_one_was(tmp_path):
    """Whatever was read between: nothing is lost, and nothing comes twice."""
    for name, text in {"1.0/rank-00000.log": "a\nb\n", "1.0/rank-00001.log": "c\nhal"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    first = RunLogs(tmp_path)
    seen = [line.text for line in first.read(over=False, now_s=0)]
    with (tmp_path / "1.0/rank-00001.log").open("a") as file:
        file.write("f\n")
    (tmp_path / "1.1").mkdir()
    (tmp_path / "1.1/rank-00000.log").write_text("d\n")
    second = RunLogs(tmp_path)
    second.continue_from(first.position())
    seen += [line.text for line in second.read(over=False, now_s=0)]
    third = RunLogs(tmp_path)
    third.continue_from(second.position())
    seen += [line.text for line in third.read(over=True, now_s=0)]
    assert sorted(seen) == ["a", "b", "c", "d", "half"]
