"""Who a node is: what it tells when its agent starts."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil

from yard_agent.driver import GpuDriver
from yard_agent.settings import AgentSettings, NodeSettings
from yard_events.types import DeviceFacts, NodeRegistered

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def read_boot_id() -> str:
    """The kernel's id of this boot."""
    return _BOOT_ID.read_text().strip()


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    settings: AgentSettings
    node: NodeSettings
    boot_id: str
    journal_id: str
    version: str

    @property
    def epoch(self) -> str:
        """Changes when a reboot or a lost journal has ended everything that ran before."""
        return f"{self.boot_id}/{self.journal_id}"

    def registration(self, driver: GpuDriver, now: datetime) -> NodeRegistered:
        """CPU and memory are the machine's unless the settings say otherwise."""
        return NodeRegistered(
            node=self.node.name,
            observed_at=now,
            cluster=self.settings.cluster,
            pool=self.settings.pool,
            boot_id=self.boot_id,
            journal_id=self.journal_id,
            epoch=self.epoch,
            agent_url=self.settings.advertise_url,
            advertise_addr=self.settings.advertise_addr,
            cpus=self.node.cpus or float(psutil.cpu_count() or 1),
            memory_bytes=self.node.memory_bytes or psutil.virtual_memory().total,
            devices=[
                DeviceFacts(
                    uuid=device.uuid,
                    index=device.index,
                    model=device.model,
                    memory_bytes=device.memory_bytes,
                    healthy=device.healthy,
                    detail=device.detail,
                )
                for device in driver.devices()
            ],
            labels=self.node.labels,
            simulated=self.node.simulated,
            agent_version=self.version,
        )
