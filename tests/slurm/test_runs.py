"""Runs from submit to their end, by the command, on real Slurm."""

import json
import subprocess
import sys

import pytest

from echelon.core.waiting import wait_until

TRAIN = """\
import os, sys, time
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], sys.argv[1:], flush=True)
if "--fail" in sys.argv and os.environ["RANK"] == "0":
    sys.exit(5)
if "--long" in sys.argv:
    time.sleep(600)
"""


@pytest.fixture
def echelon(cluster, tmp_path):
    """The command, in a project's folder, with the sandbox's Slurm."""
    (tmp_path / "train.py").write_text(TRAIN)
    environ = {
        **cluster.environ,
        "SLURM_CONF": str(cluster.box.layout.slurm_conf),
        "HOME": str(tmp_path),
        # A surrounding job's: must not reach what is submitted.
        "SBATCH_PARTITION": "nowhere",
        "SLURM_NNODES": "99",
    }

    def run(*arguments, code=0):
        done = subprocess.run(
            [sys.executable, "-m", "echelon", *arguments],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done

    return run


@pytest.mark.quick
def test_a_run_from_submit_to_its_end(echelon, tmp_path):
    run_id = echelon("submit", "--wait", "--nodes=2", "--gpus=2", "train.py", "a b").stdout.strip()
    shown = json.loads(echelon("status", "--json", run_id).stdout)
    assert (shown["state"], shown["exit_code"], shown["attempts"]) == ("COMPLETED", 0, 1)
    lines = sorted(echelon("logs", run_id).stdout.splitlines())
    assert lines == [f"{rank}: rank {rank} of 4 ['a b']" for rank in range(4)]
    assert echelon("logs", "--rank", "3", "last").stdout == "3: rank 3 of 4 ['a b']\n"
    assert echelon("status", shown["job"]).stdout.split()[1] == run_id
    assert [row["run"] for row in json.loads(echelon("ps", "--json").stdout)] == [run_id]
    assert (tmp_path / "runs" / run_id / "job.sbatch").stat().st_mode & 0o077 == 0


def test_a_warning_before_the_limit_reaches_every_rank(echelon, cluster, tmp_path):
    """Slurm's own timing is coarse, so the signal is sent by hand, as Slurm would."""
    (tmp_path / "train.py").write_text(
        "import os, pathlib, signal, sys\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))\n"
        "pathlib.Path(f'ready-{os.environ[\"RANK\"]}').touch()\n"
        "while True: signal.pause()\n"
    )
    argv = ["submit", "--json", "--nodes=2", "--time=10", "--signal-lead=60", "train.py"]
    job = json.loads(echelon(*argv).stdout)["job_id"]
    ready = [tmp_path / f"ready-{rank}" for rank in range(2)]
    assert wait_until(lambda: all(path.exists() for path in ready), timeout_s=30)
    cluster.exec("scancel", "--signal=USR1", job)
    assert cluster.await_job(job, "COMPLETED", "FAILED")["JobState"] == "COMPLETED"


def test_output_of_the_users_own_choice_is_shown_as_well(echelon):
    done = echelon("submit", "--follow", "--output=mine %j.out", "train.py")
    assert "0: rank 0 of 1 []" in done.stdout
    assert "0: rank 0 of 1 []" in echelon("logs").stdout


def test_a_job_that_slurm_refuses_is_no_run(echelon, tmp_path):
    done = echelon("submit", "--slurm=reservation=none", "train.py", code=2)
    assert "Slurm rejected the job" in done.stderr
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_failed_run_fails_whoever_waits_and_shows_its_output(echelon):
    done = echelon("submit", "--follow", "train.py", "--fail", code=5)
    assert "0: rank 0 of 1 ['--fail']" in done.stdout
    assert "FAILED" in done.stderr


def test_a_run_can_be_cancelled(echelon, cluster):
    job = json.loads(echelon("submit", "--json", "train.py", "--long").stdout)["job_id"]
    cluster.await_job(job, "RUNNING")
    echelon("cancel", "last")
    assert cluster.await_job(job, "CANCELLED")["JobState"] == "CANCELLED"
    echelon("cancel", "last")  # once more is no error


def test_what_would_fail_is_refused_before_it_is_queued(echelon, cluster, tmp_path):
    before = cluster.exec("squeue", "--noheader")
    done = echelon("submit", "--nodes=9", "--partition=hgih", "nowhere.py", code=2)
    assert "nowhere.py does not exist" in done.stderr
    assert "unknown partition 'hgih': did you mean 'high'?" in done.stderr
    assert cluster.exec("squeue", "--noheader") == before
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_queues_nothing(echelon, tmp_path):
    assert echelon("submit", "--dry-run", "train.py").stdout.startswith("#!/bin/bash\n")
    assert not (tmp_path / "runs").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_hostile_job_names_arrive_as_they_are(echelon, cluster, tmp_path):
    names = ["a'; touch owned", 'say "hi"', "$(touch owned)", "back\\slash", "ünï cödé", "a #b"]
    jobs = {}
    for name in (*names, " x "):
        done = echelon("submit", "--json", "--name", name, "train.py")
        jobs[name] = job = json.loads(done.stdout)["job_id"]
        shown = cluster.exec("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%j")
        assert shown == f"{name}\n"
    for name, job in jobs.items():
        ended = cluster.await_job(job, "COMPLETED", "FAILED")
        assert ended["JobState"] == "COMPLETED", name
    assert not (tmp_path / "owned").exists()
