"""Whom a failure blames, what makes a node a bad one, and a file that several write at once."""

import json
import stat
import subprocess
import sys
import threading

import pytest

from echelon.run.node_record import (
    KEEP_S,
    BadNode,
    NodeEvent,
    NodeRecord,
    append_entries,
    bad_nodes,
    blames_node,
    cluster_name,
    known_clusters,
    read_entries,
    record_path,
)
from echelon.run.verdict import CAUSES, OUR_PAUSE, Failure


def failure(cause, *, node="node3", message="", exit_code=1):
    return Failure(cause=cause, message=message, node=node, exit_code=exit_code)


def bad(entries, now_s=100.0):
    return bad_nodes(entries, now_s=now_s)


def mishap(node="node3", run="a", cause="lost node", time_s=0.0):
    return NodeEvent(
        kind="mishap", node=node, run=run, cause=cause, reason="its agent was lost", time_s=time_s
    )


# --- whose fault it is --------------------------------------------------------------------------


@pytest.mark.parametrize("cause", sorted(CAUSES))
def test_few_causes_blame_a_node(cause):
    assert blames_node(failure(cause)) == (cause in ("lost node", "gpu fault", "start"))
    assert not blames_node(failure(cause, node=""))


@pytest.mark.parametrize("number", range(1, 32))
def test_of_signals_only_those_count_that_come_from_outside(number):
    assert blames_node(failure("signal", exit_code=128 + number)) == (number in (7, 9))


def test_a_node_that_was_lost_by_our_own_doing_is_not_to_blame():
    message = f"its agent was lost: it left {OUR_PAUSE} for 7 s"
    assert not blames_node(failure("lost node", message=message))


# --- what makes a node bad ----------------------------------------------------------------------


def test_two_mishaps_in_one_run_make_a_bad_node():
    found = bad([mishap(time_s=10), mishap("node1", time_s=11), mishap(time_s=12)])
    assert found == {
        "node3": BadNode(
            node="node3",
            since_s=12,
            until_s=12 + KEEP_S,
            run="a",
            reason="2 mishaps in one run: its agent was lost",
        )
    }


def test_two_mishaps_in_different_runs_do_not():
    assert bad([mishap(run="a"), mishap(run="b"), mishap(run="c")]) == {}


def test_one_failed_check_is_enough():
    check = NodeEvent(
        kind="excluded", node="node3", run="a", reason="nvidia-smi -L ended", time_s=5
    )
    found = bad([mishap("node1"), check])
    assert found == {
        "node3": BadNode(
            node="node3", since_s=5, until_s=5 + KEEP_S, run="a", reason="nvidia-smi -L ended"
        )
    }


def test_what_was_forgiven_counts_no_more():
    forgiven = NodeEvent(kind="forgiven", node="node3")
    assert bad([mishap(), mishap(), forgiven]) == {}
    assert bad([mishap(), forgiven, mishap()]) == {}
    assert set(bad([mishap(), mishap(), forgiven, mishap(), mishap()])) == {"node3"}
    other = NodeEvent(kind="forgiven", node="node1")
    assert set(bad([mishap(), mishap(), other])) == {"node3"}


def test_ranks_that_are_killed_everywhere_are_nobodys_fault():
    """Somebody's script, or a limit that all nodes have."""

    def killed(*nodes):
        return set(bad([mishap(node, cause="signal") for node in nodes]))

    assert killed("node1", "node1") == {"node1"}
    assert killed("node1", "node1", "node2") == set()
    assert killed("node1", "node1", "node1", "node2") == {"node1"}
    assert killed(*["node1", "node2", "node3"] * 4) == set()
    twice_lost = [mishap("node1"), mishap("node1"), *[mishap("node2", cause="signal")] * 2]
    assert set(bad(twice_lost)) == {"node1"}


def failed_check(time_s, keep_s=KEEP_S):
    return NodeEvent(kind="excluded", node="node3", run="a", time_s=time_s, keep_s=keep_s)


def until(entries, now_s):
    return {name: one.until_s for name, one in bad(entries, now_s).items()}


def test_a_bad_node_comes_back_after_its_time():
    assert KEEP_S == 7 * 24 * 3600
    for entries in ([failed_check(10)], [mishap(time_s=2), mishap(time_s=10)]):
        assert until(entries, 10 + KEEP_S - 1) == {"node3": 10 + KEEP_S}
        assert until(entries, 10 + KEEP_S) == {}


def test_how_long_is_for_the_run_to_say():
    assert until([failed_check(10, keep_s=60)], 69) == {"node3": 70}
    assert until([failed_check(10, keep_s=60)], 70) == {}
    assert until([failed_check(10, keep_s=0)], 10) == {}


def test_a_node_that_fails_once_more_stays_out_for_longer():
    entries = [failed_check(10, keep_s=60), failed_check(50, keep_s=60)]
    assert until(entries, 100) == {"node3": 110}
    assert bad(entries, 100)["node3"].since_s == 10


def test_a_node_that_has_come_back_begins_anew():
    entries = [failed_check(10, keep_s=60), failed_check(500, keep_s=60)]
    assert until(entries, 510) == {"node3": 560}
    assert bad(entries, 510)["node3"].since_s == 500
    twice = [mishap(time_s=1), mishap(time_s=2)]
    assert bad([*twice, mishap(time_s=KEEP_S + 3)], KEEP_S + 4) == {}
    assert bad([*twice, *(mishap(time_s=KEEP_S + n) for n in (3, 4))], KEEP_S + 5)


# --- the files ----------------------------------------------------------------------------------


def test_where_the_files_are():
    assert str(record_path("alpha", {"HOME": "/home/x", "XDG_STATE_HOME": "relative"})) == (
        "/home/x/.local/state/echelon/nodes/alpha.jsonl"
    )
    state = {"XDG_STATE_HOME": "/state", "HOME": "/home/x"}
    assert str(record_path("../a b/c", state)) == "/state/echelon/nodes/a-b-c.jsonl"
    for nowhere in (record_path("alpha", {}), record_path("..", state), record_path("", state)):
        assert nowhere is None
        assert read_entries(nowhere) == []
    assert cluster_name({"SLURM_CLUSTER_NAME": "alpha"}) == "alpha"
    assert cluster_name({}) == ""
    assert known_clusters({}) == known_clusters({"HOME": "/nonexistent"}) == []


def test_what_is_written_is_read_again_and_nobody_elses_to_see(tmp_path):
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    path = record_path("alpha", environ)
    written = [mishap(), NodeEvent(kind="forgiven", node="node3")]
    for entry in written:
        append_entries(path, [entry])
    found = read_entries(path)
    assert [(e.kind, e.node, e.run, e.cause, e.reason) for e in found] == [
        (e.kind, e.node, e.run, e.cause, e.reason) for e in written
    ]
    assert all(e.time_s > 1e9 for e in found)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert known_clusters(environ) == ["alpha"]


def test_lines_that_are_torn_or_somebody_elses_are_passed_over(tmp_path):
    path = tmp_path / "alpha.jsonl"
    good = {"time": 1.0, "kind": "mishap", "node": "node3"}
    foreign = [
        {**good, "kind": "else"},
        {**good, "node": "a;b"},
        {**good, "node": ""},
        {**good, "time": 1e300},
        {**good, "time": float("nan")},
    ]
    lines = ['{"time": 1.0, "kind": "mis', "[]", "", *map(json.dumps, foreign), json.dumps(good)]
    path.write_text("\n".join(lines) + '\n{"torn')
    assert len(read_entries(path)) == 1
    append_entries(path, [mishap()])  # not onto the torn one
    assert len(read_entries(path)) == 2


APPENDER = """\
import sys
from pathlib import Path
from echelon.run.node_record import NodeEvent, append_entries
path, name = Path(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
for number in range(300):
    append_entries(path, [NodeEvent(kind="mishap", node=name, run=str(number), reason="x" * 400)])
"""


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('"keep_s": 60', 60),
        ('"keep_s": 0', 0),
        ('"x": 1', KEEP_S),  # of an older version
        ('"keep_s": "x"', KEEP_S),
        ('"keep_s": -1', KEEP_S),
        ('"keep_s": NaN', KEEP_S),
        ('"keep_s": null', KEEP_S),
        ('"keep_s": Infinity', 1e11),  # no date is later
        (f'"keep_s": 1{"0" * 400}', 1e11),
    ],
)
def test_how_long_an_entry_counts_is_read_from_its_line(tmp_path, written, expected):
    path = tmp_path / "alpha.jsonl"
    path.write_text(f'{{"time": 5, "kind": "excluded", "node": "node3", {written}}}\n')
    assert [entry.keep_s for entry in read_entries(path)] == [expected]


def test_several_write_at_once_and_nothing_is_lost(tmp_path):
    path = tmp_path / "nodes" / "alpha.jsonl"
    names = ["node1", "node2", "node3"]
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", APPENDER, str(path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    found = read_entries(path)
    for name in names:
        assert [e.run for e in found if e.node == name] == [str(n) for n in range(300)]
    assert all(len(e.reason) == 400 for e in found)


# --- a controller's own -------------------------------------------------------------------------


def test_a_controller_writes_down_what_is_a_nodes_fault(tmp_path):
    path = tmp_path / "alpha.jsonl"
    record = NodeRecord(path, "train-abcd", keep_s=60)
    record.blame(failure("lost node", message="its agent was lost"))
    record.blame(failure("exception", message="ValueError"))
    record.blame(failure("start", node="node4", message="x" * 10_000))
    assert record.close() == ""
    found = {entry.node: entry for entry in read_entries(path)}
    assert (found["node3"].kind, found["node3"].run) == ("mishap", "train-abcd")
    assert found["node3"].keep_s == 60
    assert (found["node4"].kind, len(found["node4"].reason)) == ("excluded", 500)


def test_a_controller_says_when_nothing_can_be_kept(tmp_path):
    (tmp_path / "file").touch()
    record = NodeRecord(tmp_path / "file" / "nodes" / "alpha.jsonl", "a")
    assert record.close() == ""
    record.blame(failure("lost node"))
    assert record.close().startswith("cannot keep which nodes are bad: ")
    assert "Not a directory" in record.close()


def test_a_controller_does_not_wait_for_a_home_that_is_away(tmp_path, monkeypatch):
    monkeypatch.setattr("echelon.run.node_record.WRITE_S", 0.05)
    record = NodeRecord(tmp_path / "alpha.jsonl", "a")
    blocked = threading.Event()
    monkeypatch.setattr(
        "echelon.run.node_record.append_entries", lambda *_: blocked.wait(timeout=30)
    )
    record.blame(failure("lost node"))
    assert "does not answer" in record.close()
    blocked.set()
