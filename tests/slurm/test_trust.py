"""A job that waits in the queue, and a member of a shared group who replaces its run's folder."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from requirements import require_root

OTHER, SHARED = 12345, 12346
"""Nobody's numbers: permissions ask for no account."""
HELD = ("--set", "slurm.extra.hold=")
PLANT = "open({!r}, 'w').close()"
SWAP = """\
set -e
mv runs taken
mkdir -p runs/"$1"/logs
chmod -R a+rwX runs
cp -r forged runs/"$1"/launcher
printf 'echo planted > %s\\n' "$2" > runs/"$1"/job.sbatch
printf 'notify = "touch %s"\\n' "$2" > runs/"$1"/spec.toml
"""


@pytest.fixture
def folder():
    """A project's folder that the group may write, as is usual on clusters."""
    require_root("to be another user")
    path = Path(tempfile.mkdtemp(prefix="echelon-", dir="/var/tmp"))
    os.chown(path, -1, SHARED)
    path.chmod(0o775)
    (path / "train.py").write_text("print('trained', flush=True)\n")
    yield path
    shutil.rmtree(path)


def forge_folder(forged, plant):
    """What Python runs when it is given a folder."""
    (forged / "echelon" / "launch").mkdir(parents=True)
    for name in ("__main__.py", "echelon/__init__.py", "echelon/launch/__init__.py"):
        (forged / name).write_text(plant)


def forge_file(forged, plant):
    """What a bootstrap would run that compares nothing."""
    forged.write_bytes(f"{plant}\n".encode() + b"PK\3\4")


@pytest.mark.parametrize("forge", [forge_folder, forge_file])
def test_a_job_does_not_execute_what_was_put_in_its_runs_place(cluster, folder, forge):
    planted = folder / "planted"
    forge(folder / "forged", PLANT.format(str(planted)))
    before = os.umask(0o002)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "echelon", "submit", "--json", *HELD, "train.py"],
            cwd=folder,
            env={
                **cluster.environ,
                "SLURM_CONF": str(cluster.box.layout.slurm_conf),
                "HOME": str(folder),
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.umask(before)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    run, job = Path(made["directory"]), made["job_id"]
    mode = run.parent.stat().st_mode & 0o777
    swap = ["bash", "-c", SWAP, "bash", run.name, str(planted)]
    subprocess.run(swap, cwd=folder, user=OTHER, group=SHARED, extra_groups=[], check=True)
    assert run.stat().st_uid == OTHER
    cluster.exec("scontrol", "release", job)
    ended = cluster.await_job(job, "COMPLETED", "FAILED")
    (log,) = (run / "logs").glob("job-*.out")
    assert not planted.exists()
    assert ended["JobState"] == "FAILED"
    why = "cannot read the launcher" if forge is forge_folder else "is not what was submitted"
    assert why in log.read_text()
    assert mode == 0o700
    assert "the group 12346 can write to" in done.stderr
