"""The default style on real Slurm: what others on the cluster can see of it."""

import ipaddress
import json
import re
import secrets
import subprocess
import sys

from echelon.core.waiting import wait_until
from procfs import all_pids, cmdline, environ_of, listeners
from run_key import record_key, recorded_key

WAIT = """\
import os, pathlib, time
pathlib.Path("ready-" + os.environ["RANK"]).write_text(os.environ["CANARY_SECRET"])
while not pathlib.Path("go").exists():
    time.sleep(0.02)
print("done", flush=True)
"""

SHOW = """\
import json, os, pathlib, subprocess
step = ["srun", "--overlap", "--nodes=1", "--ntasks=1", "hostname"]
done = subprocess.run(step, capture_output=True, text=True, timeout=60)
seen = {**os.environ, "STEP": f"{done.returncode} {done.stdout.strip()}"}
pathlib.Path(f"seen-{os.environ['SLURM_PROCID']}.json").write_text(json.dumps(seen))
"""
DIFFERS = {
    *("SLURM_JOBID", "SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_TASK_PID", "SLURM_GTIDS"),
    *("SLURM_SRUN_COMM_PORT", "SLURM_STEP_LAUNCHER_PORT", "SLURM_DISTRIBUTION"),
    *("SLURM_LABELIO", "SLURM_MEM_PER_CPU", "SLURM_JOB_SLUID"),
    *("SLURM_JOB_START_TIME", "SLURM_JOB_END_TIME", "SLURM_SUBMIT_LINE"),
}
"""Between a rank and a task of srun: the jobs are two, and the rest tells srun what to do."""


def test_a_rank_sees_of_slurm_what_a_task_of_srun_sees(full, tmp_path):
    """Scripts read them, such as the CPUs of a task to know how many loaders to start."""
    (tmp_path / "show.py").write_text(SHOW)
    shape = ["--nodes=2", "--gpus=2", "--cpus-per-task=3", "--hand-over=never"]
    for style in ("srun", "echelon"):
        argv = ["submit", "--wait", f"--style={style}", *shape, "show.py"]
        done = subprocess.run(
            [sys.executable, "-m", "echelon", *argv],
            cwd=tmp_path,
            env={**full.environ, "SLURM_CONF": str(full.box.layout.slurm_conf)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        for rank in range(4):
            (tmp_path / f"seen-{rank}.json").rename(tmp_path / f"{style}-{rank}.json")
    for rank in range(4):
        task, own = (
            json.loads((tmp_path / f"{style}-{rank}.json").read_text())
            for style in ("srun", "echelon")
        )
        told = {name for name in task if name.startswith("SLURM") and name not in DIFFERS}
        assert {name: own.get(name) for name in told} == {name: task[name] for name in told}
        assert own["SLURM_CPUS_PER_TASK"] == "3"
        assert re.fullmatch(r"0 node\d", own["STEP"])


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
            **record_key(tmp_path),
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
    ours = re.compile(
        rb"[^\0]*python[^\0]*\0-c\0[^\0]*\0[0-9a-f]{64}\0[^\0]*/launcher\0"
    )  # srun itself listens everywhere
    launched = [pid for pid in holders if ours.match(cmdline(pid))]
    found = [(cmdline(pid), pair) for pid in launched for pair in listeners(pid)]
    assert found, "the controller listens"
    assert [pair for pair in found if ipaddress.ip_address(pair[1][0]).is_unspecified] == []
    key = recorded_key(tmp_path).hex().encode()
    assert [cmdline(pid) for pid in seen if key in environ_of(pid)] == []
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
