"""The ranks' output, followed and searched."""

import pytest

from echelon.monitor import logbook
from echelon.monitor.logbook import LogBook, Wanted, search


@pytest.fixture
def logs(tmp_path):
    return tmp_path / "logs"


def write(logs, rank, text, *, generation="1.0", times=()):
    path = logs / generation / f"rank-{rank:05}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(text.encode(errors="surrogateescape"))
    path.with_suffix(".times").write_text("".join(f"{at} {size}\n" for at, size in times))
    return path


def follow(book, after, wanted=Wanted()):  # noqa: B008  it is frozen
    book.read(now_s=99.0)
    return book.follow(after, wanted)


def test_new_lines_are_told_once(logs):
    book = LogBook(logs)
    write(logs, 0, "a\nb\nhalf")
    book.read(now_s=1.0)
    told = book.show(Wanted())
    assert told == {"lines": [[0, "a"], [0, "b"]], "next": 2, "whole": True}
    write(logs, 0, " a line\n")
    write(logs, 1, "c\n")
    told = follow(book, told["next"])
    assert sorted(told["lines"]) == [[0, "half a line"], [1, "c"]]
    assert follow(book, told["next"])["lines"] == []


def test_who_follows_is_told_what_is_wanted(logs):
    book = LogBook(logs)
    write(logs, 0, "Loss 1\nother\n")
    write(logs, 1, "loss 2\n")
    assert sorted(follow(book, 0, Wanted(text="LOSS"))["lines"]) == [[0, "Loss 1"], [1, "loss 2"]]
    assert follow(book, 0, Wanted(rank=1))["lines"] == [[1, "loss 2"]]


def test_no_more_is_held_than_can_be_shown_and_who_is_late_is_told(logs, monkeypatch):
    monkeypatch.setattr(logbook, "SHOWN", 3)
    book = LogBook(logs)
    write(logs, 0, "".join(f"{n}\n" for n in range(logbook.HELD + 5)))
    told = follow(book, 0)
    assert [text for _, text in told["lines"]] == ["5002", "5003", "5004"]
    assert not told["whole"]
    assert not book.show(Wanted())["whole"]


def test_of_long_logs_the_newest_is_read_at_first(logs, monkeypatch):
    monkeypatch.setattr(logbook, "_RECENT", 100)
    monkeypatch.setattr(logbook, "_LEAST", 100)
    write(logs, 0, "".join(f"line {n}\n" for n in range(1000)))
    book = LogBook(logs)
    book.read(now_s=1.0)
    shown = [text for _, text in book.show(Wanted())["lines"]]
    assert shown[-1] == "line 999"
    assert shown == [f"line {n}" for n in range(1000 - len(shown), 1000)]
    assert 5 < len(shown) < 15


def test_a_search_finds_what_was_printed_earlier(logs):
    write(logs, 0, "needle 0\n", generation="1.0")
    write(logs, 1, "x\nNeedle 1\n", times=[(5.0, 2), (7.0, 11)], generation="1.10")
    write(logs, 2, "needle 2\nneedle 3\nhalf a needle", times=[(6.0, 9)], generation="1.10")
    write(logs, 3, "hay\n", generation="1.2")
    book = LogBook(logs)
    book.read(now_s=1.0)
    told = book.show(Wanted(text="needle"))
    assert told["lines"] == [[0, "needle 0"], [2, "needle 2"], [1, "Needle 1"], [2, "needle 3"]]
    assert told["whole"]
    assert book.show(Wanted(text="needle", rank=1))["lines"] == [[1, "Needle 1"]]
    write(logs, 2, "s\n", generation="1.10")
    assert follow(book, told["next"], Wanted(text="needle"))["lines"] == [[2, "half a needles"]]


def test_a_search_is_bounded_and_shared_by_the_ranks(logs, monkeypatch):
    monkeypatch.setattr(logbook, "_LEAST", 10)
    write(logs, 0, "x 1\n" + "y\n" * 1000 + "x 2\n")
    write(logs, 1, "x 3\n")
    write(logs, 5, "x 0\n", generation="0.0")
    found, whole = search(logs, {}, Wanted(text="x"), budget=100)
    assert sorted(found) == [(0, "x 2"), (1, "x 3"), (5, "x 0")]
    assert not whole
    found, whole = search(logs, {}, Wanted(text="x"), budget=10_000)
    assert len(found) == 4
    assert whole


def test_what_is_no_text_is_shown_as_well_as_can_be(logs):
    write(logs, 0, "caf\udce9 ÄÖ\r\n" + "z" * 9000 + "\n")
    book = LogBook(logs)
    book.read(now_s=1.0)
    assert [len(text) for _, text in book.show(Wanted())["lines"]] == [7, logbook.LONGEST]
    assert book.show(Wanted(text="äö"))["lines"] == [[0, "caf\ufffd ÄÖ"]]


def test_there_may_be_nothing(logs):
    book = LogBook(logs)
    book.read(now_s=1.0)
    assert book.show(Wanted()) == {"lines": [], "next": 0, "whole": True}
    assert book.show(Wanted(text="x"))["lines"] == []
