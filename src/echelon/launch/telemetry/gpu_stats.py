"""What the GPUs of a node do, as NVIDIA's management library says it.

`pynvml` is not ours to require in the ranks' Python: without it, or without a driver, there are no
GPUs to speak of, and everything else is told all the same. Each question is asked by itself, for
not every GPU answers every one.
"""

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

_KIB = 1024.0
_ALL = 2**32 - 1
"""All links of a GPU together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One, at a moment. Numbers by name; one that it does not tell is missing."""

    uuid: str
    numbers: dict[str, float] = field(default_factory=dict)
    """util (a share), mem, mem_size (bytes), power, power_limit (W), temperature (°C), clock,
    clock_most (MHz), rx, tx (bytes/s over PCIe), ecc (uncorrected errors)."""
    throttled: tuple[str, ...] = ()
    """Why it runs slower than it could."""
    processes: dict[int, float] = field(default_factory=dict)
    """Bytes of its memory, by pid."""
    counters: dict[str, float] = field(default_factory=dict)
    """What only grows: bytes over NVLink, received and sent on all links."""


class Gpus:
    """Those of this node; none where nobody can tell."""

    def __init__(self, nvml: ModuleType | Any | None) -> None:
        self._nvml = nvml
        self._handles: list[Any] = []
        self.reason = "" if nvml else "nvidia-ml-py is not installed"
        """Why there are none, if there are none."""
        if nvml is not None:
            self._begin(nvml)

    def _begin(self, nvml: Any) -> None:
        try:
            nvml.nvmlInit()
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            self.reason = str(error)
            return
        for index in range(count):
            try:
                self._handles.append(nvml.nvmlDeviceGetHandleByIndex(index))
            except nvml.NVMLError as error:
                self._handles.append(None)  # one that is broken; the others keep their numbers
                self.reason = str(error)

    def look(self, *, thorough: bool = True) -> list[Gpu]:
        """Return how they are now; thorough is also what takes the driver a while to answer."""
        return [
            Gpu(uuid="") if handle is None else self._look_at(handle, thorough)
            for handle in self._handles
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
        throttled: tuple[str, ...] = ()
        with self._answering():
            throttled = _reasons(nvml, nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        processes: dict[int, float] = {}
        with self._answering():
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
                processes[process.pid] = float(process.usedGpuMemory or 0)
        uuid = ""
        with self._answering():
            uuid = str(nvml.nvmlDeviceGetUUID(handle))
        return Gpu(
            uuid=uuid,
            numbers=numbers,
            throttled=throttled,
            processes=processes,
            counters=counters,
        )

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
        """Do without an answer that this GPU, or this driver, does not have."""
        nvml: Any = self._nvml
        with contextlib.suppress(nvml.NVMLError, AttributeError, TypeError, ValueError):
            yield


_HARMLESS = {"GpuIdle", "None", "ApplicationsClocksSetting", "All"}


def _reasons(nvml: Any, bits: int) -> tuple[str, ...]:
    """Return the names of reasons that are set; a clock that a user has chosen is none."""
    prefix = "nvmlClocksThrottleReason"
    known = {
        name.removeprefix(prefix): bit
        for name, bit in vars(nvml).items()
        if name.startswith(prefix)
    }
    return tuple(
        sorted(name for name, bit in known.items() if bits & bit and name not in _HARMLESS)
    )


def _memory(info: Any) -> tuple[float, float]:
    return info.used, info.total


def find_nvml() -> ModuleType | None:
    """Return the library, if it is installed here."""
    try:
        return importlib.import_module("pynvml")
    except Exception:  # noqa: BLE001  whatever is wrong with it costs the run nothing
        return None
