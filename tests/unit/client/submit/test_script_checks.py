"""Lint before a run is queued: it refuses only what cannot work, and mentions the rest."""

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


def test_a_script_that_cannot_work_is_refused_with_a_way_around(submit):
    code, err = submit("print(tain)\n")
    assert code == 2
    assert "train.py:1: `tain` is not defined" in err
    assert "# echelon: ignore E626" in err
    assert submit("print(tain)  # echelon: ignore E626\n") == (0, "")


def test_an_error_that_may_not_be_reached_is_mentioned(submit):
    code, err = submit("import sys\nif sys.argv[1:]:\n    print(tain)\n")
    assert code == 0
    assert "warning: " in err
    assert "E626" in err


def test_a_good_script_is_not_mentioned(submit):
    assert submit("print('hello')\n") == (0, "")


def test_directives_that_are_ignored_are_mentioned(submit):
    Path("job.sh").write_text("#!/bin/bash\n#SBATCH -N 1\ndate\n#SBATCH --time=10\n")
    code, err = submit("print(1)\n", "--from", "job.sh")
    assert code == 0
    assert "job.sh:4: E102" in err


def test_without_the_extra_nothing_is_checked(submit, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("echelon.lint")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tree_sitter", None)
    monkeypatch.setitem(sys.modules, "tree_sitter_bash", None)
    assert submit("print(tain)\n") == (0, "")
