"""What a run starts is what was submitted; a folder from elsewhere takes a word of the user."""

import os
import shutil
import subprocess
import sys

import pytest

from started_programs import clean_environment


@pytest.fixture
def echelon(tmp_path):
    """The command, in a folder of its own and with a state of its own."""
    state = {"HOME": str(tmp_path / "home"), "XDG_STATE_HOME": ""}

    def call(*words, **more):
        return subprocess.run(
            [sys.executable, "-m", "echelon", *words],
            cwd=tmp_path,
            env=clean_environment(**{**state, **more}),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return call


@pytest.fixture
def run(echelon, tmp_path):
    """A run that has failed, and can be resumed."""
    (tmp_path / "train.sh").write_text("#!/bin/sh\ntouch started\n[ -e go ]\n")
    (tmp_path / "train.sh").chmod(0o700)
    done = echelon("run", "--restarts=0", "train.sh")
    assert done.returncode == 1, done.stderr
    assert "warning" not in done.stderr
    (tmp_path / "started").unlink()
    (tmp_path / "go").touch()
    return next((tmp_path / "runs").iterdir())


def test_a_run_is_resumed_also_where_its_owner_has_moved_it(echelon, run, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    run.rename(tmp_path / "elsewhere" / run.name)
    done = echelon("resume", "--runs-dir=elsewhere", run.name)
    assert done.returncode == 0, done.stderr
    assert "was moved from" in done.stderr


def test_a_run_of_somebody_else_is_not_executed_without_trust(echelon, run, tmp_path):
    """A folder that was unpacked from an archive, say: the state that knows it is another's."""
    other = {"XDG_STATE_HOME": str(tmp_path / "other")}
    done = echelon("resume", run.name, **other)
    assert done.returncode == 77, done.stderr
    assert "was not submitted by you from this account" in done.stderr
    assert "script = 'train.sh'" in done.stderr
    assert f"echelon resume {run.name} --trust" in done.stderr
    assert not (tmp_path / "started").exists()
    trusted = echelon("resume", "--trust", run.name, **other)
    assert trusted.returncode == 0, trusted.stderr
    assert (tmp_path / "started").exists()


def test_a_request_that_was_changed_is_refused_by_command_and_job(echelon, run, tmp_path):
    spec = run / "spec.toml"
    spec.write_text(f'notify = "touch planted"\n{spec.read_text()}')
    told = echelon("resume", run.name)
    assert told.returncode == 77
    assert "was changed after submission" in told.stderr
    environ = clean_environment(HOME=str(tmp_path / "home"))
    job = subprocess.run(
        ["bash", str(run / "job.sbatch")],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert job.returncode == 77, job.stderr
    assert f"refused to start: {spec} is not what was submitted" in job.stderr
    assert not (tmp_path / "started").exists()
    assert not (tmp_path / "planted").exists()
    trusted = echelon("resume", "--trust", run.name)
    assert trusted.returncode == 0, trusted.stderr
    assert (tmp_path / "started").exists()
    assert (tmp_path / "planted").exists(), "what the user trusts is executed"


def test_a_folder_that_a_group_may_write_is_warned_of_once(echelon, tmp_path):
    if os.geteuid() == 0:
        os.chown(tmp_path, -1, 12345)  # a group that is not the user's own
    tmp_path.chmod(0o770)
    done = echelon("run", "true")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("warning: other users can replace your run directories") == 1
    assert f"can write to {tmp_path}" in done.stderr
    assert (tmp_path / "runs").stat().st_mode & 0o777 == 0o700
    shutil.rmtree(tmp_path / "runs")
