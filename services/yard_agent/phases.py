"""How far the agent is with a task; after its end the journal holds the outcome instead."""

from enum import StrEnum


class Phase(StrEnum):
    PREPARED = "prepared"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
