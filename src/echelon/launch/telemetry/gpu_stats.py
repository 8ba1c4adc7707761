"""What the GPUs of a node do, from NVIDIA's management library.

The ranks' Python need not have `pynvml`: without it, or without a driver, there are no figures of
GPUs, and everything else is still measured. Each value is queried separately, because not every GPU
supports all of them.
"""

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from types import ModuleType
from typing import Any

from echelon.core.frozen import frozen

_KIB = 1024.0
_ALL = 2**32 - 1
"""Selects the sum over all links of a GPU."""


@frozen
class Gpu:
    """One GPU at one moment. Values that it does not support are missing."""

    numbers: dict[str, float] = field(default_factory=dict)
    """util (a share), mem, mem_size (bytes), power, power_limit (W), temperature (°C), clock,
    clock_most (MHz), rx, tx (bytes/s over PCIe), ecc (uncorrected errors)."""
    throttled: bool = False
    """Whether it runs slower than it could, other than by choice or when idle."""
    processes: dict[int, float] = field(default_factory=dict)
    """Bytes of its memory, by pid."""
    counters: dict[str, float] = field(default_factory=dict)
    """Cumulative: bytes over NVLink, received and sent on all links."""


class Gpus:
    """The GPUs of this node; none without the library or a driver."""

    def __init__(self, nvml: ModuleType | Any | None) -> None:
        self._nvml = nvml
        self._handles: list[Any] = []
        if nvml is None:
            return
        try:
            nvml.nvmlInit()
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError:
            return
        for index in range(count):
            try:
                self._handles.append(nvml.nvmlDeviceGetHandleByIndex(index))
            except nvml.NVMLError:
                self._handles.append(None)  # a broken GPU; the others keep their indices

    def look(self, *, thorough: bool = True) -> list[Gpu]:
        """Return their current state; `thorough` includes values that are slow to query."""
        return [
            Gpu() if handle is None else self._look_at(handle, thorough) for handle in self._handles
        ]

    def _look_at(self, handle: Any, thorough: bool) -> Gpu:
        nvml: Any = self._nvml
        numbers: dict[str, float] = {}

        def ask(names: Sequence[str], question: Callable[[], Sequence[float]]) -> None:
            with self._answering():
                numbers.update(zip(names, map(float, question()), strict=True))

        ask(["util"], lambda: [nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100])
        ask(["mem", "mem_size"], lambda: _memory(nvml.nvmlDeviceGetMemoryInfo(handle)))
        ask(["power"], lambda: [nvml.nvmlDeviceGetPowerUsage(handle) / 1000])
        ask(["power_limit"], lambda: [nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000])
        ask(
            ["temperature"],
            lambda: [nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)],
        )
        ask(["clock"], lambda: [nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)])
        ask(["clock_most"], lambda: [nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)])
        if thorough:  # a throughput is measured over 20 ms
            ask(["rx"], lambda: [self._throughput(handle, nvml.NVML_PCIE_UTIL_RX_BYTES)])
            ask(["tx"], lambda: [self._throughput(handle, nvml.NVML_PCIE_UTIL_TX_BYTES)])
            ask(["ecc"], lambda: [self._errors(handle)])
        counters: dict[str, float] = {}
        with self._answering():
            counters = self._nvlink(handle)
        throttled = False
        with self._answering():
            throttled = _is_throttled(nvml, nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        processes: dict[int, float] = {}
        with self._answering():
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
                processes[process.pid] = float(process.usedGpuMemory or 0)
        return Gpu(numbers=numbers, throttled=throttled, processes=processes, counters=counters)

    def _nvlink(self, handle: Any) -> dict[str, float]:
        nvml: Any = self._nvml
        fields = {
            "nvlink_rx": nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
            "nvlink_tx": nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
        }
        found = nvml.nvmlDeviceGetFieldValues(handle, [(one, _ALL) for one in fields.values()])
        return {
            name: float(answer.value.ullVal) * _KIB
            for name, answer in zip(fields, found, strict=True)
            if answer.nvmlReturn == 0
        }

    def _throughput(self, handle: Any, way: int) -> float:
        nvml: Any = self._nvml
        return float(nvml.nvmlDeviceGetPcieThroughput(handle, way)) * _KIB

    def _errors(self, handle: Any) -> int:
        nvml: Any = self._nvml
        return int(
            nvml.nvmlDeviceGetTotalEccErrors(
                handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            )
        )

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        """Skip a value that this GPU or this driver does not support."""
        nvml: Any = self._nvml
        with contextlib.suppress(nvml.NVMLError, AttributeError, TypeError, ValueError):
            yield


_HARMLESS = {"GpuIdle", "None", "ApplicationsClocksSetting", "All"}


def _is_throttled(nvml: Any, bits: int) -> bool:
    """Tell whether a reason is set, other than idleness and a clock that a user has chosen."""
    prefix = "nvmlClocksThrottleReason"
    return any(
        bits & bit
        for name, bit in vars(nvml).items()
        if name.startswith(prefix) and name.removeprefix(prefix) not in _HARMLESS
    )


def _memory(info: Any) -> tuple[float, float]:
    return info.used, info.total


def find_nvml() -> ModuleType | None:
    """Return the library, or None if it cannot be imported."""
    try:
        return importlib.import_module("pynvml")
    except Exception:  # noqa: BLE001  must not affect the run
        return None
