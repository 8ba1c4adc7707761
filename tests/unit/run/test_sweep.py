"""A sweep's directory, and the runs that its tasks make of it."""

import hashlib
import json

import pytest

from echelon.client.submit.parameters import make_table
from echelon.client.submit.trust import read_script
from echelon.errors import NotFoundError, NotPermittedError, UnavailableError, UsageError
from echelon.run.directory import RunDir
from echelon.run.listing import find_run, find_sweep, list_runs, list_sweeps
from echelon.run.request import is_requeued, read_spec
from echelon.run.sweep import (
    Array,
    SweepDir,
    check_placeholders,
    escape,
    fill_in,
    find_placeholders,
    make_run,
    read_table,
    sweep_of,
)
from echelon.spec.merging import Layer, merge
from prepared import prepare_sweep


def spec(**values):
    values = {"script": "train.py", "snapshot": False, **values}
    return merge([Layer(source="test", values=values)]).spec


@pytest.fixture
def environ(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def sweep(tmp_path, environ):
    rows = [{"lr": "0.1", "seed": "1"}, {"lr": "0.01", "seed": "2 x"}]
    request = spec(args=["--lr={lr}", "{seed}", "{{{index}}}"])
    return prepare_sweep(request, make_table(rows), tmp_path / "my runs", **environ)


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_names_in_braces_are_replaced_and_doubled_braces_are_literal():
    assert fill_in("{a}-{{{b}}}{{x}}", {"a": "1", "b": "{a}"}) == "1-{{a}}{x}"
    assert find_placeholders(["{a} {{b}}", "{c.d}"]) == {"a", "c.d"}


@pytest.mark.parametrize("text", ["", "{", "}{", "{{a}}", "a{b}c", "{{{"])
def test_what_is_escaped_comes_back(text):
    assert fill_in(escape(text), {}) == text


@pytest.mark.parametrize(
    ("args", "names", "message"),
    [
        (["{x}"], ["lr"], "unknown parameter in the arguments: '{x}'"),
        (["{lr}"], ["lr", "seed"], "the parameter 'seed' does not occur"),
        (["{lr"], ["lr"], "single '{'"),
        (["{lr}}"], ["lr"], "single '}'"),
    ],
)
def test_arguments_use_the_parameters_and_nothing_else(args, names, message):
    with pytest.raises(UsageError, match=message.replace("{", r"\{").replace("}", r"\}")) as caught:
        check_placeholders(args, names)
    assert caught.value.hint
    check_placeholders(["{lr}", "{index}"], ["lr"])


def test_a_task_is_a_run_of_its_own(sweep, environ):
    run, own = make_run(sweep, 1, digest(sweep.files.spec))
    assert run.run_id == f"{sweep.sweep_id}-1"
    assert read_spec(run, own).args == ("--lr=0.01", "2 x", "{1}")
    assert read_spec(run).output == f"{run.logs}/job-%j.out"
    assert json.loads(run.task.read_text()) == {
        "sweep": sweep.sweep_id,
        "index": 1,
        "parameters": {"lr": "0.01", "seed": "2 x"},
    }
    script = run.script.read_text()
    assert f"launcher' \\\n    controller '{run.path}' \"${{1:-}}\" {own}\n" in script
    assert f"--comment=echelon:{run.run_id}\n" in script
    assert f'--output="{run.logs}/job-%j.out"' in script
    assert sweep.sweep_id not in script.replace(run.run_id, "")
    assert is_requeued(run, read_spec(run))
    assert not is_requeued(run, spec(hand_over="never"))
    # It is made once.
    before = run.spec.stat().st_ino
    assert make_run(sweep, 1) == (run, own)
    assert run.spec.stat().st_ino == before
    assert sweep_of(run) == (sweep, 1)
    assert sweep_of(RunDir.create(run.path.parent, "other")) is None


def test_the_user_who_submitted_the_sweep_may_resume_its_runs(sweep, environ):
    run, _ = make_run(sweep, 0)
    assert read_script(run, environ) == run.script.read_bytes()
    other = run.script.read_text().replace("python=", "true; python=")
    run.script.write_text(other)
    with pytest.raises(NotPermittedError, match="not submitted by you"):
        read_script(run, environ)


def test_parameters_that_were_exchanged_start_nothing(sweep):
    submitted = digest(sweep.files.spec)
    sweep.table.write_text(sweep.table.read_text().replace("0.01", "666"))
    with pytest.raises(NotPermittedError, match=r"sweep.json is not what was submitted"):
        make_run(sweep, 1, submitted)
    sweep.files.spec.write_text(sweep.files.spec.read_text() + "\n")
    with pytest.raises(NotPermittedError, match=r"spec.toml is not what was submitted"):
        make_run(sweep, 1, submitted)
    assert not sweep.run(1).path.exists()


def test_a_task_that_is_killed_leaves_no_run(sweep, monkeypatch):
    def fail(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("echelon.run.sweep._link", fail)
        with pytest.raises(KeyboardInterrupt):
            make_run(sweep, 0)
    assert list_runs(sweep.path.parent) == []
    assert make_run(sweep, 0)[0].spec.exists()


def test_of_two_that_make_a_run_one_wins(sweep, monkeypatch):
    from echelon.run import sweep as module

    real = module._link

    def race(*paths):
        monkeypatch.setattr(module, "_link", real)
        make_run(sweep, 0)
        real(*paths)

    monkeypatch.setattr(module, "_link", race)
    monkeypatch.setattr(module.os, "getpid", iter(range(1000, 2000)).__next__)
    run, own = make_run(sweep, 0)
    assert digest(run.spec) == own
    assert [one.name for one in sweep.path.iterdir() if one.name.startswith(".")] == []


def test_there_is_no_other_task(sweep):
    with pytest.raises(NotFoundError, match="has no task 2"):
        make_run(sweep, 2)


@pytest.mark.parametrize("text", ["", "[]", '{"names": ["a"], "tasks": {"0": []}}', "{"])
def test_damaged_parameters_are_reported(sweep, text):
    sweep.table.write_text(text)
    with pytest.raises(UnavailableError, match="cannot be read"):
        read_table(sweep)


def test_arrays_are_recorded_in_order_and_damaged_ones_ignored(sweep):
    first, second = Array("7", 0, (0, 1)), Array("12", 1000, (1003,))
    sweep.record_array(10, second)
    sweep.record_array(2, first)
    (sweep.path / "arrays" / "3.json").write_text("{")
    assert sweep.arrays() == [first, second]
    assert (first.job_of(1), second.job_of(1003)) == ("7_1", "12_3")


def test_a_sweep_is_found_by_name_and_is_no_run(sweep):
    runs = sweep.path.parent
    make_run(sweep, 0)
    assert [run.run_id for run in list_runs(runs)] == [f"{sweep.sweep_id}-0"]
    assert list_sweeps(runs) == [sweep]
    assert find_sweep(runs, "last") == find_sweep(runs, sweep.sweep_id[:8]) == sweep
    assert find_run(runs, f"{sweep.sweep_id}-0").run_id == f"{sweep.sweep_id}-0"
    with pytest.raises(UsageError, match="is a sweep") as caught:
        find_run(runs, sweep.sweep_id)
    assert f"echelon sweep status {sweep.sweep_id}" in caught.value.hint
    with pytest.raises(NotFoundError, match="no sweep 'x'"):
        find_sweep(runs, "x")
    with pytest.raises(NotFoundError):
        SweepDir.open(runs / "nothing")
