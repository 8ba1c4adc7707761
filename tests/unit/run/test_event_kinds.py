"""Whoever writes an event, and the table of them. Real runs are held against it in started.py."""

import ast
from dataclasses import fields
from pathlib import Path

import pytest

import echelon
from echelon.launch.protocol.messages import RankExited
from echelon.launch.protocol.time_accounting import Spending
from echelon.run.attempts import Outcome
from echelon.run.event_kinds import CONTROLLER, METRICS, Kind, find_fault
from echelon.run.verdict import Failure, Verdict

SOURCE = Path(echelon.__file__).parent


def calls(folder, *names):
    """Return every call of a function of these names: where, its arguments and its keywords."""
    for path in sorted((SOURCE / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
                if name in names:
                    yield f"{path.name}:{node.lineno}", node


def written():
    """Return (where, kind, its fields, whether all of them are known) of what controllers write."""
    for where, call in [*calls("launch", "note", "_note", "_line"), *calls("run", "note")]:
        texts = [a.value for a in call.args if isinstance(a, ast.Constant)]
        if texts:
            names = {keyword.arg for keyword in call.keywords}
            yield where, texts[0], frozenset(names - {None}), None not in names


def test_every_event_that_is_written_is_in_the_table():
    found = list(written())
    for where, kind, names, whole in found:
        assert kind in CONTROLLER, where
        assert names <= CONTROLLER[kind].fields.keys(), where
        if whole:
            assert not find_fault(CONTROLLER, kind, names), where
    # What EventLog writes by itself.
    assert {kind for _, kind, _, _ in found} | {"lost events"} == CONTROLLER.keys()


def test_fields_that_come_from_a_record_are_those_of_the_record():
    verdict = {field.name for field in fields(Verdict)}
    assert CONTROLLER["verdict"].fields.keys() == CONTROLLER["hang"].fields.keys() == verdict
    assert CONTROLLER["ended"].fields.keys() == {field.name for field in fields(Outcome)}
    assert CONTROLLER["exited"].fields.keys() <= {field.name for field in fields(RankExited)}
    for field in fields(Failure):
        assert f"`{field.name}`" in CONTROLLER["verdict"].fields["failure"]


def test_what_time_was_spent_on_is_told_as_written_down():
    spending = Spending()
    spending.begin([0], 0.0)
    gone = RankExited(rank=0, generation=0, code=0, signal=0, step=5, spent={"first": 2})
    spending.leave(gone, 1.0)
    record = frozenset(spending.record(1.0, again=False)) | {"generation"}
    assert record == CONTROLLER["spent"].fields.keys()


def test_metrics_are_in_the_table():
    found = {}
    for _where, call in calls("train", "_record"):
        if isinstance(call.args[0], ast.Constant):
            more = {key.value for key in call.args[3].keys}
            found[call.args[0].value] = more | {"step", "metrics"}
    assert found == {kind: set(known.fields) for kind, known in METRICS.items()}


@pytest.mark.parametrize(
    ("kind", "names", "fault"),
    [
        ("a", {"x"}, ""),
        ("a", {"x", "y"}, ""),
        ("b", {"x"}, "there is no kind 'b'"),
        ("a", {"y"}, "a: missing: x"),
        ("a", {"x", "z"}, "a: unknown: z"),
    ],
)
def test_faults_are_found(kind, names, fault):
    table = {"a": Kind(about="", fields={"x": "", "y": ""}, sometimes=frozenset({"y"}))}
    assert find_fault(table, kind, frozenset(names)) == fault
