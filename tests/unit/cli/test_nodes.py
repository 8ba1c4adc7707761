import json
from datetime import datetime

import pytest

from echelon.cli.main import run
from echelon.run.node_record import NodeEvent, append_entries, record_path


@pytest.fixture
def environ(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return {"XDG_STATE_HOME": str(tmp_path)}


@pytest.fixture
def two_clusters(environ):
    for cluster, nodes in (("alpha", ["node3", "node4"]), ("beta", ["node3"])):
        entries = [NodeEvent(kind="excluded", node=n, run="a-x", reason="no GPU") for n in nodes]
        append_entries(record_path(cluster, environ), entries)


def run_command(capsys, *arguments, code=0):
    assert run(["nodes", *arguments]) == code
    return capsys.readouterr()


def left_out(capsys, *arguments):
    rows = json.loads(run_command(capsys, "--json", *arguments).out)
    return [(row["cluster"], row["node"]) for row in rows]


def test_nodes_without_bad_nodes_prints_a_note(capsys, environ):
    assert run_command(capsys).err == "no nodes are avoided\n"
    assert run_command(capsys, "--forgive", "all").err == "no nodes are avoided\n"
    assert run_command(capsys, "--json").out == "[]\n"


def test_nodes_lists_since_when_and_why_a_node_is_avoided(capsys, two_clusters):
    lines = run_command(capsys).out.splitlines()
    assert lines[0].split() == ["node", "cluster", "since", "until", "run", "reason"]
    assert [line.split()[:2] for line in lines[1:]] == [
        ["node3", "alpha"],
        ["node4", "alpha"],
        ["node3", "beta"],
    ]
    assert all(line.endswith("a-x  no GPU") for line in lines[1:])
    assert left_out(capsys, "--cluster", "beta") == [("beta", "node3")]


def test_nodes_lists_until_when_a_node_is_avoided(capsys, environ):
    lasts = {"node3": 7 * 24 * 3600, "node4": 3600, "node5": 0}
    entries = [
        NodeEvent(kind="excluded", node=node, keep_s=keep_s) for node, keep_s in lasts.items()
    ]
    append_entries(record_path("alpha", environ), entries)
    rows = json.loads(run_command(capsys, "--json").out)
    assert [row["node"] for row in rows] == ["node3", "node4"]
    for row in rows:
        since, until = map(datetime.fromisoformat, (row["since"], row["until"]))
        assert (until - since).total_seconds() == lasts[row["node"]]


def test_nodes_forgives_a_node_of_one_cluster(capsys, two_clusters):
    printed = run_command(capsys, "--cluster", "alpha", "--forgive", "node3")
    assert printed.out == "node3 of alpha is allowed again\n"
    assert left_out(capsys) == [("alpha", "node4"), ("beta", "node3")]


@pytest.mark.parametrize("hosts", ["node[3-4]", "all"])
def test_nodes_forgives_several_nodes(capsys, two_clusters, hosts):
    assert len(run_command(capsys, "--forgive", hosts).out.splitlines()) == 3
    assert left_out(capsys) == []


def test_nodes_refuses_to_forgive_a_node_that_is_not_avoided(capsys, two_clusters):
    printed = run_command(capsys, "--forgive", "node[4-5]", code=66)
    assert printed.err == ("error: not avoided: node5\nhint: avoided nodes: node3, node4\n")
    assert len(left_out(capsys)) == 3


def test_nodes_of_an_unknown_cluster_lists_the_known_ones(capsys, two_clusters):
    printed = run_command(capsys, "--cluster", "gamma", code=66)
    assert printed.err == (
        "error: no record of a cluster 'gamma'\nhint: known clusters: alpha, beta\n"
    )
