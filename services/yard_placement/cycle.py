"""The pool's cycle: one unit of work under the pool's term."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import structlog

from yard_domain.reasons import Reason
from yard_domain.states import AttemptState
from yard_engine.decide import Blocked, Plan, decide
from yard_engine.snapshot import Pending
from yard_events.types import AttemptBlocked, AttemptGranted
from yard_obs.catalogue import DECISIONS
from yard_obs.metrics import Metrics
from yard_obs.phases import CyclePhases
from yard_placement import repository
from yard_placement.ledger import Allocation, Attempt, Waiting
from yard_placement.lifecycle import advance
from yard_placement.look import Look
from yard_placement.outbox import LedgerClock, Outbox
from yard_placement.placing import config_hash, grant, shape_of, tell_blocked
from yard_placement.pool import Pool, read_pool
from yard_placement.settings import PlacementSettings
from yard_store.unit_of_work import Timer, UnitOfWork

_log = structlog.get_logger("yard.placement")

START_DEADLINE = "start_deadline"
BLOCKED_NOTICE = "blocked_notice"
PRUNE = "prune"
_PRUNE_EVERY = timedelta(hours=1)
_PRUNE_LIMIT = 1000


class PlacementCycle:
    """Moves attempts along and places the pending ones. Serial per pool: its decisions have one order."""

    def __init__(self, settings: PlacementSettings, look: Look, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._decisions = metrics.counter(DECISIONS)
        self._look = look
        self._config = config_hash(settings)

    async def __call__(self, uow: UnitOfWork, scope: str) -> bool:
        """One step; True when there is more to do at once."""
        phases = CyclePhases(self._metrics, "placement")
        # 1. what time has made due
        timers = await uow.take_due_timers(scope)
        await self._due(uow, scope, timers)
        notice = any(timer.kind == BLOCKED_NOTICE for timer in timers)
        outbox = Outbox(LedgerClock(await repository.ledger_clock(uow.connection, scope, uow.now)), uow.now)
        first = outbox.clock.last
        # 2. attempts that something happened to; what they give back is free from here on
        limit = self._settings.attention_limit
        touched = await repository.attempts_wanting_attention(uow.connection, scope, limit)
        phases.lap("look")
        released = await self._advance(uow, scope, touched, outbox)
        phases.lap("advance")
        # 3. the pending set against what is free
        unfinished = False
        if self._look.due or released or notice:
            unfinished = await self._place(uow, scope, outbox, whole=notice)
            uow.after_commit(self._look.again if unfinished else self._look.done)
            phases.lap("place")
        # 4. what was decided, in its order
        for said in outbox.events:
            said.emit(uow)
        if outbox.clock.last != first:
            await repository.set_ledger_clock(uow.connection, scope, outbox.clock.last)
        phases.lap("tell")
        uow.after_commit(lambda: self._record_decisions(outbox))
        return unfinished or len(touched) == limit

    def _record_decisions(self, outbox: Outbox) -> None:
        for said in outbox.events:
            if isinstance(said.event, AttemptGranted):
                self._decisions.add(outcome="granted", reason="none")
            elif isinstance(said.event, AttemptBlocked):
                self._decisions.add(outcome="blocked", reason=said.event.reason)

    async def _advance(self, uow: UnitOfWork, scope: str, touched: list[Attempt], outbox: Outbox) -> list[Allocation]:
        if not touched:
            return []
        allocations = [allocation for attempt in touched for allocation in attempt.allocations]
        nodes = await repository.node_facts(uow.connection, {allocation.node for allocation in allocations})
        live = [allocation for allocation in allocations if allocation.live]
        released: list[Allocation] = []
        for attempt in touched:
            had_deadline = _has_deadline(attempt)
            released += advance(attempt, nodes, outbox, self._settings.stop_grace_seconds)
            if had_deadline and not _has_deadline(attempt):
                uow.clear_timer(scope, START_DEADLINE, attempt.attempt_id)
        await repository.save_progress(uow.connection, touched)
        await repository.save_lives(uow.connection, live)
        await repository.save_commands(uow.connection, outbox.commanded)
        await repository.free_devices(uow.connection, released)
        return released

    async def _place(self, uow: UnitOfWork, scope: str, outbox: Outbox, *, whole: bool) -> bool:
        """Grant what fits and say why the rest waits. True when attempts behind those looked at may fit too."""
        settings = self._settings
        pool = await read_pool(uow.connection, scope)
        glance = min(settings.pending_glance + 2 * pool.free_devices, settings.pending_window)
        limit = settings.pending_window if whole else glance
        waiting = await repository.waiting_attempts(uow.connection, scope, limit)
        plan = _decide(pool, waiting)
        if len(waiting) == limit < settings.pending_window and _leaves_room(pool, plan):
            limit = settings.pending_window
            waiting = await repository.waiting_attempts(uow.connection, scope, limit)
            plan = _decide(pool, waiting)
        await self._grant(uow, scope, plan, pool, outbox)
        by_id = {attempt.attempt_id: attempt for attempt in waiting}
        blocked = [(by_id[answer.attempt_id], answer) for answer in plan.blocked]
        await self._tell(uow, scope, blocked, outbox, more_wait=len(waiting) == limit < settings.pending_window)
        return len(waiting) == limit and bool(plan.placed)

    async def _grant(self, uow: UnitOfWork, scope: str, plan: Plan, pool: Pool, outbox: Outbox) -> None:
        if not plan.placed:
            return
        attempts = await repository.attempts_by_id(uow.connection, [placed.attempt_id for placed in plan.placed])
        for placed in plan.placed:
            attempt = attempts[placed.attempt_id]
            grant(attempt, placed, pool, outbox, self._config)
            if attempt.gang:
                due = uow.now + timedelta(seconds=self._settings.start_deadline_seconds)
                uow.set_timer(scope, START_DEADLINE, attempt.attempt_id, due)
        allocations = [allocation for attempt in attempts.values() for allocation in attempt.allocations]
        await repository.book_devices(uow.connection, allocations)
        await repository.insert_allocations(uow.connection, allocations)
        await repository.save_progress(uow.connection, attempts.values())

    async def _tell(
        self,
        uow: UnitOfWork,
        scope: str,
        blocked: Sequence[tuple[Waiting, Blocked]],
        outbox: Outbox,
        *,
        more_wait: bool,
    ) -> None:
        """Those that a glance did not reach are told with the next notice, which looks at the whole window."""
        seconds = self._settings.blocked_notice_seconds
        told, next_notice = tell_blocked(blocked, outbox, seconds)
        await repository.save_reasons(uow.connection, told)
        if next_notice is None and more_wait:
            next_notice = uow.now + timedelta(seconds=max(seconds, 1.0))
        if next_notice is not None:
            # Whole seconds: one notice each at most, and setting it again never moves it.
            due = datetime.fromtimestamp(int(next_notice.timestamp()) + 1, next_notice.tzinfo)
            uow.set_timer(scope, BLOCKED_NOTICE, str(int(due.timestamp())), due)

    async def _due(self, uow: UnitOfWork, scope: str, timers: Sequence[Timer]) -> None:
        late = [timer.key for timer in timers if timer.kind == START_DEADLINE]
        if late:
            found = await repository.attempts_by_id(uow.connection, late)
            overdue = [attempt for attempt in found.values() if _has_deadline(attempt)]
            for attempt in overdue:
                attempt.stop_reason = attempt.stop_reason or Reason.START_DEADLINE
                attempt.attention = True
            await repository.save_orders(uow.connection, overdue)
        if any(timer.kind == PRUNE for timer in timers):
            before = uow.now - timedelta(seconds=self._settings.keep_ended_seconds)
            gone = await repository.prune(uow.connection, before, _PRUNE_LIMIT)
            _log.info("forgot ended attempts", scope=scope, attempts=gone)
            uow.set_timer(scope, PRUNE, "", uow.now if gone == _PRUNE_LIMIT else uow.now + _PRUNE_EVERY)


def _has_deadline(attempt: Attempt) -> bool:
    return attempt.gang and not attempt.started_sent and attempt.state != AttemptState.ENDED


def _decide(pool: Pool, waiting: Sequence[Waiting]) -> Plan:
    return decide(pool.nodes, [Pending(attempt.attempt_id, shape_of(attempt.tasks)) for attempt in waiting])


def _leaves_room(pool: Pool, plan: Plan) -> bool:
    return pool.free_devices > sum(len(task.device_uuids) for placed in plan.placed for task in placed.tasks)
