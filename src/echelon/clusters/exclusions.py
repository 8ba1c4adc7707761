"""Which nodes a job is not to get: those that the user excludes, and those known to be bad."""

from collections.abc import Iterable, Mapping

from echelon.core.nodes import compress, expand
from echelon.launch.badnodes import bad_nodes, read_entries, record_path
from echelon.spec import JobSpec


def exclusions(cluster: str, spec: JobSpec, environ: Mapping[str, str]) -> str:
    """Return the host list to exclude on a cluster, by what is known of its nodes now."""
    return exclude_bad(spec, bad_nodes(read_entries(record_path(cluster, environ))))


def exclude_bad(spec: JobSpec, bad: Iterable[str]) -> str:
    """Return what a request excludes, and these nodes besides. Pure.

    A bad node that the request names in its `nodelist` is wanted all the same.
    """
    wanted = set(expand(spec.nodelist))
    added = sorted(node for node in bad if node not in wanted)
    return compress(dict.fromkeys([*expand(spec.exclude), *added]))
