"""What placement's commands mean for the journal. Nothing is started or stopped here: that follows what is recorded."""

import re
import socket
from collections.abc import Sequence

import structlog

from yard_agent.driver import GpuDriver, UnknownDevice
from yard_agent.journal import Journal
from yard_agent.journal_rows import JournaledAllocation
from yard_agent.phases import Phase
from yard_agent.task_facts import TaskFacts, Tell
from yard_bus.consumer import receive
from yard_bus.protocol import Record
from yard_domain.errors import Permanent
from yard_domain.reasons import Reason
from yard_domain.states import Outcome
from yard_events.envelope import Envelope
from yard_events.types import PrepareTask, StartTask, StopTask, TaskReady
from yard_obs.tracing import carried_trace
from yard_store.ports import Clock

_log = structlog.get_logger("yard.agent")

# An allocation's id names files, so it must be a plain name.
_ALLOCATION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_LONGEST_GRACE_SECONDS = 86_400.0


class Commands:
    """One node's. `tell` queues an event inside of a transaction of the journal."""

    def __init__(
        self,
        *,
        node: str,
        epoch: str,
        advertise_addr: str,
        journal: Journal,
        driver: GpuDriver,
        facts: TaskFacts,
        clock: Clock,
        tell: Tell,
    ) -> None:
        self._node = node
        self._epoch = epoch
        self._advertise_addr = advertise_addr
        self._journal = journal
        self._driver = driver
        self._facts = facts
        self._clock = clock
        self._tell = tell

    def record(self, records: Sequence[Record]) -> list[str]:
        """Inside of a transaction of the journal; returns the allocations for which something is to be done now."""
        due: dict[str, None] = {}
        foreign = 0
        for record in records:
            try:
                received = receive(record)
            except Permanent as error:
                _log.error("unreadable command", node=self._node, offset=record.offset, error=str(error))
                continue
            command = received.data
            if not isinstance(command, PrepareTask | StartTask | StopTask):
                continue
            if command.epoch != self._epoch:
                foreign += 1
            elif _ALLOCATION_ID.fullmatch(command.allocation_id) is None:
                _log.error("not an allocation id", node=self._node, allocation=command.allocation_id[:200])
            elif self._journal.command_is_new(command.allocation_id, command.command_seq) and self._record(
                command, received.envelope
            ):
                due[command.allocation_id] = None
        if foreign:
            _log.warning("commands of another epoch", node=self._node, dropped=foreign)
        return list(due)

    def _record(self, command: PrepareTask | StartTask | StopTask, envelope: Envelope) -> bool:
        before = self._journal.allocation(command.allocation_id)
        if before is not None and before.ended_at is not None:
            return self._only_note(command, before)
        if isinstance(command, StopTask):
            return self._record_stop(command, before, envelope)
        if before is not None and before.state != Phase.PREPARED:
            # It runs, or is being stopped: a start that comes now would run it again.
            return self._only_note(command, before)
        if isinstance(command, PrepareTask):
            return self._prepare(command, envelope)
        return self._record_start(command, envelope)

    def _only_note(self, command: PrepareTask | StartTask | StopTask, before: JournaledAllocation) -> bool:
        """The command is known now, which the next report says, and changes nothing."""
        self._journal.record_command(command.allocation_id, command.command_seq, state=before.state)
        return False

    def _prepare(self, command: PrepareTask, envelope: Envelope) -> bool:
        addr, port = None, None
        if command.work.task_rank == 0:
            addr, port = self._advertise_addr, free_port(self._advertise_addr)
        self._journal.record_command(
            command.allocation_id,
            command.command_seq,
            state=Phase.PREPARED,
            work=command.work,
            master_addr=addr,
            master_port=port,
            trace=carried_trace(envelope.extra),
            correlation_id=_conversation(envelope),
        )
        if self._has_devices(command):
            self._tell(
                TaskReady(
                    node=self._node,
                    observed_at=self._clock.now(),
                    allocation_id=command.allocation_id,
                    master_addr=addr,
                    master_port=port,
                ),
                self._journal.allocation(command.allocation_id),
            )
        return False

    def _record_start(self, command: StartTask, envelope: Envelope) -> bool:
        self._journal.record_command(
            command.allocation_id,
            command.command_seq,
            state=Phase.STARTING,
            work=command.work,
            master_addr=command.master_addr,
            master_port=command.master_port,
            trace=carried_trace(envelope.extra),
            correlation_id=_conversation(envelope),
        )
        return self._has_devices(command)

    def _has_devices(self, command: PrepareTask | StartTask) -> bool:
        """False: the node has not all of them, and the task has ended without running."""
        try:
            self._driver.visible_devices(list(command.work.device_uuids))
        except UnknownDevice as error:
            self._facts.end_unstarted(command.allocation_id, Outcome.FAILED, Reason.START_FAILED, str(error))
            return False
        return True

    def _record_stop(self, command: StopTask, before: JournaledAllocation | None, envelope: Envelope) -> bool:
        self._journal.record_command(
            command.allocation_id,
            command.command_seq,
            state=Phase.STOPPING,
            # Of one that was told to start, events go on in the trace of that.
            trace=carried_trace(envelope.extra) if before is None else None,
            correlation_id=_conversation(envelope) if before is None else None,
        )
        reason = command.reason if command.reason in set(Reason) else Reason.CANCELLED.value
        grace = min(max(command.grace_seconds, 0.0), _LONGEST_GRACE_SECONDS)
        self._journal.record_stop(command.allocation_id, Phase.STOPPING, reason, grace)
        if before is None or before.state == Phase.PREPARED:
            self._facts.end_unstarted(command.allocation_id, Outcome.STOPPED, Reason(reason), None)
            return False
        return True


def _conversation(envelope: Envelope) -> str:
    return envelope.correlation_id or envelope.id


def free_port(address: str) -> int:
    """A TCP port that is free at this moment on `address`."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
