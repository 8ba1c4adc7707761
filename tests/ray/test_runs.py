"""Runs on a real Ray cluster: they train, survive, stop, and say what is wrong."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from echelon.clusters.ray.cluster import render_entrypoint
from echelon.core.waiting import wait_until
from mnist_files import write_digits
from procfs import cmdline, environ_of
from raycluster import START_S, TOKEN, events
from requirements import require, require_root
from run_key import record_key, recorded_key
from slurm.survival import SURVIVOR, Chain, check_samples

MNIST = Path(__file__).parents[2] / "examples" / "mnist" / "train.py"
ENDLESS = "import time\nprint('here', flush=True)\nwhile True: time.sleep(0.1)\n"


def submit(cluster, folder, *words):
    """Submit a run and follow it, in the background."""
    argv = [sys.executable, "-m", "echelon", "submit", "--follow", *cluster.here, *words]
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            argv, cwd=folder, env=cluster.environ, stdout=output, stderr=output
        )
    return Chain(folder=folder, environ=cluster.environ, process=process)


def output(chain):
    return (chain.folder / "output").read_text()


def end_of(chain, timeout_s=90):
    """Return the command's code, when it is over."""
    try:
        return chain.process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        chain.process.kill()
        chain.process.wait()
        raise AssertionError(output(chain)) from None


def await_events(chain, kind, count, attempt=1):
    there = lambda: (  # noqa: E731
        any((chain.folder / "runs").glob("*")) and len(events(chain.run, kind, attempt)) >= count
    )
    assert wait_until(there, timeout_s=START_S, interval_s=0.05), output(chain)
    return events(chain.run, kind, attempt)


def worlds(chain, attempt=1):
    return [event["world_size"] for event in events(chain.run, "generation", attempt)]


def check_secrets(cluster, chain):
    """Neither the cluster's token nor the run's key is in an argument or a file of the run.

    The key is in no variable either.
    """
    pids, key = cluster.pids(), recorded_key(chain.folder).hex().encode()
    files = b"".join(path.read_bytes() for path in chain.run.rglob("*") if path.is_file())
    shown = b"".join(cmdline(pid) for pid in pids)
    for secret in (TOKEN.encode(), key):
        assert secret not in shown
        assert secret not in files
    assert not any(key in environ_of(pid) for pid in pids)


def test_mnist_survives_a_killed_rank_and_a_removed_node(cluster, folder):
    data = f"--data-dir={write_digits(folder / 'digits', train=512)}"
    size = ["--batch-size=8", "--test-batch-size=64", "--epochs=5"]
    words = ["--nodes=1:3", "--procs=2", str(MNIST), data, *size]  # one of which is not there
    chain = submit(cluster, folder, *words)
    await_saved = lambda count: wait_until(  # noqa: E731
        lambda: len(list(chain.run.glob("checkpoints/step-*/manifest.json"))) >= count,
        timeout_s=START_S,
    )
    victim = await_events(chain, "rank", 4)[-1]["pid"]
    assert await_saved(1), output(chain)
    os.kill(victim, signal.SIGKILL)
    await_events(chain, "generation", 2)
    cluster.kill("beta")
    assert end_of(chain, 150) == 0, output(chain)
    assert worlds(chain) == [4, 4, 2], output(chain)
    assert "restart 1 of 3" in output(chain)
    came, complete = events(chain.run, "joined")[1], events(chain.run, "slots")[0]
    assert complete["time"] - came["time"] < 5  # the third is known not to come
    assert [event["node"] for event in events(chain.run, "lost")]
    told = chain.command("status", "--json")
    assert json.loads(told.stdout)["state"] == "COMPLETED", told
    assert chain.run.name in chain.command("ps").stdout


@pytest.mark.full
def test_a_run_stops_where_all_ranks_are_and_goes_on_later(cluster, folder):
    chain = submit(cluster, folder, "--nodes=2", "--procs=1", str(SURVIVOR), "60", "0.05")
    chain.await_step(5)
    assert chain.command("stop", "last").returncode == 0
    assert end_of(chain) == 130, output(chain)
    assert [one["state"] for one in chain.outcomes()] == ["CANCELLED"]
    assert "continue with: echelon resume" in output(chain)
    assert "cause: cancelled" in chain.command("why", "last").stdout
    done = chain.command("resume", "last", "--wait")
    assert done.returncode == 0, done.stderr
    assert [one["state"] for one in chain.outcomes()] == ["CANCELLED", "COMPLETED"]
    check_samples(chain.records(), 60)


@pytest.mark.full
def test_a_run_that_is_cancelled_is_gone_at_once_even_while_it_stops(cluster, folder):
    script = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + ENDLESS
    (folder / "deaf.py").write_text(script)
    record = [f"--set=env.{name}={value}" for name, value in record_key(folder).items()]
    chain = submit(cluster, folder, "--nodes=2", "--procs=1", *record, "deaf.py")
    ranks = [event["pid"] for event in await_events(chain, "rank", 2)]
    check_secrets(cluster, chain)
    assert chain.command("stop", "last").returncode == 0  # they would have thirty seconds
    assert chain.command("cancel", "last").returncode == 0
    assert end_of(chain, 20) == 130, output(chain)
    assert [one["state"] for one in chain.outcomes()] == ["CANCELLED"]
    gone = lambda: not [pid for pid in ranks if Path(f"/proc/{pid}").exists()]  # noqa: E731
    assert wait_until(gone, timeout_s=10)


@pytest.mark.full
@pytest.mark.parametrize("nodes", [1, 2])
def test_agents_that_are_killed_come_back_one_after_the_other(cluster, folder, nodes):
    options = [f"--nodes={nodes}", "--procs=1"]
    chain = submit(cluster, folder, *options, str(SURVIVOR), "200", "0.05", "--save-every=5")
    chain.await_step(7)
    first = {event["node"]: event for event in events(chain.run, "joined")}
    for node in range(nodes):
        os.kill(first[node]["pid"], signal.SIGKILL)
        await_events(chain, "generation", node + 2)
    assert end_of(chain) == 0, output(chain)
    assert worlds(chain) == [nodes] * (nodes + 1)
    assert [event["node"] for event in events(chain.run, "lost")] == list(range(nodes))
    names = {(event["node"], event["name"]) for event in events(chain.run, "joined")}
    assert len(names) == len(dict(names)) == len({name for _, name in names}) == nodes


@pytest.mark.full
def test_a_spare_node_takes_the_place_of_one_that_is_lost(cluster, folder):
    cluster.add("gamma")
    words = ["--nodes=2", "--procs=1", str(SURVIVOR), "120", "0.05", "--save-every=5"]
    chain = submit(cluster, folder, *words)
    chain.await_step(12)
    nodes = lambda: json.loads((chain.run / "attempts/1/nodes.json").read_text())["places"]  # noqa: E731
    ours = {place["id"] for place in nodes().values()}
    cluster.kill(cluster.name_of(nodes()["1"]["id"]))
    assert end_of(chain) == 0, output(chain)
    assert worlds(chain) == [2, 2]
    assert len(chain.attempts()) == 1
    assert len(ours | {place["id"] for place in nodes().values()}) == 3
    names = [event["name"] for event in events(chain.run, "joined")]
    assert len(set(names)) == 3, names


@pytest.mark.full
def test_nodes_that_are_not_there_are_waited_for(cluster, folder):
    (folder / "train.py").write_text("print('done')\n")
    chain = submit(cluster, folder, "--nodes=3", "train.py")
    waiting = "waiting for 3 nodes with CPU 1 each; 2 of 3 nodes in the Ray cluster have that"
    said = lambda: waiting in output(chain)  # noqa: E731
    assert wait_until(said, timeout_s=START_S), output(chain)
    assert json.loads(chain.command("status", "--json").stdout)["reason"] == waiting
    cluster.add("gamma")
    assert end_of(chain) == 0, output(chain)
    assert worlds(chain) == [3]


@pytest.mark.full
def test_with_too_few_nodes_whoever_waits_submits_the_next_attempt(cluster, folder):
    words = ["--nodes=2", "--procs=1", str(SURVIVOR), "60", "0.05", "--save-every=5"]
    chain = submit(cluster, folder, *words)
    chain.await_step(12)
    cluster.kill("beta")
    wanted = lambda: [one["next"] for one in chain.outcomes()] == ["wanted"]  # noqa: E731
    assert wait_until(wanted, timeout_s=60), output(chain)
    cluster.add("beta")
    assert end_of(chain) == 0, output(chain)
    assert [one["state"] for one in chain.outcomes()] == ["FAILED", "COMPLETED"]
    assert worlds(chain, 2) == [2]


@pytest.mark.full
@pytest.mark.quick
def test_a_run_in_the_foreground_ends_with_its_command(cluster, folder):
    (folder / "endless.py").write_text(ENDLESS)
    argv = [sys.executable, "-m", "echelon", "run", *cluster.here, "endless.py"]
    with (folder / "output").open("wb") as log:
        process = subprocess.Popen(argv, cwd=folder, env=cluster.environ, stdout=log, stderr=log)
    chain = Chain(folder=folder, environ=cluster.environ, process=process)
    await_events(chain, "rank", 1)
    process.send_signal(signal.SIGINT)
    assert end_of(chain) == 130, output(chain)
    assert "here" in output(chain)


# --- what can be wrong ------------------------------------------------------------------------


@pytest.mark.full
def test_a_node_that_does_not_see_the_folder_is_named(cluster, folder):
    require("unshare")
    require_root("a node with mounts of its own")
    (folder / "train.py").write_text("print('done')\n")
    cluster.kill("beta")
    hide = f'mount -t tmpfs none {folder} && exec "$@"'
    cluster.add("blind", wrapper=["unshare", "--mount", "bash", "-c", hide, "bash"])
    try:
        lenient = submit(cluster, folder, "--nodes=1:2", "train.py")
        assert end_of(lenient) == 0, output(lenient)
        assert "excluded: it failed its check: does not see the run directory" in output(lenient)
        assert worlds(lenient) == [1]
        shutil.rmtree(folder / "runs")
        chain = submit(cluster, folder, "--nodes=2", "train.py")
        assert end_of(chain) == 69, output(chain)
    finally:
        cluster.kill("blind")
    trouble = f"it failed its check: does not see the run directory {chain.run}: No such file"
    assert trouble in output(chain)
    (fault,) = events(chain.run, "bad node")
    assert fault["name"].startswith(os.uname().nodename)
    assert len(chain.attempts()) == 1


def test_a_head_that_does_not_see_the_folder_says_so(folder):
    command = render_entrypoint(folder / "nowhere", 1, folder / "nowhere" / "log", b"")
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 69
    assert done.stderr.startswith("echelon: the head of the Ray cluster, "), done.stderr


@pytest.mark.parametrize("token", ["", "b" * 32], ids=["none", "another"])
def test_a_stranger_is_refused(cluster, folder, token):
    (folder / "train.py").write_text("print('done')\n")
    environ = {k: v for k, v in cluster.environ.items() if k != "RAY_AUTH_TOKEN"}
    environ |= {"RAY_AUTH_TOKEN": token} if token else {}
    done = subprocess.run(
        [sys.executable, "-m", "echelon", "submit", *cluster.here, "train.py"],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 77, done.stderr
    assert ("rejects your token" if token else "requires a token") in done.stderr
    assert not (folder / "runs").exists()


def test_an_address_that_does_not_answer_is_named(cluster, folder):
    (folder / "train.py").write_text("print('done')\n")
    argv = [sys.executable, "-m", "echelon", "submit", "--on=ray"]
    done = subprocess.run(
        [*argv, "--address=http://127.0.0.1:9", "train.py"],
        cwd=folder,
        env=cluster.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 69
    assert "no Ray cluster responds at http://127.0.0.1:9: " in done.stderr
    assert "hint: " in done.stderr


@pytest.mark.full
def test_ranks_are_inside_an_image_that_each_node_has_copied(cluster, folder, torch_image):
    (folder / "train.py").write_text("import sys, torch\nprint('ran with', sys.executable)\n")
    image = (f"--image={torch_image.path}", "--image-runtime=podman")
    stage = ("--stage", f"--stage-dir={folder}/stages/%N")
    chain = submit(cluster, folder, "--nodes=2", "--procs=1", *image, *stage, "train.py")
    assert end_of(chain, 180) == 0, output(chain)
    assert [one["nodes"] for one in events(chain.run, "staged", 1)] == [2], output(chain)
    assert output(chain).count("ran with /usr/local/bin/python3") == 2, output(chain)
    assert torch_image.containers() == []
