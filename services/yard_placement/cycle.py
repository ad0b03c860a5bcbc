"""The pool's cycle: one unit of work under the pool's term."""

from datetime import timedelta

import structlog

from yard_domain.reasons import Reason
from yard_domain.states import AttemptState
from yard_placement import repository
from yard_placement.ledger import Allocation, Attempt
from yard_placement.lifecycle import advance
from yard_placement.outbox import LedgerClock, Outbox
from yard_placement.placing import config_hash, place, tell_blocked
from yard_placement.settings import PlacementSettings
from yard_store.unit_of_work import UnitOfWork

_log = structlog.get_logger("yard.placement")

START_DEADLINE = "start_deadline"
BLOCKED_NOTICE = "blocked_notice"
PRUNE = "prune"
_PRUNE_EVERY = timedelta(hours=1)
_PRUNE_LIMIT = 1000


class PlacementCycle:
    """Moves attempts along and places the pending ones. Serial per pool: its decisions have one order."""

    def __init__(self, settings: PlacementSettings) -> None:
        self._settings = settings
        self._config = config_hash(settings)

    async def __call__(self, uow: UnitOfWork, scope: str) -> bool:
        """One step; True when there is more to do at once."""
        settings = self._settings
        # 1. what time has made due
        await self._due_timers(uow, scope)
        outbox = Outbox(LedgerClock(await uow.ledger_time(scope)), uow.now)
        # 2. attempts that something happened to
        touched = await repository.attempts_wanting_attention(uow.connection, scope, settings.attention_limit)
        released = await self._advance(uow, scope, touched, outbox)
        # 3. what they gave back is free from here on
        await repository.free_devices(uow.connection, released)
        # 4. the pending set against what is free
        told, granted, window = await self._place(uow, scope, outbox)
        # 5. the ledger, in bulk
        changed = {attempt.attempt_id: attempt for attempt in [*touched, *granted, *told]}
        await repository.save_attempts(uow.connection, changed.values())
        await repository.save_allocations(uow.connection, [a for attempt in touched for a in attempt.allocations])
        for event in outbox.events:
            uow.emit(event)
        if outbox.events:
            await repository.set_ledger_time(uow.connection, scope, outbox.clock.last)
        full_window = window == settings.pending_window and bool(granted)
        return len(touched) == settings.attention_limit or full_window

    async def _advance(self, uow: UnitOfWork, scope: str, touched: list[Attempt], outbox: Outbox) -> list[Allocation]:
        if not touched:
            return []
        names = {allocation.node for attempt in touched for allocation in attempt.allocations}
        nodes = await repository.node_facts(uow.connection, names)
        released: list[Allocation] = []
        for attempt in touched:
            released += advance(attempt, nodes, outbox, self._settings.stop_grace_seconds)
            if len(attempt.allocations) > 1 and (attempt.started_sent or attempt.state == AttemptState.ENDED):
                uow.clear_timer(scope, START_DEADLINE, attempt.attempt_id)
        return released

    async def _place(self, uow: UnitOfWork, scope: str, outbox: Outbox) -> tuple[list[Attempt], list[Attempt], int]:
        """Returns the attempts told why they wait, those granted, and how many were looked at."""
        pending = await repository.pending_attempts(uow.connection, scope, self._settings.pending_window)
        if not pending:
            return [], [], 0
        nodes = await repository.snapshot(uow.connection, scope)
        facts = await repository.node_facts(uow.connection)
        allocations, blocked = place(pending, nodes, facts, outbox, self._config)
        if allocations:
            await repository.book_devices(uow.connection, allocations)
            await repository.insert_allocations(uow.connection, allocations)
        granted = [attempt for attempt in pending if attempt.allocations]
        for attempt in granted:
            if len(attempt.allocations) > 1:
                due = uow.now + timedelta(seconds=self._settings.start_deadline_seconds)
                uow.set_timer(scope, START_DEADLINE, attempt.attempt_id, due)
        told, next_notice = tell_blocked(blocked, outbox, self._settings.blocked_notice_seconds)
        if next_notice is not None:
            uow.set_timer(scope, BLOCKED_NOTICE, "", next_notice)
        return told, granted, len(pending)

    async def _due_timers(self, uow: UnitOfWork, scope: str) -> None:
        timers = await uow.take_due_timers(scope)
        late = [timer.key for timer in timers if timer.kind == START_DEADLINE]
        if late:
            found = await repository.attempts_by_id(uow.connection, late)
            overdue = [a for a in found.values() if not a.started_sent and a.state != AttemptState.ENDED]
            for attempt in overdue:
                attempt.stop_reason = attempt.stop_reason or Reason.START_DEADLINE
                attempt.attention = True
            await repository.save_attempts(uow.connection, overdue)
        if any(timer.kind == PRUNE for timer in timers):
            before = uow.now - timedelta(seconds=self._settings.keep_ended_seconds)
            gone = await repository.prune(uow.connection, before, _PRUNE_LIMIT)
            _log.info("forgot ended attempts", scope=scope, allocations=gone)
            uow.set_timer(scope, PRUNE, "", uow.now + _PRUNE_EVERY)
