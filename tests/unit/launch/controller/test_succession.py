"""Who goes on, when people or Slurm interfere with the job that waits."""

import asyncio

import pytest

from echelon.core.shell import FakeShell, Result
from echelon.core.slurm import Slurm
from echelon.launch.controller.standby import Standby
from echelon.launch.controller.succession import Mail, RequeueSuccession, StandbySuccession
from echelon.run.directory import RunDir


class _Journal:
    def __init__(self):
        self.noted = []

    def note(self, event):
        self.noted.append(event)

    def report(self, text):
        pass


@pytest.mark.parametrize(
    ("state", "followed"), [("PENDING", "standby"), ("RUNNING", "standby"), ("CANCELLED", "")]
)
def test_nobody_counts_on_a_standby_that_was_cancelled(tmp_path, state, followed):
    run = RunDir.create(tmp_path, "r-1")
    run.claim_attempt()
    shell = FakeShell(
        answers={"sbatch": "8\n", "scontrol": f"JobId=8 JobState={state} Comment=echelon:r-1/2 "}
    )

    async def scenario():
        standby = Standby(Slurm(shell, {}), run, job_id="7", environ={}, script=b"#!/bin/bash\n")
        succession = StandbySuccession(standby, Mail(Slurm(shell, {}), "7", wanted=False))
        succession.begin(_Journal(), "")
        return await succession.conclude(wanted=True)

    assert asyncio.run(scenario()) == followed


# --- mail ---------------------------------------------------------------------------------------


def mails(shell):
    return [call[3] for call in shell.calls if call[:2] == ("scontrol", "update")]


def carry(succession, *, wanted, journal=None):
    async def scenario():
        succession.begin(journal or _Journal(), "")
        await succession.conclude(wanted=wanted)
        await succession.leave()

    asyncio.run(scenario())


def make(tmp_path, kind, *, wanted=True, update=""):
    run = RunDir.create(tmp_path, "r-1")
    run.claim_attempt()
    show = "JobId=8 JobState=PENDING Comment=echelon:r-1/2 "
    answers = {"sbatch": "8\n", "scontrol": show, "scontrol update": update, "scancel": ""}
    shell = FakeShell(answers=answers)
    slurm = Slurm(shell, {})
    mail = Mail(slurm, "7", wanted=wanted)
    if kind == "requeue":
        return RequeueSuccession(slurm, "7", mail), shell
    return StandbySuccession(
        Standby(slurm, run, job_id="7", environ={}, script=b"#!/bin/bash\n"), mail
    ), shell


@pytest.mark.parametrize("kind", ["standby", "requeue"])
def test_there_is_mail_when_the_run_is_over_and_none_when_another_job_goes_on(tmp_path, kind):
    succession, shell = make(tmp_path / "a", kind)
    carry(succession, wanted=False)
    assert mails(shell) == ["MailType=END,FAIL"]
    succession, shell = make(tmp_path / "b", kind)
    carry(succession, wanted=True)
    assert mails(shell) == ["MailType=END,FAIL", "MailType=NONE"]


@pytest.mark.parametrize("kind", ["standby", "requeue"])
def test_who_wants_no_mail_costs_slurm_nothing(tmp_path, kind):
    succession, shell = make(tmp_path, kind, wanted=False)
    carry(succession, wanted=True)
    assert mails(shell) == []


def test_where_slurm_refuses_mail_the_run_goes_on(tmp_path):
    refused = Result(argv=("scontrol",), code=1, stderr="Access/permission denied\n")
    succession, _ = make(tmp_path, "standby", update=refused)
    journal = _Journal()
    carry(succession, wanted=True, journal=journal)
    assert [event.types for event in journal.noted if event.kind == "mail"] == ["END,FAIL", "NONE"]


def test_where_slurm_does_not_queue_the_job_again_its_end_is_told(tmp_path):
    succession, shell = make(tmp_path, "requeue")
    shell.answers["scontrol requeue"] = Result(
        argv=("scontrol",), code=1, stderr="Job is being requeued"
    )
    carry(succession, wanted=True)
    assert mails(shell)[-2:] == ["MailType=NONE", mails(shell)[0]]


def test_a_standby_that_is_not_wanted_stays_until_the_job_leaves(tmp_path):
    """If its controller is killed before that, it sends the notification of the run's end."""
    succession, shell = make(tmp_path, "standby")
    cancelled = lambda: [call for call in shell.calls if call[0] == "scancel"]  # noqa: E731

    async def scenario():
        succession.begin(_Journal(), "")
        await succession.conclude(wanted=False)
        assert cancelled() == []
        await succession.leave()
        assert len(cancelled()) == 1

    asyncio.run(scenario())


def test_a_run_that_somebody_cancels_withdraws_its_standby_at_once(tmp_path):
    succession, shell = make(tmp_path, "standby")

    async def scenario():
        succession.begin(_Journal(), "")
        await succession.withdraw()

    asyncio.run(scenario())
    assert ("scancel", "8") in shell.calls
