"""Shell completion, called as the shells call it."""

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
    """Return the words that fish is offered, which are printed one per line."""
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


def test_runs_are_completed(place):
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
def test_option_values_and_scripts_are_completed(place, words, expected):
    assert offered(*words) == expected


def test_lint_rules_are_completed():
    every = completion.complete_rule("")
    assert len(every) > 30
    assert completion.complete_rule(every[1].lower()) == [every[1]]


def test_partitions_are_completed_if_slurm_answers(tmp_path, monkeypatch):
    sinfo = tmp_path / "sinfo"
    sinfo.write_text("#!/bin/sh\necho 'low*|up|infinite|n/a|1|16|(null)'\n")
    sinfo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert completion.complete_partition("l") == ["low"]
    assert completion.complete_partition("x") == []
    sinfo.write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n")
    assert completion.complete_partition("l") == []


def test_choices_are_completed_and_missing_folders_ignored():
    assert completion.offer(STYLES)("t") == ["torchrun"]
    assert completion.complete_script("/nowhere/at/all/") == []


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_completion_script_of_each_shell_is_valid(capsys, shell):
    assert main.run(["--show-completion", shell]) == 0
    script = capsys.readouterr().out
    assert "_ECHELON_COMPLETE=complete_" + shell in script
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=script, text=True, check=True)


def test_completion_of_an_unsupported_shell_is_an_error(capsys):
    assert main.run(["--show-completion", "tcsh"]) == 2
    assert "hint: choose bash, zsh or fish" in capsys.readouterr().err


def test_completion_is_installed_in_bashrc(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main.run(["--install-completion", "bash"]) == 0
    assert "new shell" in capsys.readouterr().err
    assert "bash_completions" in (tmp_path / ".bashrc").read_text()
