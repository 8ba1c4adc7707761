"""The job that waits for ours to end, or the same one again; and Slurm's mail about them."""

import asyncio
import json
from pathlib import Path

import pytest

from echelon.core.shell import FakeShell, Result
from echelon.core.slurm import Slurm
from echelon.launch.backends.slurm.standby import Mail, RequeueStandby, WaitingStandby
from echelon.run.directory import RunDir
from unit.launch.fakes import FakeJournal

WAITS = "JobId=8 JobState=PENDING Comment=echelon:r-1/2 StdOut=/x/out "


@pytest.fixture
def run(tmp_path):
    made = RunDir.create(tmp_path, "r-1")
    made.claim_attempt()
    return made


def make(run, kind="standby", *, mail=False, script=b"#!/bin/bash\n", **answers):
    shell = FakeShell(
        answers={"sbatch": "8\n", "scontrol": WAITS, "scontrol update": "", "scancel": ""}
    )
    shell.answers.update({name.replace("_", " "): said for name, said in answers.items()})
    slurm = Slurm(shell, {})
    own = Mail(slurm, "7", wanted=mail)
    if kind == "requeue":
        return RequeueStandby(slurm, "7", own), shell
    environ = {"A": "1", "SLURM_JOB_ID": "7"}
    standby = WaitingStandby(slurm, run, job_id="7", environ=environ, script=script, mail=own)
    return standby, shell


def carry(standby, *, wanted, journal=None, exclude=""):
    """Carry a standby from the beginning of an attempt to its end; return what continues it."""

    async def scenario():
        standby.begin(journal or FakeJournal(), exclude)
        following = await standby.conclude(wanted=wanted)
        await standby.leave()
        return following

    return asyncio.run(scenario())


def test_a_standby_waits_for_our_end_and_is_written_down(run):
    standby, shell = make(run)
    journal = FakeJournal()
    assert not standby.assured()
    assert carry(standby, wanted=True, journal=journal, exclude="node3") == "standby"
    assert standby.assured()
    (submitted,) = [call for call in shell.calls if call[0] == "sbatch"]
    assert submitted[:2] == ("sbatch", "--parsable")
    assert "--dependency=afternotok:7" in submitted
    assert "--kill-on-invalid-dep=yes" in submitted
    assert "--exclude=node3" in submitted
    assert (Path(submitted[-2]).name, submitted[-1]) == (run.script.name, "2")
    record = json.loads((run.attempt(2) / "job.json").read_text())
    assert (record["job_id"], record["after"], record["output"]) == ("8", "7", "/x/out")
    assert journal.notes == [("standby", {"job": "8", "attempt": 2})]


@pytest.mark.parametrize("reason", ["Dependency", "JobHeldUser"])
def test_a_standby_is_not_held_as_the_first_job_was(run, reason):
    standby, shell = make(run, scontrol=f"{WAITS}Reason={reason} ")
    carry(standby, wanted=True)
    assert (("scontrol", "release", "8") in shell.calls) == (reason == "JobHeldUser")


@pytest.mark.parametrize(
    ("script", "sbatch", "why"),
    [
        (b"#!/bin/bash\n", Result(argv=(), code=1, stderr="sbatch: error: no\n"), "no"),
        (b"", "8\n", "the script of this job cannot be read"),
    ],
)
def test_what_cannot_be_queued_leaves_no_attempt_behind_and_is_told(run, script, sbatch, why):
    standby, shell = make(run, script=script, sbatch=sbatch)
    journal = FakeJournal()
    assert carry(standby, wanted=True, journal=journal) == "wanted"
    assert not run.attempt(2).exists()
    (said,) = journal.reports
    assert said.startswith("no standby job: ")
    assert why in said
    assert not [call for call in shell.calls if call[0] == "scancel"]


@pytest.mark.parametrize(
    ("state", "followed"), [("PENDING", "standby"), ("RUNNING", "standby"), ("CANCELLED", "")]
)
def test_nobody_counts_on_a_standby_that_was_cancelled(run, state, followed):
    standby, _ = make(run, scontrol=f"JobId=8 JobState={state} Comment=echelon:r-1/2 ")
    assert carry(standby, wanted=True) == followed


def test_a_standby_that_is_not_wanted_stays_until_the_job_leaves(run):
    """If its controller is killed before that, it sends the notification of the run's end."""
    standby, shell = make(run)
    cancelled = lambda: [call for call in shell.calls if call[0] == "scancel"]  # noqa: E731

    async def scenario():
        standby.begin(FakeJournal(), "")
        await standby.conclude(wanted=False)
        assert cancelled() == []
        await standby.leave()
        assert len(cancelled()) == 1

    asyncio.run(scenario())


def test_a_run_that_somebody_cancels_withdraws_its_standby_at_once(run):
    standby, shell = make(run)

    async def scenario():
        standby.begin(FakeJournal(), "")
        await standby.withdraw()

    asyncio.run(scenario())
    assert ("scancel", "8") in shell.calls


def test_nodes_that_turn_out_bad_are_excluded_from_a_waiting_job(run):
    standby, shell = make(run)

    async def scenario():
        standby.begin(FakeJournal(), "")
        await standby.conclude(wanted=True)
        await standby.exclude("node2")

    asyncio.run(scenario())
    assert ("scontrol", "update", "JobId=8", "ExcNodeList=node2") in shell.calls


# --- mail ---------------------------------------------------------------------------------------


def mails(shell, job="7"):
    """Return what was asked of Slurm about mail for a job, in its order."""
    asked = [call for call in shell.calls if call[:3] == ("scontrol", "update", f"JobId={job}")]
    return [call[3] for call in asked]


ON, OFF = "MailType=END,FAIL", "MailType=NONE"


@pytest.mark.parametrize("kind", ["standby", "requeue"])
@pytest.mark.parametrize(("wanted", "own"), [(False, [ON]), (True, [ON, OFF])])
def test_there_is_mail_when_the_run_is_over_and_none_when_another_job_continues(
    run, kind, wanted, own
):
    standby, shell = make(run, kind, mail=True)
    carry(standby, wanted=wanted)
    assert mails(shell) == own


@pytest.mark.parametrize(("wanted", "told"), [(False, [OFF]), (True, [OFF, ON])])
def test_a_standby_is_silent_unless_it_takes_over(run, wanted, told):
    standby, shell = make(run, mail=True)
    carry(standby, wanted=wanted)
    assert mails(shell, "8") == told


@pytest.mark.parametrize("kind", ["standby", "requeue"])
def test_who_wants_no_mail_costs_slurm_nothing(run, kind):
    standby, shell = make(run, kind)
    carry(standby, wanted=True)
    assert mails(shell) == mails(shell, "8") == []


def test_where_slurm_refuses_mail_the_run_continues(run):
    refused = Result(argv=("scontrol",), code=1, stderr="Access/permission denied\n")
    standby, _ = make(run, mail=True, scontrol_update=refused)
    journal = FakeJournal()
    assert carry(standby, wanted=True, journal=journal) == "standby"
    told = [data["types"] for kind, data in journal.notes if kind == "mail"]
    assert told == ["END,FAIL", "NONE"]


def test_where_slurm_does_not_queue_the_job_again_its_end_is_told(run):
    refused = Result(argv=("scontrol",), code=1, stderr="Job is being requeued")
    standby, shell = make(run, "requeue", mail=True, scontrol_requeue=refused)
    carry(standby, wanted=True)
    assert mails(shell) == [ON, OFF, ON]
