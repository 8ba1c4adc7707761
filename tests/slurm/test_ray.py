"""The style `ray` on real Slurm: a Ray cluster that is a job's own, beside another's."""

import json
import os
import signal
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from echelon.clusters.slurm.styles import render_script
from echelon.core.waiting import wait_until
from echelon.spec.merging import Layer, merge
from procfs import all_pids, cmdline, environ_of
from requirements import do_without

ALONE = """\
import json, os, subprocess, sys, time
from pathlib import Path
import psutil
import ray

dashboard = ray.init().dashboard_url  # nothing else has to be said


@ray.remote(num_cpus=0)
def where():
    return os.environ["RAY_HOME"]


def knock(token):
    "What a stranger does who has learned the address."
    line = "import ray; ray.init(); print('in', sum(n['Alive'] for n in ray.nodes()))"
    environ = {**os.environ, "RAY_AUTH_TOKEN": token}
    done = subprocess.run(
        [sys.executable, "-c", line], env=environ, capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip() or done.stderr.strip()


def listeners():
    "Who of this job listens, and where: program -> addresses."
    found = {}
    for process in psutil.process_iter(["cmdline", "name"]):
        try:
            if process.environ().get("RAY_AUTH_TOKEN") != os.environ["RAY_AUTH_TOKEN"]:
                continue
            for one in process.net_connections("tcp"):
                if one.status == psutil.CONN_LISTEN:
                    found.setdefault(process.name(), []).append(list(one.laddr))
        except psutil.Error:
            continue
    return found


Path("said.tmp").write_text(json.dumps({
    "nodes": sum(node["Alive"] for node in ray.nodes()),
    "home": ray.get(where.remote()),
    "address": os.environ["RAY_ADDRESS"],
    "friend": knock(os.environ["RAY_AUTH_TOKEN"]),
    "stranger": knock("b" * 32),
    "dashboard": dashboard,
    "listeners": listeners(),
    "threads": os.environ.get("OMP_NUM_THREADS"),
}))
Path("said.tmp").rename("said")
while not Path("../go").exists():
    time.sleep(0.05)
"""

TRAIN = """\
from pathlib import Path
import ray
import torch
import torch.distributed as dist
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def work(asked):
    total = torch.tensor([2.0 ** dist.get_rank()])
    dist.all_reduce(total)
    assert total.item() == 2.0 ** dist.get_world_size() - 1
    Path(asked["folder"], f"rank-{dist.get_rank()}").write_text(ray.util.get_node_ip_address())


folder = str(Path.cwd())
TorchTrainer(
    work,
    train_loop_config={"folder": folder},
    torch_config=TorchConfig(backend="gloo"),
    scaling_config=ScalingConfig(num_workers=2, placement_strategy="STRICT_SPREAD"),
    run_config=RunConfig(storage_path=folder),
).fit()
"""


@pytest.fixture(autouse=True)
def _ray():
    try:
        version("ray")
    except PackageNotFoundError:
        do_without("needs ray: run `tools/setup.sh user test`")


def submit(cluster, folder, program, *, text=str, **more):
    """Submit a script, changed as the test wants."""
    folder.mkdir(exist_ok=True)
    (folder / "driver.py").write_text(program)
    values = {
        "script": "driver.py",
        "style": "ray",
        "python": sys.executable,
        "chdir": str(folder),
        "output": f"{folder}/out",
        **more,
    }
    script = render_script(merge([Layer(source="test", values=values)]).spec)
    (folder / "job.sh").write_text(text(script))
    return cluster.exec("sbatch", "--parsable", f"{folder}/job.sh").strip()


def await_end(cluster, job, folder, state="COMPLETED"):
    ended = cluster.await_job(job, "COMPLETED", "FAILED", "CANCELLED", timeout_s=150)
    assert ended["JobState"] == state, (folder / "out").read_text()


def check_clean(jobs):
    """Neither a process of these jobs is left, nor a folder."""
    marks = [f"SLURM_JOB_ID={job}\0".encode() for job in jobs]

    def left():
        found = [pid for pid in all_pids() if any(mark in environ_of(pid) for mark in marks)]
        return [cmdline(pid) for pid in found]

    assert wait_until(lambda: not left(), timeout_s=20), left()
    place = Path("/tmp")  # noqa: S108  where the scripts put them
    homes = lambda: [home for job in jobs for home in place.glob(f"ray-{job}-*")]  # noqa: E731
    assert wait_until(lambda: not homes(), timeout_s=20), homes()


def check_listeners(said):
    """The dashboard is for its own node; docs/ray.md says of the others that they are open."""
    host, _, port = said["dashboard"].rpartition(":")
    where = {tuple(one) for listening in said["listeners"].values() for one in listening}
    assert host == "127.0.0.1"
    assert [address for address, number in where if number == int(port)] == ["127.0.0.1"]
    ports = {number for _, number in where}
    assert not ports & {6379, 8265, 10001}, said["listeners"]
    # These defaults are in the range from which the kernel chooses: one of them may be by chance.
    assert len(ports & {44217, 44227, 52365}) < 2, said["listeners"]


@pytest.mark.full
def test_two_jobs_on_one_node_have_each_a_ray_of_their_own(full, tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    jobs = [submit(full, folder, ALONE, nodelist="node1") for folder in folders]
    both = lambda: all((folder / "said").exists() for folder in folders)  # noqa: E731
    assert wait_until(both, timeout_s=150), [(folder / "out").read_text() for folder in folders]
    said = [json.loads((folder / "said").read_text()) for folder in folders]
    (tmp_path / "go").touch()
    for job, folder in zip(jobs, folders, strict=True):
        await_end(full, job, folder)
    assert [(one["nodes"], one["friend"], one["threads"]) for one in said] == [
        (1, "in 1", None)
    ] * 2
    for one in said:
        assert "AuthenticationError" in one["stranger"], one["stranger"]
        check_listeners(one)
    assert len({one["address"] for one in said}) == len({one["home"] for one in said}) == 2
    check_clean(jobs)


@pytest.mark.full
def test_ray_train_runs_on_all_nodes_of_the_job(full, tmp_path):
    folder = tmp_path / "train"
    job = submit(full, folder, TRAIN, nodes=2, cpus_per_task=2)
    await_end(full, job, folder)
    places = {(folder / f"rank-{rank}").read_text() for rank in range(2)}
    assert len(places) == 2
    check_clean([job])


TUNE = """\
from pathlib import Path
import ray
from ray import tune

rows = ray.data.range(100, override_num_blocks=4).map_batches(lambda batch: {"id": batch["id"] * 2})
assert rows.sum("id") == 9900
results = tune.Tuner(
    lambda config: {"loss": (config["x"] - 2) ** 2},
    param_space={"x": tune.grid_search([1, 2, 3])},
    run_config=tune.RunConfig(storage_path=str(Path.cwd())),
).fit()
assert not results.errors
Path("best").write_text(str(results.get_best_result("loss", "min").config["x"]))
"""


@pytest.mark.full
def test_ray_data_and_ray_tune_find_the_cluster(full, tmp_path):
    folder = tmp_path / "tune"
    job = submit(full, folder, TUNE, nodes=2, cpus_per_task=2)
    await_end(full, job, folder)
    assert (folder / "best").read_text() == "2"
    check_clean([job])


WARNED = """\
import time
from pathlib import Path
import ray

ray.init()


@ray.remote(num_cpus=0)
def answer():
    return 42


Path("here").touch()
while not Path("warned").exists():
    time.sleep(0.05)
time.sleep(4)
Path("saved").write_text(str(ray.get(answer.remote())))
"""


@pytest.mark.full
def test_ray_stays_until_its_driver_has_saved(full, tmp_path):
    folder = tmp_path / "one"
    folder.mkdir()
    job = submit(
        full, folder, WARNED, text=lambda text: text.replace("{linger:-30} - 5", "{x:-30}")
    )
    assert wait_until((folder / "here").exists, timeout_s=150), (folder / "out").read_text()
    # As Slurm does where it tracks processes by cgroups: only tasks get a warning.
    mark = f"SLURM_JOB_ID={job}\0".encode()
    for pid in all_pids():
        words = cmdline(pid).split(b"\0")
        is_task = words[-3:] == [b"bash", b"head", b""] and words[0].endswith(b"bash")
        if mark in environ_of(pid) and is_task:
            os.kill(pid, signal.SIGTERM)
            (folder / "warned").touch()
    await_end(full, job, folder)
    assert (folder / "saved").read_text() == "42"
    check_clean([job])


@pytest.mark.full
def test_a_job_that_is_cancelled_leaves_nothing(full, tmp_path):
    folder = tmp_path / "one"
    job = submit(full, folder, ALONE, nodes=2)
    assert wait_until((folder / "said").exists, timeout_s=150), (folder / "out").read_text()
    full.exec("scancel", job)
    await_end(full, job, folder, "CANCELLED")
    check_clean([job])


def test_a_driver_that_fails_fails_the_job(full, tmp_path):
    folder = tmp_path / "one"
    job = submit(full, folder, "import sys\nsys.exit(3)\n")
    await_end(full, job, folder, "FAILED")
    assert full.job(job)["ExitCode"] == "3:0"
    check_clean([job])
