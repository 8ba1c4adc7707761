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


def told(capsys, *arguments, code=0):
    assert run(["nodes", *arguments]) == code
    return capsys.readouterr()


def left_out(capsys, *arguments):
    rows = json.loads(told(capsys, "--json", *arguments).out)
    return [(row["cluster"], row["node"]) for row in rows]


def test_where_all_is_well(capsys, environ):
    assert told(capsys).err == "no nodes are avoided\n"
    assert told(capsys, "--forgive", "all").err == "no nodes are avoided\n"
    assert told(capsys, "--json").out == "[]\n"


def test_the_list_says_since_when_and_why(capsys, two_clusters):
    lines = told(capsys).out.splitlines()
    assert lines[0].split() == ["node", "cluster", "since", "until", "run", "reason"]
    assert [line.split()[:2] for line in lines[1:]] == [
        ["node3", "alpha"],
        ["node4", "alpha"],
        ["node3", "beta"],
    ]
    assert all(line.endswith("a-x  no GPU") for line in lines[1:])
    assert left_out(capsys, "--cluster", "beta") == [("beta", "node3")]


def test_the_list_says_until_when(capsys, environ):
    lasts = {"node3": 7 * 24 * 3600, "node4": 3600, "node5": 0}
    entries = [
        NodeEvent(kind="excluded", node=node, keep_s=keep_s) for node, keep_s in lasts.items()
    ]
    append_entries(record_path("alpha", environ), entries)
    rows = json.loads(told(capsys, "--json").out)
    assert [row["node"] for row in rows] == ["node3", "node4"]
    for row in rows:
        since, until = map(datetime.fromisoformat, (row["since"], row["until"]))
        assert (until - since).total_seconds() == lasts[row["node"]]


def test_one_node_is_forgiven_on_one_cluster(capsys, two_clusters):
    said = told(capsys, "--cluster", "alpha", "--forgive", "node3")
    assert said.out == "node3 of alpha is allowed again\n"
    assert left_out(capsys) == [("alpha", "node4"), ("beta", "node3")]


@pytest.mark.parametrize("hosts", ["node[3-4]", "all"])
def test_several_nodes_are_forgiven(capsys, two_clusters, hosts):
    assert len(told(capsys, "--forgive", hosts).out.splitlines()) == 3
    assert left_out(capsys) == []


def test_a_node_that_is_not_left_out_changes_nothing(capsys, two_clusters):
    said = told(capsys, "--forgive", "node[4-5]", code=66)
    assert said.err == ("error: not avoided: node5\nhint: avoided nodes: node3, node4\n")
    assert len(left_out(capsys)) == 3


def test_an_unknown_cluster_is_told_with_those_there_are(capsys, two_clusters):
    said = told(capsys, "--cluster", "gamma", code=66)
    assert said.err == (
        "error: no record of a cluster 'gamma'\nhint: known clusters: alpha, beta\n"
    )
