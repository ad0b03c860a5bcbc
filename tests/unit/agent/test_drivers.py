"""Simulated GPUs, and how the NVML driver keeps each failure to its own device."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from yard_agent.driver import (
    DeviceInfo,
    DeviceMemory,
    DeviceProcess,
    DeviceUnreadable,
    DriverUnavailable,
    UnknownDevice,
    Utilization,
)
from yard_agent.nvml_driver import NvmlDriver
from yard_agent.simulated_driver import SimulatedDriver, parse_template

GB = 10**9


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


@dataclass
class Gpu:
    """`errors`: call name -> NVML error code."""

    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    compute: list[tuple[int, int | None]] = field(default_factory=list)
    graphics: list[tuple[int, int | None]] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)


class Nvml:
    """The calls of `pynvml` that the driver makes, on GPUs that a test describes."""

    NVMLError = NVMLError

    def __init__(self, *gpus: Gpu, init_error: int | None = None) -> None:
        self.gpus = list(gpus)
        self.init_error = init_error
        self.shut_down = False

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            raise NVMLError(self.init_error)

    def nvmlShutdown(self) -> None:
        self.shut_down = True

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        return self._answer("handle", self.gpus[index], self.gpus[index])

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Gpu:
        raise NVMLError(15)  # the trap: one lost GPU makes it fail for all

    def nvmlDeviceGetUUID(self, gpu: Gpu) -> str:
        return self._answer("uuid", gpu, gpu.uuid)

    def nvmlDeviceGetName(self, gpu: Gpu) -> str:
        return self._answer("name", gpu, gpu.name)

    def nvmlDeviceGetMemoryInfo(self, gpu: Gpu, version: int | None = None) -> Any:
        if version is not None:
            return self._answer("memory_v2", gpu, SimpleNamespace(total=80 * GB, used=GB, free=78 * GB, reserved=GB))
        return self._answer("memory", gpu, SimpleNamespace(total=80 * GB, used=2 * GB, free=78 * GB))

    def nvmlDeviceGetUtilizationRates(self, gpu: Gpu) -> Any:
        return self._answer("utilization", gpu, SimpleNamespace(gpu=97, memory=41))

    def nvmlDeviceGetComputeRunningProcesses_v3(self, gpu: Gpu) -> list[Any]:
        return self._answer("compute", gpu, _processes(gpu.compute))

    def nvmlDeviceGetComputeRunningProcesses_v2(self, gpu: Gpu) -> list[Any]:
        return self._answer("compute_v2", gpu, _processes(gpu.compute))

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, gpu: Gpu) -> list[Any]:
        return self._answer("graphics", gpu, _processes(gpu.graphics))

    def _answer(self, name: str, gpu: Gpu, value: Any) -> Any:
        if name in gpu.errors:
            raise NVMLError(gpu.errors[name])
        return value


def _processes(found: list[tuple[int, int | None]]) -> list[Any]:
    return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in found]


def test_devices_as_nvml_names_them() -> None:
    driver = NvmlDriver(Nvml(Gpu("GPU-a"), Gpu("GPU-b", name="NVIDIA L40S")))
    assert driver.devices() == [
        DeviceInfo("GPU-a", 0, "NVIDIA H100 80GB HBM3", 80 * GB),
        DeviceInfo("GPU-b", 1, "NVIDIA L40S", 80 * GB),
    ]
    assert driver.visible_devices(["GPU-b", "GPU-a"]) == "GPU-b,GPU-a"
    with pytest.raises(UnknownDevice):
        driver.visible_devices(["GPU-c"])


@pytest.mark.parametrize("call", ["handle", "uuid", "name", "memory_v2"])
@pytest.mark.parametrize(("code", "words"), [(15, "lost"), (16, "requires a reset"), (999, "999")])
def test_a_gpu_that_falls_away_keeps_its_name_and_hides_no_other(call: str, code: int, words: str) -> None:
    nvml = Nvml(Gpu("GPU-a"), Gpu("GPU-b"), Gpu("GPU-c"))
    driver = NvmlDriver(nvml)
    nvml.gpus[1].errors[call] = code
    first, sick, last = driver.devices()
    assert (first.healthy, last.healthy) == (True, True)
    assert (sick.uuid, sick.model, sick.memory_bytes) == ("GPU-b", "NVIDIA H100 80GB HBM3", 80 * GB)
    assert not sick.healthy
    assert words in (sick.detail or "")
    assert driver.processes("GPU-a") == []
    nvml.gpus[1].errors.clear()
    assert all(device.healthy for device in driver.devices())


def test_a_gpu_lost_before_the_start_is_known_from_before() -> None:
    nvml = Nvml(Gpu("GPU-a"), Gpu("GPU-b", errors={"handle": 15}))
    known = DeviceInfo("GPU-b", 1, "NVIDIA H100 80GB HBM3", 80 * GB)
    (_, device) = NvmlDriver(nvml, remembered=[known]).devices()
    assert (device.uuid, device.model, device.healthy) == ("GPU-b", known.model, False)
    (_, device) = NvmlDriver(nvml).devices()
    assert (device.uuid, device.healthy) == ("GPU-unreadable-1", False)


def test_processes_of_every_kind_with_memory_where_known() -> None:
    nvml = Nvml(Gpu("GPU-a", compute=[(10, 5 * GB), (11, None)], graphics=[(12, 1), (10, 7)]))
    found = NvmlDriver(nvml).processes("GPU-a")
    assert sorted(found, key=lambda process: process.pid) == [
        DeviceProcess(10, 5 * GB),
        DeviceProcess(11, None),
        DeviceProcess(12, 1),
    ]


@pytest.mark.parametrize("call", ["compute", "graphics"])
@pytest.mark.parametrize("code", [4, 7, 15, 16, 999])
def test_processes_that_cannot_be_told_are_not_taken_as_none(call: str, code: int) -> None:
    driver = NvmlDriver(Nvml(Gpu("GPU-a", errors={call: code})))
    with pytest.raises(DeviceUnreadable):
        driver.processes("GPU-a")


def test_processes_not_supported_at_all_are_unreadable_but_graphics_may_be_absent() -> None:
    with pytest.raises(DeviceUnreadable):
        NvmlDriver(Nvml(Gpu("GPU-a", errors={"compute": 3}))).processes("GPU-a")
    assert NvmlDriver(Nvml(Gpu("GPU-a", errors={"graphics": 3}))).processes("GPU-a") == []


def test_a_lost_gpu_is_unreadable_and_an_unknown_one_unknown() -> None:
    driver = NvmlDriver(Nvml(Gpu("GPU-a"), Gpu("GPU-b", errors={"handle": 15})), [DeviceInfo("GPU-b", 1, "m", 1)])
    with pytest.raises(DeviceUnreadable, match="lost"):
        driver.processes("GPU-b")
    with pytest.raises(UnknownDevice):
        driver.processes("GPU-c")


@pytest.mark.parametrize("code", [13, 25])
def test_old_drivers_are_asked_with_old_structures(code: int) -> None:
    nvml = Nvml(Gpu("GPU-a", compute=[(10, 1)], errors={"memory_v2": code, "compute": code}))
    driver = NvmlDriver(nvml)
    assert driver.memory("GPU-a") == DeviceMemory(80 * GB, 2 * GB, 78 * GB, None)
    assert driver.processes("GPU-a") == [DeviceProcess(10, 1)]


def test_what_the_hardware_does_not_say_is_none() -> None:
    nvml = Nvml(Gpu("GPU-a", errors={"utilization": 3, "memory_v2": 3}))
    driver = NvmlDriver(nvml)
    assert driver.utilization("GPU-a") is None
    assert driver.memory("GPU-a") is None
    assert driver.devices()[0].healthy, "not supported is no sickness"
    nvml.gpus[0].errors.clear()
    assert driver.utilization("GPU-a") == Utilization(97, 41)
    assert driver.memory("GPU-a") == DeviceMemory(80 * GB, GB, 78 * GB, GB)


@pytest.mark.parametrize(
    ("code", "words"), [(9, "kernel driver"), (12, "libnvidia-ml"), (18, "upgraded"), (999, "999")]
)
def test_no_usable_nvml_says_what_is_missing(code: int, words: str) -> None:
    with pytest.raises(DriverUnavailable, match=words):
        NvmlDriver(Nvml(init_error=code))


def test_closing_shuts_nvml_down() -> None:
    nvml = Nvml(Gpu("GPU-a"))
    NvmlDriver(nvml).close()
    assert nvml.shut_down


def test_simulated_devices_are_the_same_after_a_restart() -> None:
    one, again, other = (SimulatedDriver("4xA100-40GB", node, lambda _uuid: ()) for node in ("n1", "n1", "n2"))
    assert one.devices() == again.devices()
    uuids = {device.uuid for device in one.devices() + other.devices()}
    assert len(uuids) == 8
    assert all(uuid.startswith("GPU-") for uuid in uuids)
    assert [(device.index, device.model, device.memory_bytes) for device in one.devices()] == [
        (index, "A100-40GB", 40 * GB) for index in range(4)
    ]


def test_simulated_devices_hold_what_they_are_told_and_measure_nothing() -> None:
    driver = SimulatedDriver("2xH100-80GB", "n1", lambda uuid: [7] if uuid == first else [])
    first, second = (device.uuid for device in driver.devices())
    assert driver.processes(first) == [DeviceProcess(7, None)]
    assert driver.processes(second) == []
    assert (driver.utilization(first), driver.memory(first)) == (None, None)
    assert driver.visible_devices([second, first]) == f"{second},{first}"
    with pytest.raises(UnknownDevice):
        driver.processes("GPU-x")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("8xH100-80GB", (8, "H100-80GB", 80 * GB)),
        ("L40S-48GB", (1, "L40S-48GB", 48 * GB)),
        ("2xH100", (2, "H100", 80 * GB)),
        ("1xRTX PRO 6000-96GB", (1, "RTX PRO 6000-96GB", 96 * GB)),
    ],
)
def test_templates(template: str, expected: tuple[int, str, int]) -> None:
    assert parse_template(template) == expected


@pytest.mark.parametrize("template", ["", "0xH100", "65xH100", "8x", "8xH100-80GB-", "x", "-1xH100", "8xH100-0GB"])
def test_templates_that_make_no_sense(template: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_template(template)
