"""The agent's settings: `YARD_AGENT__…`. One process may serve several nodes, which real fleets do not and demos do."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from yard_domain.names import DEFAULT_CLUSTER, DEFAULT_POOL, NAME_RULE, is_name
from yard_runtime.settings import ServiceSettings, service_config


class NodeSettings(BaseModel):
    """One node. `devices`: `nvml` for this machine's GPUs, or a template such as `8xH100-80GB` to simulate them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    devices: str = "nvml"
    cpus: float | None = Field(default=None, gt=0)
    memory_bytes: int | None = Field(default=None, gt=0)
    labels: dict[str, str] = {}

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        if not is_name(value):
            raise ValueError(f"a node's name is {NAME_RULE}")
        return value

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
    simulated_run_seconds: float = Field(default=0.0, ge=0)
    report_seconds: float = Field(default=5.0, gt=0)
    empty_check_seconds: float = Field(default=0.2, gt=0)
    """How soon a device that was not empty after its task ended is looked at again; later more rarely."""
    command_batch: int = Field(default=500, gt=0)
    publish_batch: int = Field(default=500, gt=0)
    max_output_bytes: int = Field(default=8 << 30, gt=0)
    """A task that has printed more is stopped; looked at with every report."""
    housekeeping_seconds: float = Field(default=60.0, gt=0)
    keep_ended_days: float = Field(default=7.0, ge=0)
    """How long ended tasks are remembered, with their output and scratch folders."""
    keep_ended_newest: int = Field(default=1000, ge=0)
    """So many are remembered however old they are."""

    @field_validator("nodes")
    @classmethod
    def _nodes(cls, value: list[NodeSettings]) -> list[NodeSettings]:
        names = [node.name for node in value]
        if not names or len(set(names)) != len(names):
            raise ValueError("at least one node, each name once")
        return value
