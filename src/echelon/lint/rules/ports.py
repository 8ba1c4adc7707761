"""E301: the port of the rendezvous."""

import re
from collections.abc import Iterator

from echelon.lint.bash import Assignment, Where, Word
from echelon.lint.patterns import pattern
from echelon.lint.rendezvous import FREE_PORT, ports
from echelon.lint.rule import ADVICE, WARNING, Hit, rule
from echelon.lint.script import Script

_FIRST_FREE, _LAST, _LARGEST_RANDOM = 1024, 65535, 32767
_SUM = pattern(
    r"\$\(\(\s*(\d{1,9})\s*\+\s*\(?\s*\$?\{?([A-Za-z_]\w*)\}?\s*%\s*(\d{1,9})\s*\)?\s*\)\)"
)
"""A port such as $((20000 + SLURM_JOB_ID % 10000)): base, variable, modulus."""
_RANDOM = pattern(r"\$\{?RANDOM\}?|\$\(\(\s*\$?\{?RANDOM\}?\s*(?:%\s*\d+\s*)?\)\)")
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
        elif problem := _problem(script, one):
            yield Hit(at=one, what=problem, fix=FREE_PORT)
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


def _problem(script: Script, port: Assignment) -> str:
    """Return why a port is unsuitable; empty if it is not."""
    line, names = script.line_at(port), port.value.names
    found = _SUM.search(line)
    own = "RANDOM" in names or any(
        command.name in ("shuf", "jot") or "getsockname" in command.text
        for command in port.value.commands
    )
    several = (one.launch for one in script.started if one.launch.srun is not None)
    if port.where is Where.TASK:
        shared = own and any(launch.amounts.several_tasks for launch in several)
        return "Each task chooses its own port, so the ranks never connect." if shared else ""
    if found:
        largest = int(found[3]) - 1
        largest = min(largest, _LARGEST_RANDOM) if found[2] == "RANDOM" else largest
        low, high = int(found[1]), int(found[1]) + largest
    else:
        low, high = (0 if _RANDOM.fullmatch(port.value.text.strip()) else _FIRST_FREE), _LAST
    if low < _FIRST_FREE:
        return f"The port can be as low as {low}. Only root may use ports below {_FIRST_FREE}."
    if high > _LAST:
        return f"The port can be as high as {high}, but the highest is {_LAST}."
    return ""


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
