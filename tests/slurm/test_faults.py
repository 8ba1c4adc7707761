"""Nodes that die, cables that are cut, and what comes back."""

import json
import signal
from pathlib import Path

from echelon.sandbox.layout import Layout
from echelon.sandbox.processes import find_processes


def test_a_cut_node_goes_down_and_comes_back(full):
    full("cut", "node2")
    assert full.nodes()["node2"].cut
    full.await_node("node2", lambda state: state.startswith("down"))
    full("heal", "node2")
    full.await_node("node2", lambda state: state == "idle", timeout_s=30)
    assert full.exec("srun", "--nodelist=node2", "hostname") == "node2\n"


def test_what_runs_on_a_cut_node_goes_on(full, tmp_path):
    beat = tmp_path / "beat"
    script = f"#!/bin/bash\nwhile :; do date +%N > {beat}; sleep 0.05; done\n"
    full.sbatch(tmp_path, script, "--nodelist=node3", "--no-requeue", "--no-kill")
    _await_change(beat)
    full("cut", "node3")
    _await_change(beat)


def test_a_killed_node_takes_its_jobs_with_it(full, tmp_path):
    """Whatever they did to hide: another session, another group, an empty environment."""
    beat = tmp_path / "beat"
    script = (
        f"#!/bin/bash\nenv -i setsid bash -c 'while :; do date +%N > {beat}; sleep 0.05; done'\n"
    )
    job = full.sbatch(tmp_path, script, "--nodelist=node4", "--no-requeue")
    _await_change(beat)
    full("kill", "node4")
    last = beat.read_text()
    assert not full.nodes()["node4"].running
    assert not [p for p in find_processes(Layout(root=full.root)) if p.host == "node4"]
    full.await_node("node4", lambda state: state.startswith("down"))
    assert full.await_job(job, "NODE_FAIL", "FAILED")["JobState"] == "NODE_FAIL"
    assert beat.read_text() == last
    full("restore", "node4")
    assert full.exec("srun", "--nodelist=node4", "hostname") == "node4\n"


def test_a_node_that_came_back_at_once_has_lost_its_job(full, tmp_path):
    """As after a quick reboot: Slurm must not think that the job still runs."""
    (tmp_path / "job").mkdir()
    script = f"#!/bin/bash\ntouch {tmp_path}/running\nsleep 600\n"
    job = full.sbatch(tmp_path / "job", script, "--nodelist=node1", "--no-requeue")
    full.await_job(job, "RUNNING")
    full("kill", "node1")
    full("restore", "node1")
    full.await_job(job, "NODE_FAIL", timeout_s=30)


def test_a_node_that_came_back_is_where_the_others_have_known_it(full):
    """Who has just spoken to it does not ask again where it is."""
    places = [("login", "br0"), ("node2", "eth0")]
    before = [_card(full, *place) for place in places]
    full("kill", "node2")
    full("restore", "node2")
    assert [_card(full, *place) for place in places] == before


def _card(cluster, host, link):
    """Return the number of a host's network card."""
    shown = cluster.box.run(["ip", "-json", "link", "show", link], host=host).check().stdout
    return json.loads(shown)[0]["address"]


def test_restore_mends_a_cut_node_and_does_no_harm_to_a_sound_one(full):
    full("cut", "node1")
    full("restore", "node1")
    full("restore", "node2")
    nodes = full.nodes()
    assert not nodes["node1"].cut
    assert {node.state for node in nodes.values()} == {"idle"}


def test_restore_takes_a_drained_node_back(cluster):
    cluster.exec("scontrol", "update", "nodename=node2", "state=drain", "reason=test")
    cluster("restore", "node2")
    assert cluster.nodes()["node2"].state == "idle"


def test_a_node_that_is_off_has_no_cable(full):
    full("kill", "node3")
    for command in ("cut", "heal"):
        done = full(command, "node3", check=False)
        assert done.returncode == 66
        assert done.stderr == (
            "error: the sandbox's host 'node3' is not running\n"
            "hint: run: echelon sandbox restore --name t node3\n"
        )


def test_faults_need_a_node_that_is_there(cluster):
    for command in ("kill", "cut", "heal", "restore"):
        done = cluster(command, "node9", check=False)
        assert done.returncode == 66
        assert done.stderr == (
            "error: the sandbox 't' has no node 'node9'\n"
            "hint: available nodes: node1, node2, node3, node4\n"
        )


def _await_change(path):
    from echelon.core.waiting import wait_until

    assert wait_until(path.exists, timeout_s=20)
    first = path.read_text()
    assert wait_until(lambda: path.read_text() not in ("", first), timeout_s=20)


def test_slurmctld_ends_and_comes_back_with_its_queue(full, tmp_path):
    """Told to, it writes down what it knows; killed, it forgets its last seconds."""
    job = full.sbatch(tmp_path, "#!/bin/bash\nsleep 60\n", "--begin=now+1hour")
    full.box.signal_slurmctld(signal.SIGTERM)
    said = full.box.run(["scontrol", "ping"]).stdout
    full.box.start_slurmctld()
    assert "DOWN" in said
    assert full.await_job(job, "PENDING")["JobId"] == job


def test_slurmctld_pauses_and_goes_on(full):
    full.box.signal_slurmctld(signal.SIGSTOP)
    slurmctld = [p for p in find_processes(Layout(root=full.root)) if p.program == "slurmctld"]
    states = {_state(process.pid) for process in slurmctld}
    full.box.signal_slurmctld(signal.SIGCONT)
    assert states == {"T"}
    assert "UP" in full.exec("scontrol", "ping")


def _state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
