"""`echelon run --snapshot`: every start of a run executes the code that it began with."""

import json
import shutil
import subprocess
import sys

import pytest

from started_programs import clean_environment

TRAIN = """\
import os, sys, helper
from pathlib import Path
where = [Path(__file__).parent.name, Path.cwd().name]
print("found", helper.VERSION, *where, sys.argv[1:], flush=True)
Path("helper.py").write_text("VERSION = 'edited'\\n")
sys.exit(not Path("go").exists())
"""


@pytest.fixture
def echelon(tmp_path):
    """The command, in a project's folder, with a state of its own."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(TRAIN)
    (project / "helper.py").write_text("VERSION = 'first'\n")

    def call(*words, code=0):
        done = subprocess.run(
            [sys.executable, "-m", "echelon", *words],
            cwd=project,
            env=clean_environment(HOME=str(tmp_path), XDG_STATE_HOME=""),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done

    call.folder = project
    return call


def found(output):
    return [line.split("found ")[1] for line in output.splitlines() if "found " in line]


@pytest.mark.quick
def test_restarts_resumes_and_reruns_execute_the_first_code(echelon):
    first = echelon("run", "--snapshot", "--restarts=1", "train.py", code=1)
    assert found(first.stdout) == ["first code project []"] * 2
    (echelon.folder / "go").touch()
    # It prints the output from the beginning.
    assert found(echelon("resume", "last").stdout) == ["first code project []"] * 3
    again = echelon("rerun", "last", "--", "--lr", "2")
    assert found(again.stdout) == ["first code project ['--lr', '2']"]
    runs = json.loads(echelon("ps", "--json").stdout)
    assert [run["state"] for run in runs] == ["COMPLETED", "COMPLETED"]

    same = echelon("diff", runs[0]["run"], runs[1]["run"])
    assert (same.stdout, "no differences" in same.stderr) == ("", True)
    now = json.loads(echelon("diff", "--json", "last").stdout)
    assert now == [{"path": "go", "change": "added"}, {"path": "helper.py", "change": "changed"}]
    assert "-VERSION = 'first'\n+VERSION = 'edited'" in echelon("diff").stdout

    live = echelon("rerun", "last", "--snapshot")
    assert found(live.stdout) == ["edited code project ['--lr', '2']"]


def test_without_it_the_project_is_executed(echelon):
    (echelon.folder / "go").touch()
    done = echelon("run", "train.py")
    assert found(done.stdout) == ["first project project []"]
    assert found(echelon("rerun", "last").stdout) == ["edited project project []"]
    refused = echelon("diff", "last", code=66)
    assert "has no copy of its code" in refused.stderr


def test_altered_code_is_not_executed(echelon):
    echelon("run", "--snapshot", "train.py", code=1)
    run = next((echelon.folder / "runs").iterdir())
    script = run / "code" / "train.py"
    text = script.read_text()
    script.chmod(0o600)
    script.write_text(f"{text}print('planted')\n")
    refused = echelon("resume", "last", code=77)
    assert "code/train.py is not what was submitted" in refused.stderr
    # A job does not rely on the command.
    done = subprocess.run(["bash", run / "job.sbatch"], capture_output=True, text=True, check=False)
    assert (done.returncode, "planted" in done.stdout) == (77, False)
    assert f"refused to start: {script}" in done.stderr


def test_a_large_project_is_refused_and_leaves_nothing(echelon):
    with (echelon.folder / "huge.bin").open("wb") as file:
        file.truncate(300 * 10**6)
    refused = echelon("run", "--snapshot", "train.py", code=2)
    assert "300 MB of code" in refused.stderr
    assert "huge.bin (300 MB)" in refused.stderr
    assert not list((echelon.folder / "runs").iterdir())
    (echelon.folder / ".echelonignore").write_text("/huge.bin\n")
    (echelon.folder / "go").touch()
    done = echelon("run", "--snapshot", "train.py")
    assert found(done.stdout) == ["first code project []"]


def test_old_runs_are_removed_but_not_one_that_could_be_resumed(echelon):
    echelon("run", "--snapshot", "train.py", code=1)
    unfinished = next((echelon.folder / "runs").iterdir())
    (unfinished / "model.pt").touch()
    (echelon.folder / "go").touch()
    for _ in range(2):
        echelon("run", "--snapshot", "train.py")
    options = ["--keep=1", "--older=0s"]
    shown = json.loads(echelon("clean", *options, "--dry-run", "--json").stdout)
    kept = [one["kept"] for one in shown]
    assert kept == ["unfinished, with a checkpoint", "", "the newest"]
    refused = echelon("clean", *options, code=2)
    assert "add --yes" in refused.stderr
    assert len(list((echelon.folder / "runs").iterdir())) == 3
    echelon("clean", *options, "--yes")
    left = {run.name for run in (echelon.folder / "runs").iterdir()}
    assert left == {unfinished.name, shown[2]["run"]}
    assert "nothing to remove" in echelon("clean", "--yes").stderr
    named = echelon("clean", unfinished.name, "--yes", code=73)
    assert "unfinished, with a checkpoint" in named.stderr
    echelon("clean", unfinished.name, "--unfinished", "--yes")
    assert not unfinished.exists()


def test_a_run_that_was_moved_still_has_its_code(echelon):
    echelon("run", "--snapshot", "train.py", code=1)
    (echelon.folder / "go").touch()
    (echelon.folder / "train.py").unlink()
    shutil.move(echelon.folder / "runs", echelon.folder / "old")
    done = echelon("resume", "--runs-dir=old", "last")
    assert found(done.stdout) == ["first code project []"] * 2
