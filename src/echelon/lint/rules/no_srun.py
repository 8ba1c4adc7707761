"""E201: ranks of other nodes that nothing starts."""

from collections.abc import Iterator

from echelon.lint.patterns import pattern
from echelon.lint.rule import ERROR, WARNING, Hit, rule
from echelon.lint.script import Script, Started

_SPREADERS = frozenset(
    {
        *("srun", "mpirun", "mpiexec", "orterun", "ssh", "pdsh", "clush", "ray", "echelon"),
        *("parallel", "pssh", "horovodrun", "jsrun", "prun", "aprun", "xargs", "ibrun"),
    }
)
_CONTACTS_OTHERS = pattern(r"\b(?:submitit|subprocess|ray|dask|mpi4py|paramiko)\b")
"""Words in scripts that may start processes on the other nodes themselves."""
_MEET = """
    torchrun --nnodes=$SLURM_JOB_NUM_NODES --rdzv_backend=c10d --rdzv_endpoint=$HOSTNAME:29500 …"""
_LIGHTNING = pattern(r"(?m)^\s*(?:import|from) (?:pytorch_lightning|lightning)\b")
_INSTALLERS = frozenset({"pip", "venv", "ensurepip", "virtualenv"})


@rule("E201", ERROR)
def no_srun(script: Script) -> Iterator[Hit]:
    """Several nodes without srun.

    A job script runs once, on the first node of the job. Only srun, or a similar launcher such as
    mpirun, starts processes on the other nodes. deepspeed needs a hostfile. Lightning waits for
    all tasks of the job, also on one node.

    Example:
         #!/bin/bash
         #SBATCH --nodes=2
         #SBATCH --ntasks-per-node=1
         #SBATCH --exclusive
        -torchrun --nnodes=2 --rdzv_endpoint=$HOSTNAME:29500 train.py    # <- here
        +srun torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=$HOSTNAME:29500 train.py
    """
    if script.is_job and script.job.nodes == 1:
        yield from _waiting_tasks(script)
    if not script.is_job or not script.job.several_nodes or "hostfile" in script.text.lower():
        return
    for command in script.commands:
        texts = {word.text.rpartition("/")[2] for word in command.words}
        if not command.substituted and (texts & _SPREADERS or "${SLURM_NODEID}" in command.text):
            return
    for one in [one for one in script.started if not _installs(one)][-1:]:
        launcher = one.launch.launcher
        if one.python is not None and _CONTACTS_OTHERS.search(one.python.whole):
            return
        count = script.job.fewest_nodes or 2
        option = launcher.option("nnodes", "num-machines") if launcher else None
        waits = option is not None and option.text not in ("1", "1:1")
        deepspeed = launcher is not None and launcher.kind == "deepspeed"
        yield Hit(
            at=one.launch,
            what=f"Without a hostfile, deepspeed uses only the first of {count} nodes."
            if deepspeed
            else f"This runs only on the first of {count} nodes, because srun does not start it."
            + (" It waits for the other nodes until it times out." if waits else ""),
            fix=f"srun --ntasks-per-node=1 {one.launch.command.name} …{'' if waits else _MEET}"
            if launcher and not deepspeed
            else "deepspeed --hostfile=…  # or #SBATCH --nodes=1"
            if deepspeed
            else f"srun {one.launch.command.name} …  # or #SBATCH --nodes=1",
            # A program that lint cannot read may contact the other nodes itself.
            severity=None
            if (launcher or one.python is not None) and one.launch.command.always_runs
            else WARNING,
        )


def _installs(one: Started) -> bool:
    launch = one.launch
    return launch.module and launch.program is not None and launch.program.text in _INSTALLERS


def _waiting_tasks(script: Script) -> Iterator[Hit]:
    """Find Lightning on one node, which waits for the other tasks of the job."""
    if script.sruns or not any(map(script.directives.last, ("ntasks", "ntasks-per-node"))):
        return
    for one in script.started:
        tasks, plain = script.job.tasks or 0, one.launch.launcher is None and not one.launch.mpi
        lightning = (
            one.python and _LIGHTNING.search(one.python.text) and one.python.calls("Trainer")
        )
        if plain and tasks > 1 and lightning:
            yield Hit(
                at=one.launch,
                what=f"Lightning sees the {tasks} tasks of the job and expects srun to start them. "
                "Without it, the script fails or waits for the others.",
                fix="srun python …  # or #SBATCH --ntasks-per-node=1",
                severity=WARNING,
            )
