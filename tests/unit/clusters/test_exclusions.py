from dataclasses import replace

from echelon.clusters.exclusions import exclude_bad, exclusions
from echelon.launch.badnodes import Entry, append_entries, record_path
from echelon.spec import JobSpec

SPEC = JobSpec()


def test_bad_nodes_are_added_to_those_that_the_user_excludes():
    assert exclude_bad(SPEC, []) == ""
    assert exclude_bad(SPEC, ["node4", "node3"]) == "node[3-4]"
    assert exclude_bad(replace(SPEC, exclude="gpu7,node3"), ["node3", "node4"]) == "gpu7,node[3-4]"


def test_a_node_that_the_user_names_is_used_all_the_same():
    named = replace(SPEC, nodelist="node[1-3]")
    assert exclude_bad(named, ["node3", "node4"]) == "node4"
    # What the user himself excludes stays, even if that makes no sense: Slurm will say so.
    assert exclude_bad(replace(named, exclude="node3"), ["node3"]) == "node3"


def test_they_are_read_from_the_clusters_own_file(tmp_path):
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    assert exclusions("alpha", SPEC, environ) == ""
    append_entries(record_path("alpha", environ), [Entry(kind="excluded", node="node3")])
    assert exclusions("alpha", SPEC, environ) == "node3"
    assert exclusions("beta", SPEC, environ) == ""
    assert exclusions("alpha", SPEC, {}) == ""
