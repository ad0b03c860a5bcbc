"""GPUs of a machine that has none: they hold what the tasks they were given to hold."""

import hashlib
import re
import uuid
from collections.abc import Callable, Iterable

from yard_agent.driver import DeviceInfo, DeviceMemory, DeviceProcess, UnknownDevice, Utilization
from yard_domain.quantities import parse_memory_bytes

_TEMPLATE = re.compile(r"(?:(\d+)x)?([A-Za-z][A-Za-z0-9._ -]*?[A-Za-z0-9])(?:-(\d+)GB)?")
_DEFAULT_GB = 80
MAX_DEVICES = 64


class SimulatedDriver:
    """`template` as in `8xH100-80GB`, `4xA100-40GB`, `L40S-48GB`; the model is its name part with the size.

    UUIDs depend on node name and index only, so a restart finds the same devices. `processes_on` gives the pids that
    hold a device; utilization and memory in use are not simulated and therefore None.
    """

    def __init__(self, template: str, node: str, processes_on: Callable[[str], Iterable[int]]) -> None:
        count, model, memory_bytes = parse_template(template)
        self._processes_on = processes_on
        self._devices = {
            device.uuid: device
            for device in (
                DeviceInfo(_uuid(node, index), index, model, memory_bytes, healthy=True) for index in range(count)
            )
        }

    def devices(self) -> list[DeviceInfo]:
        return list(self._devices.values())

    def processes(self, uuid: str) -> list[DeviceProcess]:
        self._known(uuid)
        return [DeviceProcess(pid, None) for pid in self._processes_on(uuid)]

    def utilization(self, uuid: str) -> Utilization | None:
        self._known(uuid)
        return None

    def memory(self, uuid: str) -> DeviceMemory | None:
        self._known(uuid)
        return None

    def visible_devices(self, uuids: list[str]) -> str:
        for device in uuids:
            self._known(device)
        return ",".join(uuids)

    def close(self) -> None:
        pass

    def _known(self, uuid: str) -> DeviceInfo:
        device = self._devices.get(uuid)
        if device is None:
            raise UnknownDevice(f"no device {uuid} on this node")
        return device


def parse_template(template: str) -> tuple[int, str, int]:
    """(count, model, memory in bytes) of `8xH100-80GB`. GB are decimal, as in the names that vendors print.

    Raises ValueError that says what would be valid.
    """
    match = _TEMPLATE.fullmatch(template.strip())
    count = int(match[1] or 1) if match is not None else 0
    if match is None or not 1 <= count <= MAX_DEVICES:
        raise ValueError(f"expected devices as in 8xH100-80GB, at most {MAX_DEVICES}, not {template!r}")
    size = int(match[3] or _DEFAULT_GB)
    model = f"{match[2]}-{size}GB" if match[3] else match[2]
    return count, model, parse_memory_bytes(f"{size}GB")


def _uuid(node: str, index: int) -> str:
    digest = hashlib.sha256(f"{node}/{index}".encode()).digest()[:16]
    return f"GPU-{uuid.UUID(bytes=digest)}"
