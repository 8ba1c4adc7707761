"""What is wrong with a node's GPUs: with those that are ours, and no other job's. Pure."""

from collections.abc import Iterator

from echelon.launch.doctor.granted import count_usable, own_gpus
from echelon.launch.doctor.record import Facts, Finding, Gpu, Node, Severity


def judge_gpus(node: Node) -> Iterator[Finding]:
    """Return what is wrong with the GPUs of one node."""
    if node.facts is not None:
        yield from _judge_number(node.name, node.facts)
        if not _is_without(node, node.facts):
            for gpu in own_gpus(node.facts):
                yield from _judge_health(node.name, gpu, sure=node.facts.ours is not None)
        yield from _judge_use(node, node.facts)


def _is_without(node: Node, facts: Facts) -> bool:
    """Tell whether a job was granted no GPU, and uses none."""
    return facts.in_job and not facts.granted and not (node.torch and node.torch.devices)


def _judge_number(name: str, facts: Facts) -> Iterator[Finding]:
    if facts.gpu_error and facts.granted and not facts.gpus:
        missing = facts.gpu_error.startswith("there is no")
        why = f"{facts.granted} GPUs were granted, and {facts.gpu_error}"
        fix = "is the driver loaded? nvidia-smi there says"
        yield _find(name, "gpus", why, fix, severity="warning" if missing else "error")
    elif len(facts.gpus) < (1 if facts.parts else facts.granted):
        why = f"{facts.granted} GPUs were granted, and {len(facts.gpus)} are there"
        yield _find(name, "gpus", why, "one has fallen off the bus: dmesg | grep -i xid")


def _judge_health(name: str, gpu: Gpu, *, sure: bool) -> Iterator[Finding]:
    """Return what is wrong with one GPU: a remark, where it may be another job's."""
    doubt = "" if sure else "; it may be another job's"
    if gpu.ecc_errors:
        why = f"GPU {gpu.index} has had {gpu.ecc_errors} uncorrected ECC errors{doubt}"
        fix = "have it reset or changed: nvidia-smi -q -d ECC"
        yield _find(name, "ecc", why, fix, severity="error" if sure else "warning")
    if gpu.throttle:
        why = f"GPU {gpu.index} is held down: {', '.join(gpu.throttle)}{doubt}"
        fix = "look at cooling and power: nvidia-smi -q -d PERFORMANCE"
        yield _find(name, "throttle", why, fix, severity="warning")


def _judge_use(node: Node, facts: Facts) -> Iterator[Finding]:
    torch, usable = node.torch, count_usable(facts)
    if torch is None or torch.error or not torch.cuda or not facts.gpus:
        return
    if torch.devices < usable:
        why = f"torch for CUDA {torch.cuda} can use {torch.devices} of {usable} GPUs"
        why += f" (driver {facts.driver})"
        why += f": {torch.device_error}" if torch.device_error else ""
        fix = "the driver may be too old for this torch, or CUDA_VISIBLE_DEVICES wrong"
        yield _find(node.name, "cuda", why, fix)


def _find(
    node: str, check: str, message: str, fix: str, *, severity: Severity = "error"
) -> Finding:
    return Finding(severity=severity, node=node, check=check, message=message, fix=fix)
