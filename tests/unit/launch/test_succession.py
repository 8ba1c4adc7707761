"""Who goes on, when people or Slurm interfere with the job that waits."""

import asyncio

import pytest

from echelon.core.rundir import RunDir
from echelon.core.shell import FakeShell
from echelon.core.slurm import Slurm
from echelon.launch.handover import Standby
from echelon.launch.succession import StandbySuccession


class _Journal:
    def note(self, kind, **data):
        pass

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
        standby = Standby(Slurm(shell, {}), run, job_id="7", environ={})
        succession = StandbySuccession(standby)
        succession.begin(_Journal(), "")
        return await succession.conclude(wanted=True)

    assert asyncio.run(scenario()) == followed
