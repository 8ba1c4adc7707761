"""The sandbox does what a cluster does."""

import os
import subprocess
import textwrap
from pathlib import Path

import pytest

from echelon.core.waiting import wait_until


def test_every_task_of_a_step_gets_its_own_gpu(full):
    shown = full.exec(
        *("srun", "--nodes=4", "--ntasks-per-node=2", "--gpus-per-task=1", "bash", "-c"),
        'echo "$(hostname) $SLURM_PROCID $SLURM_LOCALID $CUDA_VISIBLE_DEVICES"',
    )
    assert sorted(line.split() for line in shown.splitlines()) == sorted(
        [f"node{node + 1}", str(2 * node + task), str(task), str(task)]
        for node in range(4)
        for task in range(2)
    )


def test_a_task_may_have_all_gpus_of_its_node(cluster):
    shown = cluster.exec(
        "srun", "--nodes=1", "--gres=gpu:a100:4", "printenv", "CUDA_VISIBLE_DEVICES"
    )
    assert shown == "0,1,2,3\n"


def test_a_node_is_a_machine_of_its_own(full):
    show = (
        "echo $(hostname) $(hostname -I) $(getent hosts node3 | cut -d ' ' -f 1) $(ps -e | wc -l)"
    )
    shown = full.exec("srun", "--nodes=1", "--nodelist=node2", "bash", "-c", show).split()
    addresses = {name: node.address for name, node in full.nodes().items()}
    assert shown[:3] == ["node2", addresses["node2"], addresses["node3"]]
    assert int(shown[3]) < 20  # no process of this machine is seen on the node


def test_nodes_reach_each_other_by_name(full, tmp_path):
    """A listener on node1, a caller on node4."""
    ready, script = tmp_path / "ready", tmp_path / "talk.py"
    script.write_text(
        textwrap.dedent(f"""\
        import os, pathlib, socket, time
        ready = pathlib.Path({str(ready)!r})
        if os.environ["SLURM_PROCID"] == "0":
            server = socket.create_server(("", 0))
            ready.with_suffix(".part").write_text(str(server.getsockname()[1]))
            ready.with_suffix(".part").rename(ready)
            print(socket.gethostbyaddr(server.accept()[1][0])[0])
        else:
            while not ready.exists():
                time.sleep(0.01)
            socket.create_connection(("node1", int(ready.read_text())))
        """)
    )
    argv = ["srun", "--nodes=2", "--ntasks-per-node=1", "--nodelist=node1,node4"]
    assert full.exec(*argv, "python3", str(script)) == "node4\n"


def test_a_batch_job_runs_in_its_folder_and_writes_its_output(cluster, tmp_path):
    job = cluster.sbatch(tmp_path, "#!/bin/bash\nsrun -N2 pwd; echo $PWD\n", "-N2", f"-D{tmp_path}")
    assert cluster.await_job(job, "COMPLETED", "FAILED")["JobState"] == "COMPLETED"
    assert (tmp_path / "out").read_text() == f"{tmp_path}\n" * 3


def test_a_job_without_its_submitter_s_variables_finds_the_cluster(full, tmp_path):
    script = "#!/bin/bash\n/usr/bin/srun /bin/hostname\n"
    job = full.sbatch(tmp_path, script, "--export=NONE", "--nodelist=node3")
    assert full.await_job(job, "COMPLETED", "FAILED")["JobState"] == "COMPLETED"
    assert (tmp_path / "out").read_text() == "node3\n"


def test_gpu_types_are_features_too(cluster):
    assert cluster.exec("srun", "--constraint=a100", "echo", "here") == "here\n"


def test_an_impossible_request_is_refused_at_once(cluster):
    done = cluster("exec", "--", "srun", "--gres=gpu:5", "true", check=False)
    assert done.returncode != 0
    assert "Requested node configuration is not available" in done.stderr


def test_small_jobs_share_a_node(cluster):
    """Memory has a default per CPU: a job that names none does not take the whole node."""
    waiting = cluster.start("srun", "--nodelist=node1", "--ntasks=1", "sleep", "60")
    try:
        cluster.await_node("node1", lambda state: state in ("mixed", "allocated"))
        assert cluster.exec("srun", "--nodelist=node1", "--ntasks=1", "echo", "both") == "both\n"
    finally:
        waiting.terminate()
        waiting.wait()


@pytest.mark.full
def test_a_high_job_preempts_a_low_one(cluster, tmp_path):
    told = tmp_path / "told"
    loop = f'trap "touch {told}" TERM; touch {tmp_path}/running; while :; do sleep 0.1; done'
    script = f"#!/bin/bash\nsrun bash -c '{loop}'\n"
    low = cluster.sbatch(tmp_path, script, "--partition=low", "--nodes=4", "--exclusive")
    assert wait_until((tmp_path / "running").exists, timeout_s=20)
    (tmp_path / "high").mkdir()
    high = cluster.sbatch(
        tmp_path / "high", "#!/bin/bash\ntrue\n", "--partition=high", "--nodes=4", "--exclusive"
    )
    assert cluster.await_job(high, "COMPLETED", "FAILED")["JobState"] == "COMPLETED"
    assert told.exists()  # it was asked to stop before it was made to
    state = cluster.job(low)
    assert (state["JobState"], state["Restarts"]) == ("PENDING", "1")


def test_other_users_can_use_the_cluster_from_outside(full):
    """Root started it; an ordinary user's shell needs nothing but what `env` prints."""
    line = full("env").stdout.strip()
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "bash", "-c"]
    done = subprocess.run(
        [*as_nobody, f"{line}; cd /tmp; srun --nodes=2 bash -c 'echo $(id -un)@$(hostname)'"],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert sorted(done.stdout.split()) == ["nobody@node1", "nobody@node2"], done.stderr


def test_a_real_user_has_only_the_jobs_that_are_his(full):
    """Slurm's own rule, through our munged: nobody may not cancel root's job."""
    job = full.exec("sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep 60").strip()
    line = full("env").stdout.strip()
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "bash", "-c"]
    done = subprocess.run(
        [*as_nobody, f"{line}; scancel {job}"], capture_output=True, text=True, check=False
    )
    assert "Access/permission denied" in done.stderr
    assert full.job(job)["JobState"] in ("PENDING", "RUNNING")


def test_orphans_on_a_node_are_collected(full):
    """A node's first process does what init does: no zombie stays."""
    full.exec("srun", "--nodelist=node1", "bash", "-c", "(setsid sleep 0.1 &) ; exit 0")
    pid = next(
        process.name
        for process in Path("/proc").iterdir()
        if process.name.isdigit() and _argv(process) == ["bash", f"{full.root}/boot.sh", "node1"]
    )
    children = Path(f"/proc/{pid}/task/{pid}/children")

    def zombies():
        stats = [Path(f"/proc/{child}/stat").read_text() for child in children.read_text().split()]
        return [stat for stat in stats if ") Z " in stat]

    assert wait_until(lambda: not zombies(), timeout_s=30)


def _argv(process):
    try:
        return (process / "cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []
