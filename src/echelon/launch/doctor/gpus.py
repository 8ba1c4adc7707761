"""A node's GPUs, from nvidia-smi, and which of them are ours: it may also show other jobs' GPUs."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from echelon.core.codec import decode
from echelon.core.shell import Result, Shell
from echelon.errors import EchelonError
from echelon.launch.doctor.results import Facts, Gpu, Measured, RankAnswer, read_count
from echelon.world import list_devices

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
    for reasons in _REASON_FIELDS:
        query = (f"--query-gpu={_FIELDS}{reasons}", "--format=csv,noheader,nounits")
        try:
            shown = await asyncio.to_thread(_run_smi, shell, env, *query)
        except EchelonError as error:
            return "", [], error.message
        if not shown.code:
            return *parse_gpus(shown.stdout), ""
    lines = (shown.stdout + shown.stderr).strip().splitlines() or ["no output"]
    return "", [], f"nvidia-smi exited with code {shown.code}: {lines[-1][:200]}"


async def ask_mig(shell: Shell, env: Mapping[str, str]) -> dict[str, str]:
    """Return MIG instance → its GPU, by UUID."""
    try:
        return parse_mig((await asyncio.to_thread(_run_smi, shell, env, "--list-gpus")).stdout)
    except EchelonError:
        return {}


def _run_smi(shell: Shell, env: Mapping[str, str], *options: str) -> Result:
    # This path may lead to CUDA's stub libraries, with which nvidia-smi fails.
    clean = {name: value for name, value in env.items() if name != "LD_LIBRARY_PATH"}
    return shell.run(["nvidia-smi", *options], env=clean, timeout_s=GPU_S)


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


def parse_mig(text: str) -> dict[str, str]:
    """Parse which MIG instance belongs to which GPU. Pure.

    `GPU 0: NVIDIA A100 (UUID: GPU-5c89)`, and below it
    `  MIG 3g.20gb     Device  0: (UUID: MIG-1d5b)`.
    """
    found, gpu = {}, ""
    for line in text.splitlines():
        uuid = re.search(r"\(UUID: ([^)\s]+)\)", line)
        if uuid and line.startswith("GPU "):
            gpu = uuid[1]
        elif uuid and gpu:
            found[uuid[1]] = gpu
    return found


def has_mig(environ: Mapping[str, str]) -> bool:
    """Tell whether MIG instances were granted."""
    devices = list_devices(environ.get("CUDA_VISIBLE_DEVICES", ""))
    return any(device.startswith("MIG-") for device in devices)


def find_ours(
    gpus: Sequence[Gpu], environ: Mapping[str, str], mig: Mapping[str, str]
) -> list[int] | None:
    """Return the indices of our GPUs, in torch's order; None if they cannot be determined. Pure.

    Args:
        gpus: the GPUs that nvidia-smi shows.
        environ: our environment variables, which name the GPUs that were granted.
        mig: MIG instance → its GPU, by UUID.
    """
    every = [gpu.index for gpu in gpus]
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    devices = list_devices(visible or "")
    if not devices:
        if "SLURM_JOB_ID" not in environ:
            return every  # the user's own machine: all GPUs count, even hidden ones
        return None if visible is None else []
    # With several GPU types, CUDA numbers the fastest first, and nvidia-smi by PCI bus.
    by_bus = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    numbered = by_bus or len({gpu.name for gpu in gpus}) == 1
    matches = [_match(mig.get(device, device), gpus, numbered=numbered) for device in devices]
    if all(len(indices) == 1 for indices in matches):
        return list(dict.fromkeys(index for (index,) in matches))
    # Slurm may hide all other GPUs and number the remaining ones from zero.
    return every if len(gpus) <= (1 if has_mig(environ) else len(devices)) else None


def _match(device: str, gpus: Sequence[Gpu], *, numbered: bool) -> list[int]:
    """Return the indices of the GPUs given by a number or by a prefix of the UUID."""
    if device.startswith("GPU-"):
        return [gpu.index for gpu in gpus if gpu.uuid.startswith(device)]
    return [gpu.index for gpu in gpus if numbered and str(gpu.index) == device]


def own_gpus(facts: Facts) -> list[Gpu]:
    """Return our GPUs; all GPUs if ours cannot be determined."""
    if facts.ours is None:
        return list(facts.gpus)
    return [gpu for index in facts.ours for gpu in facts.gpus if gpu.index == index]


def count_usable(facts: Facts) -> int:
    """Return how many GPUs torch should be able to use.

    With MIG it is one, however many instances were granted: CUDA shows a process only one. A job
    that was granted no GPU may see all of them or none.
    """
    if facts.parts:
        return 1
    return facts.granted if facts.granted or facts.in_job else len(facts.gpus)


def add_figures(facts: Facts, answer: Mapping[str, Any]) -> Facts:
    """Return the facts with the figures measured on the GPUs that torch can use.

    The GPUs are found by UUID, or else by order. If that fails too, the list is replaced by the
    measured ones, numbered as in torch.
    """
    figures = decode(Measured, answer).ranks
    named = {gpu.uuid: gpu for gpu in facts.gpus if gpu.uuid}
    gpus = [named[figure.uuid] for figure in figures if figure.uuid in named]
    if len(gpus) != len(figures):
        gpus = own_gpus(facts)[: 1 if facts.parts else None]
    if unknown := len(gpus) != len(figures):
        gpus = [Gpu(index=index) for index in range(len(figures))]
    measured = {gpu.index: _add(gpu, figure) for gpu, figure in zip(gpus, figures, strict=True)}
    if unknown:
        return replace(facts, gpus=list(measured.values()), ours=list(measured))
    return replace(facts, gpus=[measured.get(gpu.index, gpu) for gpu in facts.gpus])


def _add(gpu: Gpu, figure: RankAnswer) -> Gpu:
    name = gpu.name or figure.name
    return replace(gpu, name=name, tflops=figure.tflops, memory_gbs=figure.memory_gbs)
