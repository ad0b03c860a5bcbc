"""Placement's decisions, folded into accounts and usage lines."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

import structlog

from yard_billing import repository
from yard_billing.spans import Account, Span, open_account
from yard_bus.consumer import Received
from yard_domain.errors import Permanent
from yard_events.envelope import Envelope
from yard_events.types import AllocationReleased, AttemptGranted, AttemptLost, AttemptRecovered, UsageRecorded
from yard_obs.metrics import Counter
from yard_store.unit_of_work import UnitOfWork

_log = structlog.get_logger("yard.billing")

_BillingFact = AttemptGranted | AllocationReleased | AttemptLost | AttemptRecovered


async def handle_decisions(batch: Sequence[Received], uow: UnitOfWork, *, billed: Counter | None = None) -> None:
    """Granted, lost, recovered, released. At most three statements a batch. Raises Permanent for nonsense."""
    facts = [(received.data, received.envelope) for received in batch if isinstance(received.data, _BillingFact)]
    if not facts:
        return
    concerned = [allocation_id for fact, _ in facts for allocation_id in _allocation_ids(fact)]
    fold = _Fold(await repository.accounts(uow.connection, concerned))
    for fact, envelope in facts:
        fold.apply(fact, envelope)

    changed = [fold.accounts[allocation_id] for allocation_id in sorted(fold.changed)]
    await repository.save_accounts(uow.connection, changed)
    await repository.insert_lines(uow.connection, [(line, span) for line, span, _ in fold.lines])
    for line, _, cause in fold.lines:
        uow.emit(line, cause=cause)
    if billed is not None:
        uow.after_commit(lambda: _count([line for line, _, _ in fold.lines], billed))


def _count(lines: Iterable[UsageRecorded], billed: Counter) -> None:
    for line in lines:
        billed.add(line.device_micros / 1e6, project=line.project_id, model=line.model)


def _allocation_ids(fact: _BillingFact) -> Iterator[str]:
    match fact:
        case AttemptGranted():
            yield from (allocation.allocation_id for allocation in fact.allocations)
        case AllocationReleased():
            yield fact.allocation_id
        case AttemptLost() | AttemptRecovered():
            yield from fact.allocation_ids


class _Fold:
    """One batch in memory: accounts as loaded and then changed, and the lines that closed spans became."""

    def __init__(self, accounts: dict[str, Account]) -> None:
        self.accounts = accounts
        self.changed: set[str] = set()
        self.lines: list[tuple[UsageRecorded, int, Envelope]] = []

    def apply(self, fact: _BillingFact, cause: Envelope) -> None:
        _zoned("ledger_time", fact.ledger_time)
        match fact:
            case AttemptGranted():
                self._grant(fact)
            case AllocationReleased():
                for account in self._known(fact):
                    was_released = account.released
                    self._closed(account, account.release(fact.ledger_time), cause)
                    if not was_released:
                        self.changed.add(account.allocation_id)
            case AttemptLost():
                _zoned("last_contact", fact.last_contact)
                for account in self._known(fact):
                    self._closed(account, account.lose(fact.ledger_time, fact.last_contact), cause)
            case AttemptRecovered():
                for account in self._known(fact):
                    if account.recover(fact.ledger_time):
                        self.changed.add(account.allocation_id)

    def _grant(self, fact: AttemptGranted) -> None:
        if not fact.allocations:
            raise Permanent(f"{fact.attempt_id} was granted nothing")
        for allocation in fact.allocations:
            account = open_account(fact, allocation)
            known = self.accounts.setdefault(account.allocation_id, account)
            if known is account:
                self.changed.add(account.allocation_id)
            elif (known.job_id, known.attempt) != (account.job_id, account.attempt):
                raise Permanent(f"{account.allocation_id} belongs to {known.job_id}, not to {account.job_id}")

    def _known(self, fact: _BillingFact) -> Iterator[Account]:
        for allocation_id in _allocation_ids(fact):
            account = self.accounts.get(allocation_id)
            if account is not None:
                yield account
            else:
                # Not parked: that would stop the bills of the whole pool. The audit (INV-7) keeps reporting it.
                _log.error("allocation was never granted here", allocation=allocation_id, fact=fact.TYPE)

    def _closed(self, account: Account, span: Span | None, cause: Envelope) -> None:
        if span is None:
            return
        self.changed.add(account.allocation_id)
        self.lines += [(line, span.number, cause) for line in account.lines(span)]


def _zoned(name: str, time: datetime) -> None:
    if time.tzinfo is None:
        raise Permanent(f"{name} {time} has no zone")
