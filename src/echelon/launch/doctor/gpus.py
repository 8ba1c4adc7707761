"""A node's GPUs, from nvidia-smi. On a broken node a query may take long."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace

from echelon.core.shell import Result, Shell
from echelon.errors import EchelonError
from echelon.launch.doctor.answers import read_count
from echelon.launch.doctor.record import Gpu

GPU_S = 30.0
_BASIC = "index,name,uuid,memory.total,driver_version,ecc.errors.uncorrected.volatile.total"
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
    clean = _without_stubs(env)
    try:
        shown = await asyncio.to_thread(_query, shell, clean, _BASIC)
        if shown.code:
            said = (shown.stdout + shown.stderr).strip().splitlines()
            why = said[-1][:200] if said else "no output"
            return "", [], f"nvidia-smi exited with code {shown.code}: {why}"
        # Older drivers know only the first name, newer ones both for now.
        for field in ("clocks_throttle_reasons.active", "clocks_event_reasons.active"):
            reasons = await asyncio.to_thread(_query, shell, clean, f"index,{field}")
            if not reasons.code:
                break
    except EchelonError as error:
        return "", [], error.message
    driver, gpus = parse_gpus(shown.stdout)
    held = parse_reasons(reasons.stdout) if not reasons.code else {}
    return driver, [replace(gpu, throttle=held.get(gpu.index, ())) for gpu in gpus], ""


async def ask_parts(shell: Shell, env: Mapping[str, str]) -> dict[str, str]:
    """Return MIG instance → its GPU, by UUID."""

    def ask() -> str:
        argv = ["nvidia-smi", "--list-gpus"]
        return shell.run(argv, env=_without_stubs(env), timeout_s=GPU_S).stdout

    try:
        return parse_parts(await asyncio.to_thread(ask))
    except EchelonError:
        return {}


def _without_stubs(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without LD_LIBRARY_PATH, which may lead to CUDA's stub libraries."""
    return {name: value for name, value in env.items() if name != "LD_LIBRARY_PATH"}


def _query(shell: Shell, env: Mapping[str, str], fields: str) -> Result:
    argv = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    return shell.run(argv, env=env, timeout_s=GPU_S)


def parse_gpus(text: str) -> tuple[str, list[Gpu]]:
    """Parse the basic query: the driver's version, and each GPU. Pure."""
    driver, found = "", []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 6 or (index := read_count(cells[0], -1)) < 0:
            continue
        _, name, uuid, memory, driver, errors = cells
        found.append(
            Gpu(
                index=index,
                name=name,
                uuid=uuid,
                memory_mib=read_count(memory, 0),
                ecc_errors=read_count(errors, 0),  # GPUs without ECC say [N/A]
            )
        )
    return driver, found


def parse_parts(text: str) -> dict[str, str]:
    """Parse which MIG instance belongs to which GPU. Pure.

    `GPU 0: NVIDIA A100 (UUID: GPU-5c89)`, and below it
    `  MIG 3g.20gb     Device  0: (UUID: MIG-1d5b)`.
    """
    found, whole = {}, ""
    for line in text.splitlines():
        uuid = re.search(r"\(UUID: ([^)\s]+)\)", line)
        if uuid and line.startswith("GPU "):
            whole = uuid[1]
        elif uuid and whole:
            found[uuid[1]] = whole
    return found


def parse_reasons(text: str) -> dict[int, tuple[str, ...]]:
    """Parse throttle reasons, by GPU. Pure."""
    found = {}
    for line in text.splitlines():
        name, _, mask = (cell.strip() for cell in line.partition(","))
        index = read_count(name, -1)
        if index >= 0 and re.fullmatch(r"0x[0-9A-Fa-f]+", mask):
            bits = int(mask, 16)
            found[index] = tuple(word for bit, word in _REASONS.items() if bits & bit)
    return found
