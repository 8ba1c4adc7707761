"""E301: the port of the rendezvous."""

import re
from collections.abc import Iterator

from echelon.lint.bash import Assignment, Where, Word
from echelon.lint.patterns import pattern
from echelon.lint.rendezvous import FREE_PORT, ports
from echelon.lint.rule import ADVICE, WARNING, Hit, rule
from echelon.lint.script import Script

_HOSTS_ONLY = pattern(r"\$\{?(?:HOSTNAME|SLURMD_NODENAME|MASTER_ADDR|head_node_ip)\}?")
_FEW_GPUS = 3


@rule("E301", WARNING)
def port(script: Script) -> Iterator[Hit]:
    """Port that may be taken, or that ranks do not share.

    Several jobs can run on a node, and Slurm does not assign ports to them. The second job with a
    fixed or default port fails, or its ranks join the first job. It is a warning if the job has one
    node and up to three of its GPUs, or an array of tasks, and advice otherwise, because other jobs
    often have whole nodes. With `--exclusive`, a fixed port is safe.

    Example:
         #!/bin/bash
         #SBATCH --nodes=1
         #SBATCH --gpus-per-node=2
         #SBATCH --cpus-per-gpu=8
        -torchrun --nproc_per_node=2 --master_port=29501 train.py    # <- here
        +torchrun --nproc_per_node=2 --standalone train.py
    """
    shares = WARNING if _shares(script) else ADVICE
    found = list(ports(script))
    last = {(port.name, port.path): port for port in found if port.certain}
    for one in found:
        if (text := _literal(one.value)) and not script.is_exclusive and script.is_job:
            if one.name and last.get((one.name, one.path), one) is not one:
                continue  # the script replaces it
            what = (
                f"Port {text} is hard-coded. If two such jobs share a node, the second one fails "
            )
            what += "with 'address already in use'."
            yield Hit(at=one, what=what, fix=FREE_PORT, severity=shares)
        elif _each_task_chooses(script, one):
            what = "Each task chooses its own port, so the ranks never connect."
            yield Hit(at=one, what=what, fix=f"{FREE_PORT}  # before srun")
    if not script.is_exclusive and script.is_job:
        yield from _default_ports(script, shares is WARNING)


def _shares(script: Script) -> bool:
    """Tell whether other jobs likely run on the node: of an array, or with its other GPUs."""
    gpus = script.job.gpus_per_node or 0
    array = script.directives.last("array") is not None and gpus > 0
    return script.job.nodes == 1 and (0 < gpus <= _FEW_GPUS or array)


def _literal(value: Word) -> str:
    match = re.fullmatch(r"(?:.*:)?(\d{2,5})", value.text.strip())
    return match[1] if match and not re.search(r"localhost:0|\$\{\w+:", value.text) else ""


def _each_task_chooses(script: Script, port: Assignment) -> bool:
    """Tell whether each task chooses a random port of its own."""
    makers = port.value.commands
    random = "RANDOM" in port.value.names or any(c.name in ("shuf", "jot") for c in makers)
    random = random or any("getsockname" in command.text for command in makers)
    launches = (one.launch for one in script.started if one.launch.srun is not None)
    several = any(launch.amounts.several_tasks for launch in launches)
    return port.where is Where.TASK and random and several


def _default_ports(script: Script, shares: bool) -> Iterator[Hit]:
    for one in script.started:
        launcher, amounts = one.launch.launcher, one.launch.amounts
        if launcher is None or not launcher.complete or launcher.kind == "accelerate":
            continue  # accelerate looks for a free port itself
        if {"standalone", "master-port"} & set(launcher.options) or not amounts.gpus_per_node:
            continue
        endpoint = launcher.option("rdzv-endpoint")
        if endpoint is not None and not _HOSTS_ONLY.fullmatch(endpoint.text):
            continue
        default = 29500 if endpoint is None else 29400
        alone = amounts.nodes == 1 and launcher.kind != "deepspeed"
        yield Hit(
            at=one.launch.place_of(endpoint, script.path),
            what=f"No port is given, so {launcher.name} uses its default, {default}. A second job "
            "on the node fails, or joins this one.",
            fix="--standalone" if alone else FREE_PORT,
            severity=None if shares else ADVICE,
        )
