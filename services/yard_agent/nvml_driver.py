"""GPUs through NVML (`nvidia-ml-py`). Every call may fail for one device alone; each failure stays with its device.

Handles are taken by index: taking one by UUID initialises other GPUs, and raises for the lost one among them.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol, cast

from yard_agent.driver import (
    DeviceInfo,
    DeviceMemory,
    DeviceProcess,
    DeviceUnreadable,
    DriverUnavailable,
    UnknownDevice,
    Utilization,
)

NOT_SUPPORTED = 3
NO_PERMISSION = 4
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18
ARGUMENT_VERSION_MISMATCH = 25
_ABSENT = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH})
_MEMORY_V2 = 0x02000028  # nvmlMemory_v2: the size of its structure and its version

_DETAILS = {
    NO_PERMISSION: "the agent has no permission to read the device",
    GPU_IS_LOST: "the GPU is lost (fallen off the bus); the node needs a reboot",
    RESET_REQUIRED: "the GPU requires a reset",
}
_UNAVAILABLE = {
    DRIVER_NOT_LOADED: "the NVIDIA kernel driver is not loaded",
    LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 is not on this machine; install the NVIDIA driver",
    LIB_RM_VERSION_MISMATCH: "the NVIDIA driver was upgraded underneath; reboot, or reload it and restart the agent",
}


class Nvml(Protocol):
    """The part of the `pynvml` module that is used here."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...
    def nvmlDeviceGetUUID(self, handle: Any) -> str: ...
    def nvmlDeviceGetName(self, handle: Any) -> str: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Any, version: int | None = None) -> Any: ...
    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any: ...
    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any) -> list[Any]: ...
    def nvmlDeviceGetComputeRunningProcesses_v2(self, handle: Any) -> list[Any]: ...
    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle: Any) -> list[Any]: ...


def load_nvml() -> Nvml:
    """The `pynvml` module. Raises DriverUnavailable that names the package when it is not installed."""
    try:
        import pynvml  # pyright: ignore[reportMissingTypeStubs]  the package has none
    except ImportError as error:
        raise DriverUnavailable("the Python package nvidia-ml-py is missing: install gpuyard[agent]") from error
    return cast(Nvml, pynvml)


class NvmlDriver:
    """Initialises NVML and owns it until `close`. `remembered` are devices as an earlier run saw them: a GPU that is
    lost before NVML could name it is then still known by its index.

    Raises DriverUnavailable when there is no working NVML.
    """

    def __init__(self, nvml: Nvml, remembered: Iterable[DeviceInfo] = ()) -> None:
        self._nvml = nvml
        self._known = {device.index: device for device in remembered}
        self._handles: dict[str, Any] = {}
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            code = _code(error)
            raise DriverUnavailable(f"NVML: {_UNAVAILABLE.get(code, str(error))}") from error
        self.devices()

    def devices(self) -> list[DeviceInfo]:
        try:
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            raise DriverUnavailable(f"NVML: {_UNAVAILABLE.get(_code(error), str(error))}") from error
        return [self._device(index) for index in range(count)]

    def processes(self, uuid: str) -> list[DeviceProcess]:
        handle = self._handle(uuid)
        nvml = self._nvml
        try:
            compute = self._first_of(
                lambda: nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle),
                lambda: nvml.nvmlDeviceGetComputeRunningProcesses_v2(handle),
            )
        except nvml.NVMLError as error:
            raise DeviceUnreadable(f"{uuid}: {_detail(error)}") from error
        try:
            graphics = nvml.nvmlDeviceGetGraphicsRunningProcesses_v3(handle)
        except nvml.NVMLError as error:
            if _code(error) not in _ABSENT:  # a device without graphics has none; any other failure hides some
                raise DeviceUnreadable(f"{uuid}: {_detail(error)}") from error
            graphics = []
        found = {process.pid: process.usedGpuMemory for process in [*graphics, *compute]}
        return [DeviceProcess(pid, memory) for pid, memory in found.items()]

    def utilization(self, uuid: str) -> Utilization | None:
        handle = self._handle(uuid)
        try:
            rates = self._nvml.nvmlDeviceGetUtilizationRates(handle)
        except self._nvml.NVMLError:
            return None
        if rates.gpu is None or rates.memory is None:
            return None
        return Utilization(int(rates.gpu), int(rates.memory))

    def memory(self, uuid: str) -> DeviceMemory | None:
        try:
            return self._memory(self._handle(uuid))
        except self._nvml.NVMLError:
            return None

    def visible_devices(self, uuids: list[str]) -> str:
        for uuid in uuids:
            if not any(device.uuid == uuid for device in self._known.values()):
                raise UnknownDevice(f"no device {uuid} on this node")
        return ",".join(uuids)

    def close(self) -> None:
        self._handles.clear()
        self._nvml.nvmlShutdown()

    def _device(self, index: int) -> DeviceInfo:
        """One device; what cannot be read is taken from what was known of it, and makes it unhealthy."""
        known = self._known.get(index) or DeviceInfo(f"GPU-unreadable-{index}", index, "unknown", 0)
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = nvml.nvmlDeviceGetUUID(handle)
        except nvml.NVMLError as error:
            self._handles.pop(known.uuid, None)
            return DeviceInfo(known.uuid, index, known.model, known.memory_bytes, False, _detail(error))
        self._handles[uuid] = handle
        if known.uuid != uuid:
            known = DeviceInfo(uuid, index, "unknown", 0)
        model, memory_bytes, detail = known.model, known.memory_bytes, None
        try:
            model = nvml.nvmlDeviceGetName(handle)
            memory = self._memory(handle)
            memory_bytes = memory.total_bytes if memory is not None else memory_bytes
        except nvml.NVMLError as error:
            detail = _detail(error)
        device = DeviceInfo(uuid, index, model, memory_bytes, detail is None, detail)
        self._known[index] = device
        return device

    def _memory(self, handle: Any) -> DeviceMemory | None:
        nvml = self._nvml
        try:
            info = self._first_of(
                lambda: nvml.nvmlDeviceGetMemoryInfo(handle, _MEMORY_V2),
                lambda: nvml.nvmlDeviceGetMemoryInfo(handle),
            )
        except nvml.NVMLError as error:
            if _code(error) in _ABSENT:  # devices that share the machine's memory have none of their own
                return None
            raise
        return DeviceMemory(info.total, info.used, info.free, getattr(info, "reserved", None))

    def _first_of(self, newer: Callable[[], Any], older: Callable[[], Any]) -> Any:
        """Old drivers do not know the newer structures."""
        try:
            return newer()
        except self._nvml.NVMLError as error:
            if _code(error) not in (FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH):
                raise
        return older()

    def _handle(self, uuid: str) -> Any:
        if uuid not in self._handles:
            device = next((device for device in self.devices() if device.uuid == uuid), None)
            if device is None:
                raise UnknownDevice(f"no device {uuid} on this node")
            if uuid not in self._handles:
                raise DeviceUnreadable(f"{uuid}: {device.detail}")
        return self._handles[uuid]


def _code(error: Exception) -> int:
    return int(getattr(error, "value", -1))


def _detail(error: Exception) -> str:
    code = _code(error)
    return _DETAILS.get(code, f"NVML error {code}: {error}")
