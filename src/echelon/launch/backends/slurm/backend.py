"""The backend of a job of Slurm."""

from collections.abc import Mapping

from echelon.core.jobs import own_job
from echelon.core.shell import Shell
from echelon.core.slurm import Slurm
from echelon.launch.backends.base import AttemptContext, Backend, NoStandby, Standby
from echelon.launch.backends.slurm.allocation import SlurmAllocation
from echelon.launch.backends.slurm.standby import Mail, RequeueStandby, WaitingStandby
from echelon.launch.backends.slurm.starter import SlurmStarter
from echelon.run.request import is_requeued


def slurm_backend(
    shell: Shell, environ: Mapping[str, str], attempt: AttemptContext | None = None
) -> Backend:
    """Return the backend of the job around us."""
    return Backend(
        starter=SlurmStarter(shell, environ),
        allocation=SlurmAllocation(shell, environ),
        standby=_choose_standby(Slurm(shell, environ), own_job(environ), attempt),
        is_shared=True,
    )


def _choose_standby(slurm: Slurm, job_id: str, attempt: AttemptContext | None) -> Standby:
    """Return what `hand_over` asks for; a job that is not the run's own has no successor."""
    if attempt is None or not attempt.owns_job or attempt.request.hand_over == "never":
        return NoStandby()
    mail = Mail(slurm, job_id, wanted=bool(attempt.request.mail))
    if is_requeued(attempt.run, attempt.request):
        return RequeueStandby(slurm, job_id, mail)
    return WaitingStandby(
        slurm,
        attempt.run,
        job_id=job_id,
        environ=attempt.environ,
        script=attempt.script,
        mail=mail,
    )
