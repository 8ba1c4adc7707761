"""Find values of a request that are valid by themselves but conflict. Pure."""

import re
from collections.abc import Iterable

from echelon.core.units import parse_duration
from echelon.spec.job_spec import KEYS, JobSpec

SCRIPT_VARIABLES = frozenset(
    {
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
        *("GROUP_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "PEER_ADDR"),
        *("PORT_TAKEN", "DIST_FILE", "code", "host", "interface", "launcher", "log", "own"),
        *("peer", "python", "scratch", "taken", "task", "towards", "try"),
        # The script of style `ray` sets these.
        *("head", "node", "one", "others", "ray", "role", "leash", "late", "linger", "memory"),
        *("end_s", "gpus", "cpus", "tmp", "workers"),
        *("AUTOSCALER_METRIC_PORT", "DASHBOARD_METRIC_PORT"),
        *("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_HOME"),
    }
)
"""Variables that the job's script sets."""
TYPED = ("flags", "--set")
"""Sources of values for one run only; files set values for all runs."""
_EXCLUSIVE = (("cpus_per_task", "cpus_per_gpu"), ("mail", "mail_user"), ("mail", "mail_type"))


def find_conflicts(spec: JobSpec) -> list[str]:
    """Return a message for each conflict in a request."""
    return [*_judge_amounts(spec), *_judge_style(spec), *_judge_image(spec), *_judge_names(spec)]


def find_unused(spec: JobSpec, where: str) -> list[str]:
    """Return the keys without effect, except those that only turn something off.

    Args:
        spec: the request.
        where: `style` (in a style without a controller), `ray`, or `local` (on this machine).
    """
    keys = [key for key in KEYS.values() if where in key.unused]
    return [key.name for key in keys if key.value(spec) not in (key.default, 0, False)]


def show_values(spec: JobSpec, keys: Iterable[str]) -> str:
    """Return keys with their values, for a message."""
    return ", ".join(f"{key} ({KEYS[key].show(spec)})" for key in keys)


def _judge_amounts(spec: JobSpec) -> list[str]:
    """Check for amounts that are mutually exclusive or impossible."""
    found = []
    memory = [k for k in ("mem", "mem_per_cpu", "mem_per_gpu") if getattr(spec, f"{k}_mib")]
    if len(memory) > 1:
        found.append(f"{' and '.join(memory)} are mutually exclusive: keep one of them")
    found += [
        f"{one} and {other} are mutually exclusive: keep one of them"
        for one, other in _EXCLUSIVE
        if getattr(spec, one) and getattr(spec, other)
    ]
    found += [
        f"{key} requires gpus: add --gpus, the number of GPUs per node"
        for key, value in (
            ("gpu_type", spec.gpu_type),
            ("cpus_per_gpu", spec.cpus_per_gpu),
            ("mem_per_gpu", spec.mem_per_gpu_mib),
        )
        if value and not spec.gpus
    ]
    if spec.gpus and spec.procs_per_node > spec.gpus:
        found.append(
            f"procs is {spec.procs}, but a node has only {spec.gpus} GPUs: remove procs for "
            "one rank per GPU, or gpus for ranks without GPUs"
        )
    if spec.gpu_option == "gpus-per-task" and spec.gpus % spec.tasks_per_node:
        found.append(
            f"{spec.gpus} GPUs cannot be divided evenly among {spec.tasks_per_node} tasks, which "
            f"gpu_option '{spec.gpu_option}' requires: use --gpu-option gres"
        )
    if spec.nodes.low != spec.nodes.high and spec.style not in ("echelon", "torchrun"):
        found.append(
            f"style '{spec.style}' requires a fixed number of nodes, not {spec.nodes}: use "
            f"--nodes {spec.nodes.high}, or use --style echelon"
        )
    if spec.nodes.low != spec.nodes.high and spec.gpu_option in ("gpus", "gpus-per-task"):
        found.append(
            f"gpu_option '{spec.gpu_option}' requires a fixed number of nodes, not {spec.nodes}: "
            f"use --nodes {spec.nodes.high}, or use --gpu-option gres"
        )
    limit_s = parse_duration(spec.time) if spec.time else None
    if spec.style == "echelon" and limit_s is not None and limit_s < 2 * _warned_s(spec):
        found.append(
            f"a time limit of {spec.time} leaves too little time to train: ranks are told to stop "
            f"{_warned_s(spec)} s before it (signal_lead, --signal, grace); request at least twice "
            "as much, or decrease these"
        )
    return found


def _warned_s(spec: JobSpec) -> int:
    """Return how long before the time limit ranks are warned or asked to stop."""
    saves = spec.hand_over in ("always", "requeue")
    return max(spec.limit_lead_s, spec.grace_s + 10 if saves else 0)


def _judge_style(spec: JobSpec) -> list[str]:
    """Check what the style does not support."""
    found = []
    if spec.signal_lead_s and spec.style in ("static", "torchrun", "ray"):
        found.append(
            f"style '{spec.style}' does not forward signals to its ranks: remove signal_lead, "
            "or use --style echelon or srun"
        )
    if spec.module and spec.style in ("static", "torchrun"):
        found.append(
            f"style '{spec.style}' takes a script, not a module: use --style echelon or srun"
        )
    if spec.module and "/" in spec.script:
        found.append(
            f"'{spec.script}' is not a Python module, which --module expects; to load an "
            f"environment module, use --load {spec.script}"
        )
    if spec.preflight and spec.style != "echelon":
        found.append(
            f"style '{spec.style}' does not support preflight: use --style echelon, or run "
            "echelon doctor --nodes N first"
        )
    if spec.stage and spec.style != "echelon":
        found.append(f"style '{spec.style}' does not support stage: use --style echelon")
    if spec.stage_dir and not spec.stage_dir.startswith("/"):
        found.append(f"stage_dir must be an absolute path, not '{spec.stage_dir}'")
    return found


def _judge_image(spec: JobSpec) -> list[str]:
    """Check for options that are incompatible with `image`, or require it."""
    if not spec.image:
        # The other keys may be in a profile, for projects with an image and without.
        own = [key for key in ("image_workdir", "image_python") if getattr(spec, key)]
        return [f"{key} requires image: add --image" for key in own]
    found = [
        f"image and {key} are mutually exclusive: the image has its own Python (image_python)"
        for key in ("venv", "conda")
        if getattr(spec, key)
    ]
    if spec.image_runtime == "pyxis" and spec.style == "echelon":
        found.append(
            "pyxis only starts tasks of srun: use --style srun, or --image-runtime apptainer or "
            "podman"
        )
    if spec.image_runtime == "pyxis" and spec.image_options:
        found.append("image_options are not for pyxis: use --slurm for options of sbatch")
    if spec.preflight:
        found.append("preflight examines the nodes' own Python: remove it, or image")
    if spec.style == "ray":
        found.append("style 'ray' does not support image: use --style echelon or srun")
    if spec.style != "echelon" and not spec.image_runtime:
        found.append(
            f"style '{spec.style}' needs to know the image_runtime: use --image-runtime "
            "apptainer, podman or pyxis"
        )
    return found


def _judge_names(spec: JobSpec) -> list[str]:
    """Check the names of variables and of sbatch options."""
    own = {key.sbatch: key.option for key in KEYS.values() if key.sbatch and not key.in_extra}
    found = [
        f"the job sets the variable {name} itself: remove it from env"
        for name in spec.env
        if name in SCRIPT_VARIABLES
    ]
    found += [
        f"--slurm {name} has its own flag: use {own[name]}"
        for name in spec.slurm_extra
        if name in own
    ]
    found += [
        f"--slurm {name} conflicts with hand_over: use --hand-over requeue or never"
        for name in ("requeue", "no-requeue")
        if name in spec.slurm_extra
    ]
    found += [
        f"'{name}' is not a valid variable name in {key}: use letters, digits and _"
        for key in ("env", "image_env")
        for name in getattr(spec, key)
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
    ]
    found += [
        f"'{name}' is not an sbatch option: for example --slurm reservation=NAME"
        for name in spec.slurm_extra
        if not re.fullmatch(r"[a-z][a-z0-9-]*", name)
    ]
    return found
