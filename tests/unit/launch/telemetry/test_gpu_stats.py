"""Figures of GPUs from NVIDIA's library, and what happens without it."""

from types import SimpleNamespace

import pytest

from echelon.launch.telemetry.gpu_stats import Gpus, find_nvml


class NVMLError(Exception):
    pass


def make_nvml(**more):
    """A library that knows of one GPU, and can be told to answer otherwise."""

    def refuse(*_):
        raise NVMLError("Not Supported")

    known = {
        "NVMLError": NVMLError,
        "NVML_TEMPERATURE_GPU": 0,
        "NVML_CLOCK_SM": 1,
        "NVML_PCIE_UTIL_RX_BYTES": 1,
        "NVML_PCIE_UTIL_TX_BYTES": 0,
        "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
        "NVML_VOLATILE_ECC": 0,
        "nvmlClocksThrottleReasonGpuIdle": 1,
        "nvmlClocksThrottleReasonSwPowerCap": 4,
        "nvmlClocksThrottleReasonHwSlowdown": 8,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=93, memory=40),
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=10, total=80),
        "nvmlDeviceGetPowerUsage": lambda _: 412_500,
        "nvmlDeviceGetEnforcedPowerLimit": lambda _: 700_000,
        "nvmlDeviceGetTemperature": lambda _handle, _which: 61,
        "nvmlDeviceGetClockInfo": lambda _handle, _which: 1700,
        "nvmlDeviceGetMaxClockInfo": lambda _handle, _which: 1980,
        "nvmlDeviceGetPcieThroughput": lambda _handle, way: 2 + way,
        "nvmlDeviceGetTotalEccErrors": refuse,
        "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX": 138,
        "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX": 139,
        "nvmlDeviceGetFieldValues": lambda _handle, fields: [
            SimpleNamespace(nvmlReturn=which == 138, value=SimpleNamespace(ullVal=which))
            for which, _ in fields
        ],
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: 1 | 4,
        "nvmlDeviceGetComputeRunningProcesses": lambda _: [
            SimpleNamespace(pid=7, usedGpuMemory=9),
            SimpleNamespace(pid=8, usedGpuMemory=None),
        ],
    }
    return SimpleNamespace(**{**known, **more})


def test_all_that_one_tells():
    (gpu,) = Gpus(make_nvml()).look()
    assert gpu.numbers == {
        "util": 0.93,
        "mem": 10,
        "mem_size": 80,
        "power": 412.5,
        "power_limit": 700,
        "temperature": 61,
        "clock": 1700,
        "clock_most": 1980,
        "rx": 3 * 1024,
        "tx": 2 * 1024,
    }  # and no ECC, which it does not have
    assert gpu.counters == {"nvlink_rx": 139 * 1024}  # it does not tell what it sends
    assert gpu.throttled
    assert gpu.processes == {7: 9, 8: 0}


def test_what_takes_long_is_left_out_when_time_is_short():
    (gpu,) = Gpus(make_nvml()).look(thorough=False)
    assert not {"rx", "tx", "ecc"} & gpu.numbers.keys()


def test_each_question_is_asked_by_itself():
    def fail(*_):
        raise NVMLError("GPU is lost")

    broken = {name: fail for name in vars(make_nvml()) if name.startswith("nvmlDeviceGet")}
    keep = {"nvmlDeviceGetCount": lambda: 1, "nvmlDeviceGetHandleByIndex": lambda index: index}
    clock = {"nvmlDeviceGetClockInfo": lambda _handle, _which: 1500}
    (gpu,) = Gpus(make_nvml(**{**broken, **keep, **clock})).look()
    assert (gpu.numbers, gpu.throttled, gpu.processes) == ({"clock": 1500}, False, {})


@pytest.mark.parametrize("name", ["nvmlInit", "nvmlDeviceGetCount"])
def test_without_a_driver_there_are_none(name):
    def fail(*_):
        raise NVMLError("Driver Not Loaded")

    assert Gpus(make_nvml(**{name: fail})).look() == []


@pytest.mark.parametrize(("bits", "throttled"), [(0, False), (1, False), (8, True), (1 | 4, True)])
def test_an_idle_gpu_is_not_throttled(bits, throttled):
    nvml = make_nvml(nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: bits)
    (gpu,) = Gpus(nvml).look()
    assert gpu.throttled == throttled


def test_one_that_is_broken_does_not_hide_the_others():
    def find(index):
        if index == 0:
            raise NVMLError("GPU is lost")
        return index

    both = {"nvmlDeviceGetCount": lambda: 2, "nvmlDeviceGetHandleByIndex": find}
    lost, well = Gpus(make_nvml(**both)).look()
    assert (lost.numbers, well.numbers["util"]) == ({}, 0.93)


def test_without_the_library_there_are_none():
    assert Gpus(None).look() == []


def test_the_real_library_is_found_and_can_be_asked():
    nvml = find_nvml()
    assert nvml is not None
    assert all(gpu.numbers["mem_size"] > 0 for gpu in Gpus(nvml).look())
