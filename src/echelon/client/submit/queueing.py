"""Queues the next attempt of a run: the last step of a submission."""

from collections.abc import Callable, Mapping

from echelon.clusters.base import Cluster
from echelon.run.attempts import Attempt, submit_attempt
from echelon.run.directory import RunDir
from echelon.run.request import read_spec


def queue_attempt(
    run: RunDir,
    cluster: Cluster,
    environ: Mapping[str, str],
    script: bytes,
    *,
    claimed: Callable[[int], None] = lambda _number: None,
) -> Attempt:
    """Submit the next attempt of a run, and record its job.

    Args:
        run: the run.
        cluster: where to submit it.
        environ: environment variables of the job.
        script: the run's script, as created or checked (`trust.read_script`).
        claimed: called with the number of the attempt before it is submitted.
    """
    exclude = cluster.exclusions(read_spec(run))

    def queue(number: int) -> str:
        claimed(number)
        return cluster.submit(
            run.script,
            content=script,
            run_id=run.run_id,
            attempt=number,
            environ=environ,
            exclude=exclude,
        )

    return submit_attempt(run, queue, lambda job_id: cluster.job(job_id, run_id=run.run_id))
