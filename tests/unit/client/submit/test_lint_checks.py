"""Lint before a run is queued: certain errors refuse the request, others are warnings."""

import sys
from pathlib import Path

import pytest

from echelon.cli import main


@pytest.fixture
def submit(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(script, *flags):
        Path("train.py").write_text(script)
        code = main.run(["submit", "--on", "local", "--dry-run", *flags, "train.py"])
        return code, capsys.readouterr().err

    return run


def test_a_script_with_a_certain_error_is_refused_and_the_error_can_be_ignored(submit):
    code, err = submit("print(tain)\n")
    assert code == 2
    assert "train.py:1: `tain` is not defined" in err
    assert "# echelon: ignore E626" in err
    assert submit("print(tain)  # echelon: ignore E626\n") == (0, "")


def test_an_error_that_may_not_be_reached_is_a_warning(submit):
    code, err = submit("import sys\nif sys.argv[1:]:\n    print(tain)\n")
    assert code == 0
    assert "warning: " in err
    assert "E626" in err


def test_a_script_without_errors_has_no_warnings(submit):
    assert submit("print('hello')\n") == (0, "")


def test_an_ignored_directive_is_a_warning(submit):
    Path("job.sh").write_text("#!/bin/bash\n#SBATCH -N 1\ndate\n#SBATCH --time=10\n")
    code, err = submit("print(1)\n", "--from", "job.sh")
    assert code == 0
    assert "job.sh:4: E102" in err


def test_scripts_are_not_checked_without_the_lint_extra(submit, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("echelon.lint")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tree_sitter", None)
    monkeypatch.setitem(sys.modules, "tree_sitter_bash", None)
    assert submit("print(tain)\n") == (0, "")
