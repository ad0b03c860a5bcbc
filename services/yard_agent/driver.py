"""What the agent asks of GPUs. An answer that the hardware does not give is None, never zero."""

from dataclasses import dataclass
from typing import Protocol

from yard_domain.errors import Permanent, Retryable


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """`index` counts from 0 in the driver's order and may change with a reboot; `uuid` names the device."""

    uuid: str
    index: int
    model: str
    memory_bytes: int
    healthy: bool = True
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A process that holds the device; the pid is the host's."""

    pid: int
    used_memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Utilization:
    """Shares of the last sampling period (1/6 to 1 s), 0 to 100: any kernel running, memory being read or written.

    100 % only says that something ran all the time, not that the device was used well.
    """

    gpu_percent: int
    memory_percent: int


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    total_bytes: int
    used_bytes: int
    free_bytes: int
    reserved_bytes: int | None = None


class DriverUnavailable(Permanent):
    """There is no usable driver on this node; the message says what is missing."""


class UnknownDevice(Permanent):
    """The node has no device of this UUID."""


class DeviceUnreadable(Retryable):
    """The device does not answer. Nothing may be concluded from it, least of all that it is empty."""


class GpuDriver(Protocol):
    def devices(self) -> list[DeviceInfo]:
        """Every device, sick ones included, by index."""
        ...

    def processes(self, uuid: str) -> list[DeviceProcess]:
        """Every process that holds the device. Raises DeviceUnreadable when that cannot be told, UnknownDevice."""
        ...

    def utilization(self, uuid: str) -> Utilization | None: ...

    def memory(self, uuid: str) -> DeviceMemory | None: ...

    def visible_devices(self, uuids: list[str]) -> str:
        """The value of CUDA_VISIBLE_DEVICES that shows exactly these. Raises UnknownDevice."""
        ...

    def close(self) -> None: ...
