"""A node's GPUs, from nvidia-smi, and which of them are ours: it may also show other jobs' GPUs."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from echelon.core.frozen import frozen
from echelon.core.shell import Result, Shell
from echelon.errors import EchelonError
from echelon.launch.doctor.results import Facts, Gpu, read_count, read_ranks
from echelon.world import list_devices

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


_MIG = "MIG-"
_OLD_MIG = re.compile(r"MIG-(GPU-[^/]+)/.*")
"""Drivers before 470 named a MIG instance by its GPU: `MIG-GPU-<uuid>/1/0`."""


@frozen
class Grant:
    """The GPUs granted to a process, from its environment."""

    visible: str | None
    """CUDA_VISIBLE_DEVICES; None if it is not set."""
    in_job: bool
    """Whether it runs in a Slurm job, where GPUs that were not granted are not ours."""
    by_bus: bool = False
    """Whether CUDA numbers GPUs as nvidia-smi does (CUDA_DEVICE_ORDER)."""

    @property
    def devices(self) -> list[str]:
        return list_devices(self.visible or "")

    @property
    def has_parts(self) -> bool:
        """Whether MIG instances were granted."""
        return any(device.startswith(_MIG) for device in self.devices)


def read_grant(environ: Mapping[str, str]) -> Grant:
    return Grant(
        visible=environ.get("CUDA_VISIBLE_DEVICES"),
        in_job="SLURM_JOB_ID" in environ,
        by_bus=environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID",
    )


def find_ours(
    gpus: Sequence[Gpu], grant: Grant, parts: Mapping[str, str] | None = None
) -> list[int] | None:
    """Return the indices of our GPUs, in torch's order; None if they cannot be determined.

    Args:
        gpus: the GPUs that nvidia-smi shows.
        grant: the GPUs granted.
        parts: MIG instance → its GPU, by UUID.
    """
    every = [gpu.index for gpu in gpus]
    devices = grant.devices
    if not devices:
        if not grant.in_job:
            return every  # the user's own machine: all GPUs count, even hidden ones
        return None if grant.visible is None else []
    wholes = _of_parts(devices, parts or {})
    found = [index for device in wholes for index in _find(device, gpus, grant)]
    if len(found) == len(devices):
        return list(dict.fromkeys(found))
    # Slurm may hide all other GPUs and number the remaining ones from zero.
    none_else = len(gpus) <= (1 if grant.has_parts else len(devices))
    return every if none_else else None


def _of_parts(devices: Sequence[str], parts: Mapping[str, str]) -> list[str]:
    """Return the devices, with each MIG instance replaced by its GPU."""
    old = {device: found[1] for device in devices if (found := _OLD_MIG.fullmatch(device))}
    return [old.get(device) or parts.get(device, device) for device in devices]


def _find(device: str, gpus: Sequence[Gpu], grant: Grant) -> list[int]:
    """Return the index of a GPU given by number or by a prefix of its UUID."""
    if device.startswith("GPU-"):
        same = [gpu.index for gpu in gpus if gpu.uuid.startswith(device)]
        return same if len(same) == 1 else []
    # With several GPU types, CUDA numbers the fastest first, and nvidia-smi by PCI bus.
    alike = grant.by_bus or len({gpu.name for gpu in gpus}) == 1
    return [gpu.index for gpu in gpus if alike and str(gpu.index) == device]


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


def add_figures(facts: Facts, said: Mapping[str, Any]) -> Facts:
    """Return the facts with the figures measured on the GPUs that torch can use.

    If it is not known which GPUs those are, the list is replaced by them, numbered as in torch.
    """
    figures = read_ranks(said, "tflops", "memory_gbs")
    known = _measured_gpus(facts, figures)
    if known is None:
        gpus = [_add(Gpu(index=i), figure) for i, figure in enumerate(figures)]
        return replace(facts, gpus=gpus, ours=[gpu.index for gpu in gpus])
    done = {gpu.index: _add(gpu, figure) for gpu, figure in zip(known, figures, strict=True)}
    return replace(facts, gpus=[done.get(gpu.index, gpu) for gpu in facts.gpus])


def _measured_gpus(facts: Facts, figures: Sequence[Mapping[str, Any]]) -> list[Gpu] | None:
    """Return the GPUs that figures belong to, matched by UUID or else by order."""
    named = {gpu.uuid: gpu for gpu in facts.gpus if gpu.uuid}
    uuids = [str(figure.get("uuid", "")) for figure in figures]
    if named and all(uuid in named for uuid in uuids):
        return [named[uuid] for uuid in uuids]
    ours = own_gpus(facts)[: 1 if facts.parts else None]
    return ours if len(ours) == len(figures) else None


def _add(gpu: Gpu, figure: Mapping[str, Any]) -> Gpu:
    return replace(
        gpu,
        name=gpu.name or str(figure.get("name", "")),
        tflops=figure.get("tflops", 0.0),
        memory_gbs=figure.get("memory_gbs", 0.0),
    )
