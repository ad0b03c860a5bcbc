"""The spans of time in which an allocation costs something. Pure, exact: instants and integer microseconds.

granted ─▶ open ─ released ─▶ closed for good
            │ ▲
 lost, up to│ │recovered, from its ledger time on: the next span
 the last   ▼ │
 contact   closed ─ released ─▶ closed for good, nothing added
"""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta

from yard_domain.errors import Permanent
from yard_events.types import AttemptGranted, GrantedAllocation, UsageRecorded

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Span:
    """Closed: the time [since, until) of an allocation. `number` counts from 1 within it."""

    number: int
    since: datetime
    until: datetime

    @property
    def micros(self) -> int:
        return (self.until - self.since) // _MICROSECOND


@dataclass(slots=True)
class Account:
    """What an allocation costs. Same fields as `tables.AccountRow`.

    `devices`: model → number of devices. `spans`: how many were opened so far; `open_since`: the start of the open one.
    `ledger_time`: of the last fact that opened or closed a span; an older one was already applied.
    """

    allocation_id: str
    project_id: str
    queue: str
    job_id: str
    attempt: int
    devices: dict[str, int]
    spans: int
    open_since: datetime | None
    ledger_time: datetime
    released: bool

    def lose(self, ledger_time: datetime, last_contact: datetime) -> Span | None:
        """Close at the last contact, but never before the span began nor after the loss was decided; None: a repeat."""
        if self.open_since is None or ledger_time <= self.ledger_time:
            return None
        return self._close(min(max(last_contact, self.open_since), ledger_time), ledger_time)

    def recover(self, ledger_time: datetime) -> bool:
        """Open the next span; False: a repeat, or a late fact about what was released since."""
        if self.released or self.open_since is not None or ledger_time <= self.ledger_time:
            return False
        self.spans += 1
        self.open_since = self.ledger_time = ledger_time
        return True

    def release(self, ledger_time: datetime) -> Span | None:
        """Close for good; None: nothing was open (lost and not recovered), or a repeat.

        Raises Permanent for a release before the span's own start: placement's clock never goes back.
        """
        if self.released:
            return None
        if ledger_time < self.ledger_time:
            raise Permanent(f"{self.allocation_id} was released at {ledger_time}, before {self.ledger_time}")
        self.released = True
        return self._close(ledger_time, ledger_time) if self.open_since is not None else None

    def _close(self, until: datetime, ledger_time: datetime) -> Span:
        assert self.open_since is not None
        span = Span(self.spans, self.open_since, until)
        self.open_since = None
        self.ledger_time = ledger_time
        return span

    def lines(self, span: Span) -> list[UsageRecorded]:
        """One usage line per model of the allocation's devices."""
        return [
            UsageRecorded(
                line_id=line_id(self.allocation_id, model, span.number),
                project_id=self.project_id,
                queue=self.queue,
                job_id=self.job_id,
                attempt=self.attempt,
                allocation_id=self.allocation_id,
                model=model,
                devices=count,
                since=span.since,
                until=span.until,
                device_micros=count * span.micros,
            )
            for model, count in sorted(self.devices.items())
        ]


def line_id(allocation_id: str, model: str, span: int) -> str:
    """The same for the same span whenever it is computed, so that a line read twice is recognised. Allocation ids hold
    no colon, so no two lines share an id whatever a model is called."""
    return f"{allocation_id}:{span}:{model}"


def open_account(granted: AttemptGranted, allocation: GrantedAllocation) -> Account:
    """The account of a new allocation. Raises Permanent when it holds no devices, or one twice."""
    uuids = {device.uuid for device in allocation.devices}
    if not uuids or len(uuids) < len(allocation.devices):
        raise Permanent(
            f"{allocation.allocation_id} was granted {len(allocation.devices)} devices, {len(uuids)} different"
        )
    if ":" in allocation.allocation_id or not all(device.model for device in allocation.devices):
        raise Permanent(f"{allocation.allocation_id!r}: ids hold no colon, and every device has a model")
    return Account(
        allocation_id=allocation.allocation_id,
        project_id=granted.project_id,
        queue=granted.queue,
        job_id=granted.job_id,
        attempt=granted.attempt,
        devices=dict(Counter(device.model for device in allocation.devices)),
        spans=1,
        open_since=granted.ledger_time,
        ledger_time=granted.ledger_time,
        released=False,
    )
