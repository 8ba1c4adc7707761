"""Which nodes a next job is not to get."""

import time

from echelon.run.node_record import (
    KEEP_S,
    NodeEvent,
    add_bad,
    append_entries,
    exclusions,
    record_path,
)


def test_bad_nodes_are_added_to_those_that_the_user_excludes():
    assert add_bad("", "", []) == ""
    assert add_bad("", "", ["node4", "node3"]) == "node[3-4]"
    assert add_bad("", "gpu7,node3", ["node3", "node4"]) == "gpu7,node[3-4]"


def test_a_node_that_the_user_names_is_used_all_the_same():
    assert add_bad("node[1-3]", "", ["node3", "node4"]) == "node4"
    # What the user himself excludes stays, even if that makes no sense: Slurm will say so.
    assert add_bad("node[1-3]", "node3", ["node3"]) == "node3"


def test_they_are_read_from_the_clusters_own_file(tmp_path):
    environ = {"XDG_STATE_HOME": str(tmp_path)}

    def known(cluster, variables, later_s=0):
        return exclusions(cluster, variables, nodelist="", exclude="", now_s=time.time() + later_s)

    assert known("alpha", environ) == ""
    append_entries(record_path("alpha", environ), [NodeEvent(kind="excluded", node="node3")])
    assert known("alpha", environ) == "node3"
    assert known("beta", environ) == ""
    assert known("alpha", {}) == ""
    assert known("alpha", environ, later_s=KEEP_S + 1) == ""
