"""Why something waits, was stopped or failed: one closed set and one table of human sentences.

The API, the command line, events and metrics all use these codes; nothing else may invent one.
"""

from enum import StrEnum


class Reason(StrEnum):
    # why a job waits
    QUOTA = "quota"
    QUOTA_TOO_SMALL = "quota_too_small"
    BEHIND_EARLIER = "behind_earlier"
    INSUFFICIENT_GPU = "insufficient_gpu"
    INSUFFICIENT_CPU = "insufficient_cpu"
    INSUFFICIENT_MEMORY = "insufficient_memory"
    WRONG_MODEL = "wrong_model"
    TOO_LARGE = "too_large"
    NO_NODES = "no_nodes"
    UNHEALTHY = "unhealthy"
    CORDONED = "cordoned"
    RETRY = "retry"
    # why an attempt was stopped
    CANCELLED = "cancelled"
    MAX_RUN_TIME = "max_run_time"
    GANG_MEMBER_FAILED = "gang_member_failed"
    START_DEADLINE = "start_deadline"
    # how a task ended
    EXIT_CODE = "exit_code"
    SIGNAL = "signal"
    COMMAND_NOT_FOUND = "command_not_found"
    COMMAND_NOT_EXECUTABLE = "command_not_executable"
    WORKDIR_MISSING = "workdir_missing"
    START_FAILED = "start_failed"
    OUTPUT_LIMIT = "output_limit"
    KEEPER_LOST = "keeper_lost"
    NODE_LOST = "node_lost"
    NODE_REBOOTED = "node_rebooted"
    AGENT_STATE_LOST = "agent_state_lost"
    INVALID_REQUEST = "invalid_request"


SENTENCES: dict[Reason, str] = {
    Reason.QUOTA: "The queue's GPU quota is in use; the job starts when earlier jobs of the queue end.",
    Reason.QUOTA_TOO_SMALL: "The job asks for more GPUs than its queue's quota; it waits for a higher quota.",
    Reason.BEHIND_EARLIER: "An earlier or more important job waits for the same devices and goes first.",
    Reason.INSUFFICIENT_GPU: "Not enough free GPUs right now; the job starts when enough are released.",
    Reason.INSUFFICIENT_CPU: "GPUs are free, but not enough CPU cores beside them.",
    Reason.INSUFFICIENT_MEMORY: "GPUs are free, but not enough memory beside them.",
    Reason.WRONG_MODEL: "No node of the pool has a GPU of the models asked for.",
    Reason.TOO_LARGE: "No set of nodes of the pool could hold the job even when empty; a smaller request would fit.",
    Reason.NO_NODES: "The pool has no nodes yet.",
    Reason.UNHEALTHY: "The nodes that could hold the job are not healthy.",
    Reason.CORDONED: "The nodes that could hold the job are cordoned.",
    Reason.RETRY: "The attempt failed and the job waits for its next one.",
    Reason.CANCELLED: "Cancelled on request.",
    Reason.MAX_RUN_TIME: "Stopped at its maximum run time.",
    Reason.GANG_MEMBER_FAILED: "Another task of the gang ended abnormally, so the gang was stopped as a whole.",
    Reason.START_DEADLINE: "The tasks did not all start within the deadline, so the attempt was stopped as a whole.",
    Reason.EXIT_CODE: "The command exited.",
    Reason.SIGNAL: "The command was killed by a signal.",
    Reason.COMMAND_NOT_FOUND: "The command does not exist on the node.",
    Reason.COMMAND_NOT_EXECUTABLE: "The command exists on the node but cannot be executed.",
    Reason.WORKDIR_MISSING: "The working directory does not exist on the node.",
    Reason.START_FAILED: "The node could not start the task.",
    Reason.OUTPUT_LIMIT: "The task printed more than its node keeps, so it was stopped.",
    Reason.KEEPER_LOST: "The node's keeper died, so the exit code is unknown; it ran at most once, nothing is left.",
    Reason.NODE_LOST: "The node stopped answering.",
    Reason.NODE_REBOOTED: "The node came back with a new boot id, so nothing of the task is left.",
    Reason.AGENT_STATE_LOST: "The node's agent lost its journal, so the task's fate is unknown.",
    Reason.INVALID_REQUEST: "The request was accepted by the API but cannot be carried out.",
}


def sentence(reason: Reason | str) -> str:
    """The human sentence of a reason code."""
    return SENTENCES[Reason(reason)]
