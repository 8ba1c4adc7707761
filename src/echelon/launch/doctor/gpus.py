"""A node's GPUs, from nvidia-smi, and which of them are ours: it may also show other jobs' GPUs.

Ours are those that torch can use: only CUDA knows how it numbers GPUs of several types, or MIG.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from echelon.core.codec import decode
from echelon.core.shell import Shell
from echelon.errors import EchelonError
from echelon.launch.doctor.results import (
    Facts,
    Gpu,
    Measured,
    Node,
    RankAnswer,
    Torch,
    read_count,
)

GPU_S = 30.0
_FIELDS = "index,name,uuid,memory.total,driver_version,ecc.errors.uncorrected.volatile.total"
_REASON_FIELDS = (",clocks_throttle_reasons.active", ",clocks_event_reasons.active", "")
"""Older drivers know only the first name, newer ones both for now."""
_REASONS = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""NVML throttle reasons that a healthy GPU never shows, unlike idle, power cap or set clocks."""


async def ask_gpus(shell: Shell, env: Mapping[str, str]) -> tuple[str, list[Gpu], str]:
    """Return the driver's version, the GPUs, and why they could not be queried, or ''."""
    if shell.which("nvidia-smi") is None:
        return "", [], "there is no nvidia-smi"
    # This path may lead to CUDA's stub libraries, with which nvidia-smi fails.
    clean = {name: value for name, value in env.items() if name != "LD_LIBRARY_PATH"}
    for reasons in _REASON_FIELDS:
        query = [f"--query-gpu={_FIELDS}{reasons}", "--format=csv,noheader,nounits"]
        try:
            shown = await asyncio.to_thread(
                shell.run, ["nvidia-smi", *query], env=clean, timeout_s=GPU_S
            )
        except EchelonError as error:
            return "", [], error.message
        if not shown.code:
            return *parse_gpus(shown.stdout), ""
    lines = (shown.stdout + shown.stderr).strip().splitlines() or ["no output"]
    return "", [], f"nvidia-smi exited with code {shown.code}: {lines[-1][:200]}"


def parse_gpus(text: str) -> tuple[str, list[Gpu]]:
    """Parse a query: the driver's version, and each GPU. Pure."""
    driver, found = "", []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) not in (6, 7) or (index := read_count(cells[0], -1)) < 0:
            continue
        _, name, uuid, memory, driver, errors, *reasons = cells
        found.append(
            Gpu(
                index=index,
                name=name,
                uuid=uuid,
                memory_mib=read_count(memory, 0),
                ecc_errors=read_count(errors, 0),  # [N/A] without ECC
                throttle=_parse_reasons("".join(reasons)),
            )
        )
    return driver, found


def _parse_reasons(mask: str) -> tuple[str, ...]:
    bits = int(mask, 16) if re.fullmatch(r"0x[0-9A-Fa-f]{1,16}", mask) else 0
    return tuple(reason for bit, reason in _REASONS.items() if bits & bit)


def count_usable(facts: Facts) -> int:
    """Return how many GPUs torch should be able to use.

    With MIG it is one, however many instances were granted: CUDA shows a process only one. A job
    that was granted no GPU may see all of them or none.
    """
    if facts.parts:
        return 1
    return facts.granted if facts.granted or facts.in_job else len(facts.gpus)


def own_gpus(node: Node) -> tuple[list[Gpu], bool]:
    """Return a node's GPUs without those of other jobs, and whether this is certain."""
    facts, torch = node.facts or Facts(), node.torch or Torch()
    every = list(facts.gpus)
    if len(every) <= count_usable(facts):
        return every, True
    if not torch.devices and not facts.granted:
        return [], True
    own = _find_gpus(facts, torch)
    return (own, True) if len(own) == torch.devices > 0 else (every, False)


def _find_gpus(facts: Facts, torch: Torch) -> list[Gpu]:
    """Return the GPUs that torch can use, in its order."""
    known = {gpu.uuid: gpu for gpu in facts.gpus if gpu.uuid}
    return [known[uuid] for uuid in torch.uuids if uuid in known]


def add_figures(node: Node, answer: Mapping[str, Any]) -> Facts:
    """Return a node's facts with the figures measured on the GPUs that torch can use.

    If it is not known which GPUs those are, the list is replaced by them, numbered as in torch.
    """
    facts, torch = node.facts or Facts(), node.torch or Torch()
    figures = decode(Measured, answer).ranks
    gpus = _find_gpus(facts, torch) or own_gpus(node)[0]
    if unknown := len(gpus) != len(figures):
        gpus = [Gpu(index=index) for index in range(len(figures))]
    measured = {gpu.index: _add(gpu, figure) for gpu, figure in zip(gpus, figures, strict=True)}
    if unknown and measured:
        return replace(facts, gpus=list(measured.values()))
    return replace(facts, gpus=[measured.get(gpu.index, gpu) for gpu in facts.gpus])


def _add(gpu: Gpu, figure: RankAnswer) -> Gpu:
    name = gpu.name or figure.name
    return replace(gpu, name=name, tflops=figure.tflops, memory_gbs=figure.memory_gbs)
