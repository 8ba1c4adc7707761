"""Commands that start without the library for command lines."""

import subprocess
import sys

import pytest

from echelon.cli import main, quick, run_commands
from echelon.clusters.ssh.call import LIGHT
from echelon.run.directory import RUNS


def test_quick_commands_need_no_login_on_a_host():
    assert set(LIGHT) == set(quick.COMMANDS)


@pytest.mark.parametrize(
    ("words", "values", "line"),
    [
        (["ps"], {"as_json": False}, ["ps"]),
        (["ps", "--json", "--host", "me@h"], {"as_json": True, "host": "me@h"}, ["ps", "--json"]),
        (["status", "--", "-x"], {"run": "-x"}, ["status"]),
        (["status", "--cluster=far"], {"run": "last", "cluster": "far"}, ["status"]),
        (
            ["logs", "-f", "a", "--tail", "5", "--rank=3"],
            {"run": "a", "tail": 5, "rank": ["3"], "follow": True, "raw": False},
            ["logs", "--follow", "--tail=5", "--rank=3"],
        ),
        (
            ["logs", "--rank", "0,2", "--rank=5", "-n", "0", "--since", "10m"],
            {"rank": ["0,2", "5"], "tail": 0, "since": "10m"},
            ["logs", "--rank=0,2", "--rank=5", "--tail=0", "--since=10m"],
        ),
        (
            ["ps", "--state", "R,PD", "-n", "5"],
            {"state": ["R,PD"], "last": 5},
            ["ps", "--state=R,PD", "--last=5"],
        ),
    ],
)
def test_plain_calls_are_parsed(words, values, line):
    call = quick.parse(words)
    assert call.line == line
    assert values.items() <= call.values.items()


@pytest.mark.parametrize(
    "words",
    [
        *([], ["--help"], ["submit"], ["--debug", "ps"], ["ps", "--help"], ["ps", "x"]),
        *(["status", "a", "b"], ["stop"], ["status", ""], ["logs", "--tail", "x"]),
        *(["logs", "--tail=-1"], ["logs", "--tail"], ["ps", "--json=1"], ["status", "--host="]),
        *(["status", "--host", ""], ["status", "--host", "--json"], ["logs", "-fr"]),
        *(["stop", "a", "--address="], ["ps", "--runs-dir", "x"], ["logs", "--rank="]),
        *(["logs", "--tail=٣"], ["logs", "--since", "-f"], ["ps", "-n5"], ["ps", "--state"]),
    ],
)
def test_calls_that_are_not_plain_are_left_to_typer(words):
    assert quick.parse(words) is None


def test_quick_calls_pass_the_directory_of_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    seen = {}
    for name, options in quick.COMMANDS.items():
        monkeypatch.setattr(run_commands, name, lambda **values: seen.update(values) or 0)
        assert main.run([name, *(["a"] if options.run is not None else [])]) == 0
        assert seen["runs_dir"] == RUNS
    monkeypatch.setenv("ECHELON_RUNS_DIR", str(tmp_path))
    assert main.run(["ps"]) == 0
    assert seen["runs_dir"] == tmp_path


@pytest.mark.parametrize("words", [["ps"], ["status"], ["why"], ["logs"]])
def test_quick_commands_import_nothing_slow(words, tmp_path):
    heavy = [
        "typer",
        "rich",
        "echelon.spec.merging",
        "echelon.client.submit.pipeline",
        "http.client",
    ]
    program = (
        "import sys\n"
        "from echelon.cli.main import run\n"
        f"run({words})\n"
        f"print('loaded:', sorted(set({heavy}) & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "loaded: []"
