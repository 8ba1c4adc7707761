"""Findings about a node's GPUs; GPUs of other jobs are ignored. Pure."""

from collections.abc import Iterator

from echelon.launch.doctor.granted import count_usable, own_gpus
from echelon.launch.doctor.record import Facts, Finding, Gpu, Node, Severity


def judge_gpus(node: Node) -> Iterator[Finding]:
    """Return the findings about one node's GPUs."""
    if node.facts is not None:
        yield from _judge_number(node.name, node.facts)
        if not _is_without(node, node.facts):
            for gpu in own_gpus(node.facts):
                yield from _judge_health(node.name, gpu, sure=node.facts.ours is not None)
        yield from _judge_use(node, node.facts)


def _is_without(node: Node, facts: Facts) -> bool:
    """Tell whether the job was granted no GPU and uses none."""
    return facts.in_job and not facts.granted and not (node.torch and node.torch.devices)


def _judge_number(name: str, facts: Facts) -> Iterator[Finding]:
    if facts.gpu_error and facts.granted and not facts.gpus:
        missing = facts.gpu_error.startswith("there is no")
        why = f"{facts.granted} GPUs were granted, but {facts.gpu_error}"
        fix = "check on the node that the driver is loaded: nvidia-smi"
        yield _find(name, "gpus", why, fix, severity="warning" if missing else "error")
    elif len(facts.gpus) < (1 if facts.parts else facts.granted):
        why = f"{facts.granted} GPUs were granted, but only {len(facts.gpus)} are present"
        yield _find(name, "gpus", why, "check the driver's errors: dmesg | grep -i xid")


def _judge_health(name: str, gpu: Gpu, *, sure: bool) -> Iterator[Finding]:
    """Return the findings about one GPU; only warnings if it may belong to another job."""
    doubt = "" if sure else "; it may belong to another job"
    if gpu.ecc_errors:
        why = f"GPU {gpu.index} has {gpu.ecc_errors} uncorrected ECC errors{doubt}"
        fix = "have it reset or replaced: nvidia-smi -q -d ECC"
        yield _find(name, "ecc", why, fix, severity="error" if sure else "warning")
    if gpu.throttle:
        why = f"GPU {gpu.index} is throttled: {', '.join(gpu.throttle)}{doubt}"
        fix = "check cooling and power: nvidia-smi -q -d PERFORMANCE"
        yield _find(name, "throttle", why, fix, severity="warning")


def _judge_use(node: Node, facts: Facts) -> Iterator[Finding]:
    torch, usable = node.torch, count_usable(facts)
    if torch is None or torch.error or not torch.cuda or not facts.gpus:
        return
    if torch.devices < usable:
        why = f"torch for CUDA {torch.cuda} can use {torch.devices} of {usable} GPUs"
        why += f" (driver {facts.driver})"
        why += f": {torch.device_error}" if torch.device_error else ""
        fix = "update the driver, or check CUDA_VISIBLE_DEVICES"
        yield _find(node.name, "cuda", why, fix)


def _find(
    node: str, check: str, message: str, fix: str, *, severity: Severity = "error"
) -> Finding:
    return Finding(severity=severity, node=node, check=check, message=message, fix=fix)
