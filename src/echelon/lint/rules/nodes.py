"""E205: launchers whose number of nodes is not the job's."""

from collections.abc import Iterator

from echelon.core.units import counted
from echelon.lint.facts import (
    is_alone,
)
from echelon.lint.launches import Launch, Launcher
from echelon.lint.rule import WARNING, Hit, Rule
from echelon.lint.subject import Subject

_OF_DEEPSPEED = {"nnodes": "--num_nodes", "nodes": "--num_nodes", "nproc-per-node": "--num_gpus"}
"""Options of torchrun and Slurm, and what deepspeed calls them."""


def render_hostfile(launch: Launch) -> str:
    """Return the lines that start deepspeed on all nodes, which it reaches with ssh."""
    slots = launch.amounts.gpus_per_node or 1
    return (
        f"scontrol show hostnames | sed 's/$/ slots={slots}/' > hostfile.$SLURM_JOB_ID\n"
        "deepspeed --hostfile=hostfile.$SLURM_JOB_ID …  # without srun"
    )


def find_wrong_nnodes(subject: Subject) -> Iterator[Hit]:
    yield from _separate_machines(subject)
    nodes = subject.job.nodes
    if nodes is None:
        return
    for one in subject.started:
        launcher = one.launch.launcher
        option = launcher.option("nnodes", "num-machines") if launcher else None
        if launcher is None or launcher.kind == "deepspeed" or not launcher.complete:
            continue
        given = 1 if option is None else option.number
        standalone = "standalone" in launcher.options
        if option is None and (
            one.launch.srun is None or launcher.kind == "accelerate" or nodes == 1
        ):
            continue
        step = one.launch.amounts.nodes if one.launch.srun is not None else nodes
        if option is None and (step == 1 or not is_alone(subject, one.launch)):
            continue
        if given is None or step is None or given in (nodes, step) or (standalone and nodes == 1):
            continue
        if given == one.launch.amounts.tasks and one.launch.srun is not None:
            continue  # srun starts as many launchers as nodes are expected
        waits = given > nodes
        yield Hit(
            at=one.launch.place_of(option, subject.path),
            what=f"{launcher.name} expects {counted(given, 'node')}, but the job has {nodes}. "
            + (
                "It waits for the missing nodes until it times out."
                if waits
                else "The nodes train separate models, or some of them are rejected."
            ),
            fix=_nodes_of_job(one.launch),
        )


def _separate_machines(subject: Subject) -> Iterator[Hit]:
    """Find launchers on several nodes that do not know of each other."""
    for one in subject.started:
        launch, launcher = one.launch, one.launch.launcher
        if launcher is not None and launcher.kind == "deepspeed":
            yield from _separate_deepspeed(subject, launch, launcher)
        if launcher is None or launcher.kind != "accelerate" or not launcher.complete:
            continue
        if launch.srun is None or not launch.amounts.several_nodes or launch.amounts.nodes is None:
            continue
        if "config-file" in launcher.options:
            continue
        machines, backend = launcher.option("num-machines"), launcher.option("rdzv-backend")
        if machines is None:
            yield Hit(
                at=launch,
                what="accelerate expects 1 machine unless told otherwise, but the job has "
                f"{launch.amounts.nodes} nodes. Each node trains its own model.",
                fix=f"{_nodes_of_job(launch)} --machine_rank=$SLURM_NODEID"
                "  # inside srun bash -c '…'",
                severity=WARNING,  # the user's default configuration may have the number
            )
        elif (
            (machines.number or 0) > 1
            and "machine-rank" not in launcher.options
            and (backend is None or backend.text == "static")
        ):
            yield Hit(
                at=launch,
                what="Without `--machine_rank`, every node claims to be machine 0. The ranks wait "
                "for each other until they time out.",
                fix="--machine_rank=$SLURM_NODEID  # inside srun bash -c '…'",
            )


def _separate_deepspeed(subject: Subject, launch: Launch, launcher: Launcher) -> Iterator[Hit]:
    for name, right in _OF_DEEPSPEED.items():
        if name in launcher.options:
            yield Hit(
                at=launch.place_of(launcher.options[name], subject.path),
                what=f"deepspeed has no option `--{name.replace('-', '_')}`. It exits with "
                "'unrecognized arguments'.",
                fix=f"{right}={launcher.options[name].text}",
            )
            return
    alone = launcher.complete and not {"hostfile", "H", "no-ssh"} & set(launcher.options)
    if alone and launch.srun is not None and launch.amounts.several_nodes:
        yield Hit(
            at=launch,
            what="Without a hostfile, deepspeed uses its own node alone. Each of the "
            f"{launch.amounts.fewest_nodes} nodes trains its own model.",
            fix=render_hostfile(launch),
        )


def _nodes_of_job(launch: Launch) -> str:
    """Return the options that make a launcher use all nodes of the job."""
    if launch.launcher is None or launch.launcher.kind != "accelerate":
        return "--nnodes=$SLURM_JOB_NUM_NODES"
    # accelerate counts the processes of all machines together.
    processes = f"$((SLURM_JOB_NUM_NODES * {launch.amounts.gpus_per_node or 1}))"
    return f"--num_machines=$SLURM_JOB_NUM_NODES --num_processes={processes}"


RULES = (
    Rule(
        code="E205",
        title="wrong number of nodes",
        severity=WARNING,
        check=find_wrong_nnodes,
        why="The launcher waits until the given number of nodes has joined. `SLURM_JOB_NUM_NODES` "
        "is always the number of nodes of the job. deepspeed reads the nodes from a hostfile.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=2
 #SBATCH --ntasks-per-node=1
 #SBATCH --exclusive
-srun torchrun --nnodes=4 --rdzv_backend=c10d --rdzv_endpoint=$HOSTNAME:29500 train.py    # <- here
+srun torchrun --nnodes=$SLURM_NNODES --rdzv_backend=c10d \\
+    --rdzv_endpoint=$HOSTNAME:29500 train.py
""",
    ),
)
