"""What Tab offers, asked as the shells ask."""

import os
import shutil
import subprocess
import sys

import pytest

from echelon.cli import completion, main
from echelon.run.directory import RunDir
from echelon.spec.job_spec import STYLES

HEAVY = ("torch", "numpy", "rich", "uvicorn", "starlette", "plotly")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "notes.txt", ".hidden.py"):
        (tmp_path / name).touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "fit.py").touch()
    for name in ("mnist-abcd", "mnist-wxyz", "vision-abcd"):
        RunDir.create(tmp_path / "runs", name).spec.touch()
    return tmp_path


def offered(*words):
    """What fish is offered: the plainest of the three, one to a line."""
    environ = {
        **os.environ,
        "_ECHELON_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_ARGS": " ".join(("echelon", *words)),
    }
    program = (
        "import sys\n"
        "sys.argv = ['echelon']\n"
        "from echelon.cli.app import app\n"
        "try:\n"
        "    app(prog_name='echelon')\n"
        "finally:\n"
        f"    assert not set({HEAVY}) & set(sys.modules), sys.modules.keys()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    return [line.split("\t")[0] for line in done.stdout.splitlines() if line]


def test_runs_by_their_beginning(place):
    assert sorted(offered("logs", "mn")) == ["mnist-abcd", "mnist-wxyz"]
    assert offered("status", "la") == ["last"]
    assert offered("dash", "vi") == ["vision-abcd"]
    assert offered("logs", "--runs-dir", "elsewhere", "mn") == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "--style", "s"], ["srun", "spawn", "static"]),
        (["script", "--gpu-option", "gpus-per-n"], ["gpus-per-node"]),
        (["submit", "--on", "s"], ["slurm"]),
        (["submit", "--hand-over", "al"], ["always"]),
        (["lint", "--explain", "al"], ["all"]),
        (["run", "tr"], ["train.py"]),
        (["run", "sub/"], ["sub/fit.py"]),
    ],
)
def test_words_by_their_beginning(place, words, expected):
    assert offered(*words) == expected


def test_rules_of_lint():
    every = completion.complete_rule("")
    assert len(every) > 30
    assert completion.complete_rule(every[1].lower()) == [every[1]]


def test_partitions_are_offered_where_slurm_answers_at_once(tmp_path, monkeypatch):
    sinfo = tmp_path / "sinfo"
    sinfo.write_text("#!/bin/sh\necho 'low*|up|infinite|n/a|1|16|(null)'\n")
    sinfo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert completion.complete_partition("l") == ["low"]
    assert completion.complete_partition("x") == []
    sinfo.write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n")
    assert completion.complete_partition("l") == []


def test_every_key_with_a_choice_of_words_is_completed():
    assert completion.offer(STYLES)("t") == ["torchrun"]
    assert completion.complete_script("/nowhere/at/all/") == []


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_each_shell_has_its_script_and_can_read_it(capsys, shell):
    assert main.run(["--show-completion", shell]) == 0
    script = capsys.readouterr().out
    assert "_ECHELON_COMPLETE=complete_" + shell in script
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=script, text=True, check=True)


def test_a_shell_without_one_is_told(capsys):
    assert main.run(["--show-completion", "tcsh"]) == 2
    assert "hint: choose bash, zsh or fish" in capsys.readouterr().err


def test_a_script_is_installed_where_the_shell_looks(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main.run(["--install-completion", "bash"]) == 0
    assert "new shell" in capsys.readouterr().err
    assert "bash_completions" in (tmp_path / ".bashrc").read_text()
