"""A node's GPUs, as nvidia-smi tells of them. Asking may take long on a broken node."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace

from echelon.core.shell import Result, Shell
from echelon.errors import EchelonError
from echelon.launch.doctor.record import Gpu

GPU_S = 30.0
_BASIC = "index,name,uuid,memory.total,driver_version,ecc.errors.uncorrected.volatile.total"
_REASONS = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Bits of NVML's reasons that no healthy GPU shows; idle, a power cap or set clocks are usual."""


async def ask_gpus(shell: Shell, env: Mapping[str, str]) -> tuple[str, list[Gpu], str]:
    """Return the driver's version, the GPUs, and why they could not be asked, if so."""
    if shell.which("nvidia-smi") is None:
        return "", [], "there is no nvidia-smi"
    # With CUDA's stubs on this path it would ask a library that knows nothing.
    clean = {name: value for name, value in env.items() if name != "LD_LIBRARY_PATH"}
    try:
        shown = await asyncio.to_thread(_query, shell, clean, _BASIC)
        if shown.code:
            said = (shown.stdout + shown.stderr).strip().splitlines()
            why = said[-1][:200] if said else "it said nothing"
            return "", [], f"nvidia-smi ended with code {shown.code}: {why}"
        # Older drivers have one name, newer ones both for now.
        for field in ("clocks_throttle_reasons.active", "clocks_event_reasons.active"):
            reasons = await asyncio.to_thread(_query, shell, clean, f"index,{field}")
            if not reasons.code:
                break
    except EchelonError as error:
        return "", [], error.message
    driver, gpus = parse_gpus(shown.stdout)
    held = parse_reasons(reasons.stdout) if not reasons.code else {}
    return driver, [replace(gpu, throttle=held.get(gpu.index, ())) for gpu in gpus], ""


def _query(shell: Shell, env: Mapping[str, str], fields: str) -> Result:
    argv = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    return shell.run(argv, env=env, timeout_s=GPU_S)


def parse_gpus(text: str) -> tuple[str, list[Gpu]]:
    """Read the basic query: the driver's version, and each GPU. Pure."""
    driver, found = "", []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 6 or not cells[0].isdecimal():
            continue
        index, name, uuid, memory, driver, errors = cells
        found.append(
            Gpu(
                index=int(index),
                name=name,
                uuid=uuid,
                memory_mib=_number(memory),
                ecc_errors=_number(errors),
            )
        )
    return driver, found


def parse_reasons(text: str) -> dict[int, tuple[str, ...]]:
    """Read why clocks are held down, by GPU. Pure."""
    found = {}
    for line in text.splitlines():
        index, _, mask = (cell.strip() for cell in line.partition(","))
        if index.isdecimal() and re.fullmatch(r"0x[0-9A-Fa-f]+", mask):
            bits = int(mask, 16)
            found[int(index)] = tuple(word for bit, word in _REASONS.items() if bits & bit)
    return found


def _number(text: str) -> int:
    """Return a number; 0 for [N/A], which GPUs without ECC say."""
    return int(text) if text.isdecimal() else 0
