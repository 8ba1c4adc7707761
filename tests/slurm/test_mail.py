"""What Slurm writes mail about: the end of a run, and not each of its jobs."""

import pytest

from echelon.core.waiting import wait_until
from slurm.survival import start_chain

COMMAND = 'echo "$ECHELON_STATE" >> told'


@pytest.fixture
def mails(full, tmp_path):
    """The cluster's mail goes to a file; returns its subjects."""
    program, box = tmp_path / "mail", tmp_path / "box"
    program.write_text(f'#!/bin/sh\necho "$@" >> {box}\n')
    program.chmod(0o755)
    conf = full.box.layout.slurmctld_conf
    before = conf.read_text()
    conf.write_text(f"{before}MailProg={program}\n")
    full.exec("scontrol", "reconfigure")
    yield lambda: box.read_text().splitlines() if box.exists() else []
    conf.write_text(before)
    full.exec("scontrol", "reconfigure")


@pytest.fixture
def start(full, tmp_path):
    """Starts a training; all of it is ended whatever happens."""
    started = []

    def start(*options, steps):
        environ = {**full.environ, "SLURM_CONF": str(full.box.layout.slurm_conf)}
        options = ("--mail=me@example.org", "--notify", COMMAND, "--procs=1", *options)
        started.append(start_chain(tmp_path, environ, *options, steps=steps, pace_s=0.1))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()
        one.process.stdout.close()
    full.calm()


@pytest.mark.full
def test_mail_and_command_come_once_however_many_jobs_it_takes(full, tmp_path, mails, start):
    run = start("--nodes=1", "--nodelist=node1", steps=80)
    run.await_step(10)
    script = f"#!/bin/bash\nuntil [ -e {tmp_path}/enough ]; do sleep 0.2; done\n"
    high = full.sbatch(tmp_path, script, "--partition=high", "--nodelist=node1", "--exclusive")
    full.await_job(high, "RUNNING")
    (tmp_path / "enough").touch()
    code, said = run.wait()
    assert code == 0, said
    assert [one["state"] for one in run.outcomes()] == ["PREEMPTED", "COMPLETED"], said
    assert wait_until(lambda: full.exec("squeue", "--noheader") == "", timeout_s=20)
    assert wait_until(mails, timeout_s=10)
    (mail,) = mails()
    assert f"Job_id={run.job(2)} " in mail
    assert "COMPLETED" in mail
    assert mail.endswith("me@example.org")
    assert (tmp_path / "told").read_text() == "COMPLETED\n"


def test_a_run_that_was_cancelled_is_told_of_once(full, tmp_path, mails, start):
    run = start("--nodes=1", steps=600)
    run.await_step(5)
    assert run.command("cancel", "last").returncode == 0
    run.wait()
    assert wait_until(mails, timeout_s=10)
    assert wait_until(lambda: full.exec("squeue", "--noheader") == "", timeout_s=20)
    (mail,) = mails()
    assert f"Job_id={run.job(1)} " in mail
    assert (tmp_path / "told").read_text() == "CANCELLED\n"
