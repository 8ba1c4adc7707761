"""The default style on real Slurm: what others on the cluster can see of it."""

import ipaddress
import json
import re
import secrets
import subprocess
import sys

from echelon.core.waiting import wait_until
from kernel import all_pids, cmdline, environ_of, listeners

WAIT = """\
import os, pathlib, time
pathlib.Path("ready-" + os.environ["RANK"]).write_text(os.environ["CANARY_SECRET"])
while not pathlib.Path("go").exists():
    time.sleep(0.02)
print("done", flush=True)
"""


def test_a_users_secrets_reach_the_ranks_and_nobody_else(full, tmp_path):
    """Of what is in the environment nothing is in arguments, in Slurm's answers or in files."""
    canary = secrets.token_hex(16)
    (tmp_path / "wait.py").write_text(WAIT)
    done = subprocess.run(
        [sys.executable, "-m", "echelon", "submit", "--json", "--nodes=2", "--procs=2", "wait.py"],
        cwd=tmp_path,
        env={
            **full.environ,
            "SLURM_CONF": str(full.box.layout.slurm_conf),
            "HOME": str(tmp_path),
            "CANARY_SECRET": canary,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    job = json.loads(done.stdout)["job_id"]
    run = next((tmp_path / "runs").iterdir())
    ready = [tmp_path / f"ready-{rank}" for rank in range(4)]
    arrived = lambda: all(path.exists() and path.read_text() == canary for path in ready)  # noqa: E731
    assert wait_until(arrived, timeout_s=60), full.job(job)

    seen = {pid: cmdline(pid) for pid in all_pids()}
    holders = [pid for pid in seen if canary.encode() in environ_of(pid)]
    assert len(holders) >= 10, "controller, srun, and on each node agent, zygote and two ranks"
    ours = re.compile(rb"[^\0]*python[^\0]*\0[^\0]*/launcher\0")  # srun itself listens everywhere
    launched = [pid for pid in holders if ours.match(cmdline(pid))]
    found = [(cmdline(pid), pair) for pid in launched for pair in listeners(pid)]
    assert found, "the controller listens"
    assert [pair for pair in found if ipaddress.ip_address(pair[1][0]).is_unspecified] == []
    agents = [environ_of(pid) for pid in launched if b"/launcher\0agent\0" in cmdline(pid)]
    (key,) = {re.search(rb"\0ECHELON_KEY=([0-9a-f]{64})\0", b"\0" + own)[1] for own in agents}
    seen |= {
        " ".join(argv): full.exec(*argv).encode()
        for argv in (
            ["scontrol", "--details", "show", "job", job],
            ["scontrol", "show", "step", job],
            ["scontrol", "write", "batch_script", job, "-"],
            ["squeue", "--all", "--format=%all"],
        )
    }
    assert f"JobId={job}".encode() in seen[f"scontrol --details show job {job}"]
    (tmp_path / "go").touch()
    assert full.await_job(job, "COMPLETED", "FAILED")["JobState"] == "COMPLETED"
    seen |= {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    expected = ("job.sbatch", "spec.toml", "events/controller-1.jsonl")
    assert {run / name for name in expected} <= seen.keys()
    hidden = [canary.encode(), key]
    assert [place for place, text in seen.items() if any(word in text for word in hidden)] == []
