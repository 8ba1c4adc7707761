"""Two nodes of a real Slurm, each with its own network: the environment is copied between them."""

import json
import subprocess
import sys

import pytest

TRAIN = """\
import json, os
import payload
mounts = [line.split() for line in open("/proc/self/mountinfo")]
place = [one[3] for one in mounts if one[4] == os.environ["PLACE"]]
print(payload.__file__, payload.VALUE, place, flush=True)
"""


@pytest.fixture
def environment(tmp_path):
    place = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    (site,) = place.glob("lib/python*/site-packages")
    (site / "payload.py").write_text("VALUE = 1\n")
    return place


@pytest.fixture
def submit(full, environment, tmp_path):
    """Submits a script; returns the event `staged`, and what ranks have printed."""
    (tmp_path / "train.py").write_text(TRAIN)
    environ = {**full.environ, "SLURM_CONF": str(full.box.layout.slurm_conf), "HOME": str(tmp_path)}

    def call(*arguments):
        argv = [sys.executable, "-m", "echelon", *arguments]
        done = subprocess.run(
            argv,
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(*more, during=None):
        options = ("--nodes=2", "--procs=1", f"--venv={environment}", "--set=preload=payload")
        stage = ("--stage", f"--stage-dir={tmp_path}/stages/%N", f"--env=PLACE={environment}")
        wait = ["--slurm=hold="] if during else ["--wait"]
        run_id = call("submit", *options, *stage, *wait, *more, "train.py").strip()
        if during:
            during()
            job = json.loads(call("status", "--json", run_id))["job"]
            full.exec("scontrol", "release", job)
            call("logs", "-f", run_id)
        events = (tmp_path / "runs" / run_id / "events" / "controller-1.jsonl").read_text()
        (event,) = [one for one in map(json.loads, events.splitlines()) if one["kind"] == "staged"]
        return event, call("logs", run_id)

    return run


def test_a_cold_start_a_warm_one_and_a_changed_environment(submit, environment, tmp_path):
    event, printed = submit()
    assert (event["nodes"], event["found"], event["without"]) == (2, 0, {})
    for node in ("node1", "node2"):
        (kept,) = (path for path in (tmp_path / "stages" / node).iterdir() if path.is_dir())
        assert f"{node}/{kept.name}/tree" in printed, "each node uses its own"
    assert printed.count(f"{environment}/lib/python") == 2
    event, printed = submit()
    assert (event["nodes"], event["found"], event["copied"]) == (2, 2, 0)

    def change():
        (site,) = environment.glob("lib/python*/site-packages")
        (site / "payload.py").write_text("VALUE = 'changed'\n")

    # Other copies than the submitted one are of no use: as on nodes that were never used.
    subprocess.run(["rm", "-r", tmp_path / "stages"], check=True)
    event, printed = submit(during=change)
    assert (event["nodes"], event["changed"]) == (2, True)
    assert printed.count(" changed [") == 2
