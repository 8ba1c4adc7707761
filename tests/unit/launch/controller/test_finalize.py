"""What is said at the end of an attempt."""

import asyncio
from dataclasses import replace

import pytest

from echelon.core.shell import FakeShell
from echelon.launch.backends.stop import Stop
from echelon.launch.controller.finalize import Finalizer
from echelon.launch.controller.notify import Notifier
from echelon.run.attempts import orphan
from echelon.run.directory import RunDir
from echelon.run.history import History
from echelon.run.journal import Journal
from echelon.run.verdict import Failure, judge
from echelon.spec.job_spec import JobSpec
from unit.launch.fakes import make_backend

FAILURE = Failure(cause="cancelled", message="so it was", exit_code=143)


def make(journal, backend, hand_over="never"):
    return Finalizer(
        request=JobSpec(script="train.py", hand_over=hand_over),
        history=History(),
        backend=backend,
        journal=journal,
        notifier=Notifier("", run=journal.run, shell=FakeShell(), environ={}),
        environ={},
    )


def conclude(folder, cause):
    """Return what is said of an attempt that no job continues, and how it ended."""
    run, said = RunDir.create(folder, "r-1"), []
    journal = Journal(run, 1, said.append)
    verdict = judge([replace(FAILURE, cause=cause)])
    reached = make(journal, make_backend()).conclude(
        verdict, failures=(), restarts=3, nodes=1, saved=7, progress=True
    )
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
    assert said[-1] == "  hint: continue with: echelon resume r-1"
    assert outcome.state == state


@pytest.mark.parametrize("cause", ["exception", "lost node", "hang"])
def test_a_run_that_has_failed_is_said_to(tmp_path, cause):
    said, outcome = conclude(tmp_path, cause)
    assert said[0] == "r-1 failed"
    assert outcome.state == "FAILED"


def test_whoever_cancels_a_run_also_cancels_the_job_that_waits(tmp_path):
    """Unless agents ended the job, because they had lost their controller: then it takes over."""
    run, backend = RunDir.create(tmp_path, "r-1"), make_backend()
    run.claim_attempt()
    journal = Journal(run, 1, lambda _: None)
    finalizer = make(journal, backend)
    cancelled = Stop("cancelled", "the job was cancelled", 143)

    async def scenario():
        explained = await finalizer.explain(cancelled)
        await finalizer.conclude(
            judge([FAILURE]), failures=(), restarts=3, nodes=1, saved=7, progress=True
        )
        return explained.cause

    orphan(run, 1)
    assert asyncio.run(scenario()) == "superseded"
    assert backend.standby.withdrawn == 0
    (run.attempt(1) / "orphaned").unlink()
    assert asyncio.run(scenario()) == "cancelled"
    assert backend.standby.withdrawn == 1
    journal.close()


@pytest.mark.parametrize("cause", ["start", "lost node"])
def test_nodes_that_are_missing_because_the_job_is_cancelled_are_no_reason_to_continue(
    tmp_path, cause
):
    backend = make_backend()
    stopped = Stop("cancelled", "the job was cancelled", 143, signalled=True)

    async def explain(_stop):
        return stopped

    backend.allocation.explain = explain
    journal = Journal(RunDir.create(tmp_path, "r-1"), 1, lambda _: None)
    finalizer = make(journal, backend, hand_over="always")
    verdict = judge([Failure(cause=cause, message="0 of 1 nodes joined", exit_code=69)])
    outcome = asyncio.run(
        finalizer.conclude(verdict, failures=(), restarts=3, nodes=0, saved=-1, progress="")
    )
    journal.close()
    assert (outcome.state, outcome.next, outcome.exit_code) == ("CANCELLED", "", 143)
    assert backend.standby.withdrawn == 1
