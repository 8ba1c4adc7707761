"""A Mac as the client of a login host, with a local shell in the place of ssh.

The client's side runs without what only Linux has; the host's side is an ordinary process.
"""

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from local.test_hosted import SSH

MACOS = Path(__file__).parents[1] / "macos.py"
# A cluster with one job, which completed at once.
SLURM = {
    "sbatch": 'for word; do case $word in --comment=*) echo "C${word#--c}" >~/job ;; esac; done\n'
    "echo 7",
    "squeue": "exit 0",
    "sinfo": "exit 0",
    "scontrol": (
        'case "$*" in *json*) exit 1 ;; '
        "*job*) echo JobId=7 JobState=COMPLETED Reason=None NodeList=n1 $(cat ~/job) ;; "
        "*partition*) echo 'PartitionName=p Default=YES State=UP MaxTime=UNLIMITED' ;; esac"
    ),
}


@pytest.fixture
def mac(tmp_path):
    """Runs a command on the Mac, in a project of its user, and returns it."""
    ssh, home, programs = tmp_path / "ssh", tmp_path / "home", tmp_path / "bin"
    project, here = tmp_path / "project", tmp_path / "mac"
    for folder in (home, programs, project, here):
        folder.mkdir()
    # The host has a home directory of its own.
    ssh.write_text(SSH.replace("exec /bin/sh", f"HOME={home} SHELL=/bin/sh exec /bin/sh"))
    for name, text in SLURM.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
    for path in (ssh, *programs.iterdir()):
        path.chmod(stat.S_IRWXU)
    (home / ".profile").write_text(f"PATH={programs}:$PATH; export PATH\nunset XDG_STATE_HOME\n")
    (project / "train.py").write_text("print('trained')\n")
    (project / "echelon.toml").write_text(
        'cluster = "far"\n[clusters.far]\nhost = "login"\nworkdir = "~/there"\n'
        f'python = "{sys.executable}"\n'
    )
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("ECHELON", "SLURM"))}
    environ |= {"HOME": str(here), "XDG_STATE_HOME": str(here / "state"), "ECHELON_SSH": str(ssh)}

    def run(*words):
        done = subprocess.run(
            [sys.executable, str(MACOS), *words],
            cwd=project,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def start(*words):
        return subprocess.Popen(
            [sys.executable, str(MACOS), *words],
            cwd=project,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    run.project, run.there, run.start = project, home / "there", start
    return run


def test_a_run_is_submitted_asked_about_and_fetched(mac):
    (mac.project / "echelon.toml").chmod(0o664)  # whether it has an ACL is asked only then
    run = json.loads(mac("submit", "--json", "train.py"))["run"]
    folder = mac.there / "runs" / run
    assert (folder / "code" / "train.py").read_text() == "print('trained')\n"
    logs = folder / "logs" / "1.0"
    logs.mkdir(parents=True)
    (logs / "rank-00000.log").write_text("trained\n")
    assert [one["run"] for one in json.loads(mac("ps", "--json"))] == [run]
    assert json.loads(mac("status", "--json", run))["state"] == "COMPLETED"
    assert "trained" in mac("logs", run)
    mac("why", run)
    mac("fetch", run)
    assert (mac.project / run / "logs" / "1.0" / "rank-00000.log").read_text() == "trained\n"
    (mac.project / "train.py").write_text("print('better')\n")
    assert "+print('better')" in mac("diff", run)
    serving = mac.start("dash", run)
    assert serving.stdout.readline().startswith("http://127.0.0.1:")
    serving.send_signal(signal.SIGINT)
    serving.communicate(timeout=30)
    mac("submit", "train.py")
    assert (mac.there / "train.py").read_text() == "print('better')\n"


def test_a_project_is_prepared_and_checked(mac):
    (mac.project / "echelon.toml").unlink()
    assert "cluster" not in mac("init", "--yes", "--dry-run")
    (mac.project / "jobs").mkdir()
    for number in range(130):  # enough for several processes
        text = "#!/bin/bash\n#SBATCH --nodes=1\nsrun true\n"
        (mac.project / "jobs" / f"{number}.sh").write_text(text)
    mac("lint", "--select=E1", "jobs")


def test_linux_is_hidden():
    """The test's own tool works; otherwise the tests above prove nothing."""
    look = (
        "import macos, os, ctypes; from pathlib import Path; macos.become_macos()\n"
        "assert not hasattr(os, 'listxattr') and not Path('/proc/self').exists()\n"
        "for look in (open, os.listdir, os.scandir, os.readlink, ctypes.CDLL):\n"
        "    try: look('/proc/self/exe' if look is not ctypes.CDLL else 'libc.so.6')\n"
        "    except OSError: continue\n"
        "    raise SystemExit(str(look))\n"
    )
    subprocess.run([sys.executable, "-c", look], cwd=MACOS.parent, check=True)
