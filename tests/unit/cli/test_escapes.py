"""A run whose output tries to control the terminal."""

import json
import re
import sys

import pytest

from echelon.cli import main
from echelon.errors import EchelonError
from echelon.run.directory import RunDir
from echelon.run.node_record import NodeEvent, append_entries, record_path
from recorded_run import record_run

EVIL = "x\x1b]0;title\x07\x1b[2J\x1b[1A\x9b2J\x08\u202egnp\x1bP1q\x1b\\"
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_STATE_HOME", "ECHELON_RUNS_DIR"):
        monkeypatch.delenv(name, raising=False)
    record_run(tmp_path / "runs", text=EVIL)
    path = record_path("cluster", {"HOME": str(tmp_path)})
    append_entries(path, [NodeEvent(kind="excluded", node="n1", run=EVIL, reason=EVIL)])
    return tmp_path


def check(capsys):
    out, err = capsys.readouterr()
    shown = re.sub(r"\x1b\[[0-9;:]*m", "", out + err)
    assert not STEERING.search(shown)
    return shown


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize(
    "call",
    [
        *("ps", "status", "why", "report", "logs", "logs --rank 1", "watch --once", "nodes"),
        *("ps --json", "status --json", "why --json", "report --json", "nodes --json"),
        f"status {EVIL}",
        f"run --style {EVIL} train.py",
        f"nodes --forgive {EVIL}",
    ],
)
def test_commands_print_no_raw_control_sequences(place, capsys, monkeypatch, call, terminal):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    main.run(call.split(" "))
    assert check(capsys)


@pytest.mark.parametrize("call", ["why", "report", "logs", "watch --once", "nodes"])
def test_commands_show_control_sequences_escaped(place, capsys, call):
    assert main.run(call.split()) == 0
    assert r"\x1b]0;title\x07" in check(capsys)


def test_a_job_id_with_control_characters_is_escaped(place, capsys):
    run = RunDir.open(place / "runs" / "train-abcd")
    record = {"job_id": f"local:elsewhere{EVIL}:1:1", "submitted": EVIL}
    for number in (1, 2):
        (run.attempt(number) / "job.json").write_text(json.dumps(record))
    assert main.run(["ps"]) == 0
    assert r"\x1b]0;title\x07" in check(capsys)


def test_an_error_cannot_contain_a_fake_hint_line(capsys, monkeypatch):
    def fail(*_, **__):
        raise EchelonError("no\nhint: rm -rf ~", hint=EVIL)

    monkeypatch.setattr(main, "run_quickly", fail)
    assert main.run(["ps"]) == 70
    assert check(capsys).splitlines()[0] == r"error: no\nhint: rm -rf ~"


def test_raw_logs_are_not_escaped(place, capsys):
    assert main.run(["logs", "--raw", "--rank", "1"]) == 0
    assert capsys.readouterr().out == f"1: {EVIL}\n1:  10%|█   |\r100%|████|\n"


def test_logs_show_only_the_last_state_of_a_progress_bar(place, capsys):
    assert main.run(["logs", "--rank", "1"]) == 0
    assert check(capsys).splitlines()[1] == "1: … 100%|████|"


def test_a_printed_script_is_escaped_only_in_a_terminal(place, capsys, monkeypatch):
    (place / "train.py").write_text("print()\n")
    call = ["script", "--env", "A=\x1b]0;x\x07", "train.py"]
    assert main.run(call) == 0
    assert "\x1b]0;x\x07" in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert main.run(call) == 0
    check(capsys)
