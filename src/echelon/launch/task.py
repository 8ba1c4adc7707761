"""A task of a sweep: creates the run directory of its parameters, and becomes its controller."""

from pathlib import Path

from echelon.launch.controller import entrypoint
from echelon.run.attempts import attempts, outcome
from echelon.run.journal import write_error
from echelon.run.sweep import SweepDir, make_run


def main(arguments: list[str]) -> int:
    """Carry out the next attempt of a task: `task SWEEP INDEX REQUEST`.

    REQUEST is the digest of the sweep's request, which has that of the parameters.
    """
    path, index, digest = arguments
    run, own = make_run(SweepDir.open(Path(path).absolute()), int(index), digest)
    ended = [outcome(run, attempt.number) for attempt in attempts(run)]
    if any(one and one.state == "COMPLETED" for one in ended):  # submitted twice
        write_error(f"{run.run_id}: nothing to do: the run is complete")
        return 0
    return entrypoint.main([str(run.path), "", own])
