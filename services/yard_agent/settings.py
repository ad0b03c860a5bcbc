"""The agent's settings: `YARD_AGENT__…`. One process may serve several nodes, which real fleets do not and demos do."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from yard_domain.names import DEFAULT_CLUSTER, DEFAULT_POOL
from yard_runtime.settings import ServiceSettings, service_config


class NodeSettings(BaseModel):
    """One node. `devices`: `nvml` for this machine's GPUs, or a template such as `8xH100-80GB` to simulate them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    devices: str = "nvml"
    cpus: float | None = Field(default=None, gt=0)
    memory_bytes: int | None = Field(default=None, gt=0)
    labels: dict[str, str] = {}

    @property
    def simulated(self) -> bool:
        return self.devices != "nvml"


class AgentSettings(ServiceSettings):
    model_config = service_config("agent")

    data_dir: Path
    nodes: list[NodeSettings]
    cluster: str = DEFAULT_CLUSTER
    pool: str = DEFAULT_POOL
    listen: str
    """Where this agent serves task output: `unix:/path` or `host:port`."""
    advertise_url: str
    """How the gateway reaches `listen`."""
    advertise_addr: str = "127.0.0.1"
    """The address at which tasks of a gang reach one another on this node."""
    executor: Literal["process", "simulated"] = "process"
    simulated_run_seconds: float = 0.0
    report_seconds: float = 5.0
    empty_check_seconds: float = 0.2
    command_batch: int = 500
    publish_batch: int = 500
    keep_ended_days: float = 7.0
    keep_ended_newest: int = 1000
