"""What is said at the end of an attempt."""

import asyncio

import pytest

from echelon.core.shell import FakeShell
from echelon.launch.controller.finalize import Conclusion
from echelon.launch.controller.notify import Notifier
from echelon.launch.controller.succession import NoSuccession
from echelon.run.directory import RunDir
from echelon.run.history import History
from echelon.run.journal import Journal
from echelon.run.verdict import Failure, judge
from echelon.spec.job_spec import JobSpec


def conclude(folder, cause):
    """Return what is said of an attempt after which nobody goes on, and how it ended."""
    run, said = RunDir.create(folder, "r-1"), []
    journal = Journal(run, 1, said.append)
    conclusion = Conclusion(
        run=run,
        request=JobSpec(script="train.py", hand_over="never"),
        history=History(),
        succession=NoSuccession(),
        journal=journal,
        notifier=Notifier("", run=run, shell=FakeShell(), environ={}),
        environ={},
    )
    verdict = judge([Failure(cause=cause, message="so it was", exit_code=143)])
    reached = conclusion.reach(verdict, failures=(), nodes=1, saved=7, progress=True)
    outcome = asyncio.run(reached)
    journal.close()
    return "\n".join(said).splitlines(), outcome


@pytest.mark.parametrize(
    ("cause", "state"),
    [
        ("cancelled", "CANCELLED"),
        ("time limit", "TIMEOUT"),
        ("preemption", "PREEMPTED"),
        ("maintenance", "PREEMPTED"),
    ],
)
def test_a_run_that_was_stopped_is_not_said_to_have_failed(tmp_path, cause, state):
    said, outcome = conclude(tmp_path, cause)
    assert said[:2] == ["r-1 was stopped", "the run: so it was"]
    assert said[-1] == "  hint: go on with: echelon resume r-1"
    assert outcome.state == state


@pytest.mark.parametrize("cause", ["exception", "lost node", "hang"])
def test_a_run_that_has_failed_is_said_to(tmp_path, cause):
    said, outcome = conclude(tmp_path, cause)
    assert said[0] == "r-1 failed"
    assert outcome.state == "FAILED"
