from dataclasses import replace
from pathlib import Path

import pytest

from echelon.errors import UsageError
from echelon.sandbox.config import (
    LOGIN,
    Network,
    SandboxConfig,
    SandboxState,
    render_boot,
    render_gres_conf,
    render_hosts,
    render_slurm_conf,
    render_slurmdbd_conf,
)
from echelon.sandbox.layout import Layout, check_path
from echelon.sandbox.ssh import (
    host_alias,
    render_known_hosts,
    render_shadow,
    render_ssh_config,
    render_sshd_config,
    render_start,
)

GOLDEN = Path(__file__).parents[2] / "golden"
LAYOUT = Layout(root=Path("/var/lib/echelon/sandbox/demo"))

NAMESPACES = SandboxState(
    config=SandboxConfig(name="demo", nodes=2, gpus=2, accounting=True, ssh=True),
    network=Network(
        kind="namespaces",
        addresses={"node1": "198.18.0.1", "node2": "198.18.0.2", LOGIN: "198.18.0.253"},
        ports={"node1": 6818, "node2": 6818, LOGIN: 6817, "slurmdbd": 6819, "sshd": 22},
        outside="198.18.0.254",
        machine="laptop",
    ),
    user="root",
    slurm=(22, 5, 8),
    database_port=3306,
)
LOOPBACK = SandboxState(
    config=SandboxConfig(name="demo", nodes=2, gpus=1, ssh=True),
    network=Network(
        kind="loopback",
        addresses={"node1": "127.0.0.1", "node2": "127.0.0.1", LOGIN: "127.0.0.1"},
        ports={"node1": 20001, "node2": 20002, LOGIN: 20003, "slurmdbd": 20004, "sshd": 20005},
        machine="laptop",
    ),
    user="ada",
    slurm=(24, 11, 5),
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("slurm.namespaces.conf", render_slurm_conf(NAMESPACES, LAYOUT)),
        ("slurm.loopback.conf", render_slurm_conf(LOOPBACK, LAYOUT)),
        ("gres.conf", render_gres_conf(NAMESPACES.config, LAYOUT)),
        ("slurmdbd.conf", render_slurmdbd_conf(NAMESPACES, LAYOUT, "PASSWORD")),
        ("hosts", render_hosts(NAMESPACES.network)),
        ("boot.sh", render_boot(LAYOUT)),
        ("sshd_config.namespaces", render_sshd_config(NAMESPACES, LAYOUT)),
        ("sshd_config.loopback", render_sshd_config(LOOPBACK, LAYOUT)),
        ("ssh_config", render_ssh_config(NAMESPACES, LAYOUT)),
        ("start_sshd.sh", render_start(LAYOUT)),
    ],
)
def test_files_are_as_written_down(name, text):
    assert text == (GOLDEN / "sandbox" / name).read_text()


@pytest.mark.parametrize("state", [NAMESPACES, LOOPBACK])
def test_state_round_trips(state):
    assert SandboxState.parse(state.render()) == state


@pytest.mark.parametrize(
    ("slurm", "timeout_s"),
    [((22, 5, 8), 1), ((23, 2, 1), 10), ((24, 11, 5), 10), ((26, 5, 5), 1), ((), 10)],
)
def test_a_version_that_may_miss_answers_waits_longer_for_nodes(slurm, timeout_s):
    text = render_slurm_conf(replace(NAMESPACES, slurm=slurm), LAYOUT)
    assert f"\nSlurmdTimeout={timeout_s}\n" in text


def test_daemons_that_cannot_find_their_own_address_listen_everywhere():
    text = render_slurm_conf(LOOPBACK, LAYOUT)
    nameless = replace(LOOPBACK, network=replace(LOOPBACK.network, confined=False))
    assert "NoInAddrAny" in text
    assert "NoInAddrAny" not in render_slurm_conf(nameless, LAYOUT)


def test_a_cluster_without_gpus_has_no_gres():
    state = SandboxState(
        config=SandboxConfig(gpus=0, nodes=1), network=LOOPBACK.network, user="ada"
    )
    assert "gpu" not in render_slurm_conf(state, LAYOUT)
    assert "gpu" not in render_gres_conf(state.config, LAYOUT)


def test_one_gpu_is_no_range():
    assert render_gres_conf(LOOPBACK.config, LAYOUT).endswith("/dev/gpu0\n")


def test_all_problems_are_told_at_once():
    config = SandboxConfig(name="a b", nodes=0, gpus=65, gpu_type="a/b", cpus=0, mem_mib=0)
    assert len(config.problems()) == 6
    assert SandboxConfig().problems() == []


@pytest.mark.parametrize("name", ["", "a.b", "a/b", "..", "$(id)", "a\n", "x" * 32, "ü", "-"])
def test_names_are_plain(name):
    assert SandboxConfig(name=name).problems()


@pytest.mark.parametrize("path", ["/tmp/a b/x", "/tmp/it's/x", "/" + "long/" * 20 + "x"])  # noqa: S108
def test_a_path_that_slurm_could_not_use_is_refused(path):
    with pytest.raises(UsageError):
        check_path(Layout(root=Path(path)))


def test_ssh_knows_the_sandbox_by_the_address_and_port_that_it_connects_to():
    key = "ssh-ed25519 AAAA a comment\n"
    assert render_known_hosts(NAMESPACES, key) == "198.18.0.253 ssh-ed25519 AAAA\n"
    assert render_known_hosts(LOOPBACK, key) == "[127.0.0.1]:20005 ssh-ed25519 AAAA\n"


def test_sshd_listens_on_loopback_even_if_slurm_uses_the_machines_address():
    addresses = dict.fromkeys(LOOPBACK.network.addresses, "192.0.2.7")
    state = replace(LOOPBACK, network=replace(LOOPBACK.network, addresses=addresses))
    assert render_sshd_config(state, LAYOUT).startswith("ListenAddress 127.0.0.1\n")


def test_the_default_sandbox_has_the_shortest_name_for_ssh():
    assert [host_alias("sandbox"), host_alias("demo")] == ["sandbox", "sandbox-demo"]


def test_no_account_is_locked_for_sshd():
    accounts = "root:x:0:0::/root:/bin/sh\n\nada:x:1000:1000::/home/ada:/bin/sh\n"
    assert render_shadow(accounts) == "root:*:::::::\nada:*:::::::\n"


def test_two_sandboxes_of_one_name_have_different_clusters():
    other = Layout(root=Path("/var/tmp/echelon-1000/sandbox/demo"))  # noqa: S108
    assert other.cluster_name != LAYOUT.cluster_name
