"""Run directories that were moved, renamed or copied, or are reached by another path."""

import hashlib
import json
import os
import shutil
import stat

import pytest

from echelon.cli import main
from echelon.client.manage.relocation import check_original, find_home, settle_run
from echelon.errors import ConflictError, UsageError
from echelon.run.attempts import attempts, find_output
from echelon.run.directory import RunDir
from echelon.run.request import read_spec
from echelon.spec.merging import Layer, merge
from prepared import prepare_run


@pytest.fixture(params=["echelon", "srun"])
def style(request):
    return request.param


@pytest.fixture
def run(tmp_path, style):
    """Return a run with a job that has ended."""
    return make(tmp_path, style=style)


def make(tmp_path, runs="runs", **values):
    (tmp_path / "train.py").touch()
    request = merge([Layer(source="x", values={"script": "train.py", **values})]).spec
    run = prepare_run(request, tmp_path / runs, tmp_path)
    record = {"job_id": "local:elsewhere:1:1", "output": f"{run.logs}/job-1.out"}
    (run.attempt(run.claim_attempt()) / "job.json").write_text(json.dumps(record))
    run.outcome(1).write_text('{"state": "FAILED", "exit_code": 1}')
    return run


def moved(run, runs):
    """Move a run into another folder."""
    runs.mkdir()
    return RunDir.open(run.path.rename(runs / run.run_id))


def settle(run):
    """Update a moved run, check the returned script, and return the previous directory."""
    script, home = settle_run(run, run.script.read_bytes())
    assert script == run.script.read_bytes()
    return home


def test_a_run_that_was_not_moved_is_unchanged(run):
    before = run.script.stat().st_mtime_ns
    assert find_home(run) == run.path
    assert settle(run) is None
    assert run.script.stat().st_mtime_ns == before


def test_the_files_of_a_moved_run_name_its_new_folder(run, tmp_path):
    old, script, request = run.path, run.script.read_text(), run.spec.read_bytes()
    run = moved(run, tmp_path / "else.where")
    assert settle(run) == old
    digests = [hashlib.sha256(text).hexdigest() for text in (request, run.spec.read_bytes())]
    assert run.script.read_text() == script.replace(str(old), str(run.path)).replace(*digests)
    assert read_spec(run).output == f"{run.logs}/job-%j.out"
    assert stat.S_IMODE(run.script.stat().st_mode) == 0o700
    assert settle(run) is None


def test_only_the_run_directorys_own_path_is_updated(tmp_path):
    run = make(tmp_path)
    args = [f"--like={run.path}-b", f"--in=/data{run.path}", f"--from={run.path}/checkpoints"]
    text = run.spec.read_text()
    run.spec.write_text(text.replace("script =", f"args = {json.dumps(args)}\nscript ="))
    old, run = run.path, moved(run, tmp_path / "new")
    settle(run)
    assert read_spec(run).args == (*args[:2], f"--from={run.path}/checkpoints")
    assert str(old) in args[0]


def test_a_run_reached_by_another_path_was_not_moved(run, tmp_path):
    (tmp_path / "link").symlink_to(run.path.parent)
    other = RunDir.open(tmp_path / "link" / run.run_id)
    check_original(other)
    assert settle(other) is None


def test_a_copied_run_is_refused(run, tmp_path):
    for place in (tmp_path / "copies" / run.run_id, run.path.with_name("other-name")):
        shutil.copytree(run.path, place)
        with pytest.raises(ConflictError, match="is a copy") as caught:
            settle(RunDir.open(place))
        assert caught.value.hint.startswith(f"use the original: --runs-dir {run.path.parent}")


def test_a_renamed_run_is_refused(run):
    other = RunDir.open(run.path.rename(run.path.with_name("other-name")))
    with pytest.raises(ConflictError, match=f"know it as '{run.run_id}'") as caught:
        check_original(other)
    assert caught.value.hint == f"rename it back: mv {other.path} {run.path}"


@pytest.mark.parametrize(("before", "after"), [("my runs", "new"), ("runs", "100%"), ("runs", "ü")])
def test_a_run_moved_to_a_path_with_special_characters_is_refused(tmp_path, before, after):
    run = make(tmp_path, runs=before)
    other = moved(run, tmp_path / after)
    with pytest.raises(ConflictError, match="cannot continue there"):
        settle(other)
    assert find_home(other) == run.path


def test_a_moved_run_with_missing_files_is_refused_unchanged(run, tmp_path):
    other = moved(run, tmp_path / "new")
    (tmp_path / "train.py").unlink()
    with pytest.raises(UsageError, match=r"train\.py does not exist"):
        settle(other)
    assert find_home(other) == run.path


def test_the_job_output_moves_with_its_run(run, tmp_path):
    run = moved(run, tmp_path / "new")
    (attempt,) = attempts(run)
    assert find_output(run, attempt) == run.logs / "job-1.out"


def test_an_output_file_that_the_user_chose_is_not_moved(run):
    (attempt,) = attempts(run)
    (run.attempt(1) / "job.json").write_text('{"job_id": "7", "output": "/scratch/logs/7.out"}')
    (attempt,) = attempts(run)
    assert str(find_output(run, attempt)) == "/scratch/logs/7.out"


@pytest.mark.parametrize("command", ["resume", "stop", "cancel"])
def test_the_jobs_of_a_run_cannot_be_controlled_through_a_copy(run, tmp_path, capsys, command):
    shutil.copytree(run.path.parent, tmp_path / "copies")
    assert main.run([command, run.run_id, f"--runs-dir={tmp_path}/copies"]) == 73
    assert f"is a copy of the run in {run.path}" in capsys.readouterr().err
    assert main.run(["status", run.run_id, f"--runs-dir={tmp_path}/copies"]) == 0
    assert [one.name for one in run.attempts.iterdir()] == ["1"]


@pytest.mark.parametrize("folder", ["/any", ".", "my-runs"])
def test_an_output_file_elsewhere_does_not_mean_that_the_run_was_moved(tmp_path, style, folder):
    run = make(tmp_path, style=style, output=f"{folder}/logs/job-%j.out")
    script = run.script.read_bytes()
    assert find_home(run) == run.path
    assert settle(run) is None
    assert run.script.read_bytes() == script


def test_a_run_whose_original_directory_is_inaccessible_was_moved(run, tmp_path, monkeypatch):
    old, run = run.path, moved(run, tmp_path / "new")

    def refuse(path):
        if path.is_relative_to(old):
            raise PermissionError
        return os.path.exists(path)  # noqa: PTH110 - Path.exists is what is replaced

    monkeypatch.setattr("echelon.client.manage.relocation.Path.exists", refuse)
    assert settle(run) == old
    assert find_home(run) == run.path
