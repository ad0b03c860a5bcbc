"""Accepting jobs: group commit.

While one transaction runs, the submissions that arrive are collected, and the next transaction takes them all: one job
alone pays one commit, three hundred a second share a few. Each caller gets a result of its own.
"""

import asyncio
import hashlib
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import sqlalchemy as sa
import structlog
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.exc import DBAPIError

from yard_domain.errors import Conflict, Retryable
from yard_domain.states import JobState
from yard_events.job_document import JobDocument
from yard_events.types import SubmitJob
from yard_gateway.database import take_numbers
from yard_gateway.tables import IDEMPOTENCY, JOB_COUNTER, JOBS
from yard_obs.tracing import TraceHeaders
from yard_store.bulk import bulk_insert
from yard_store.unit_of_work import Store, UnitOfWork

_log = structlog.get_logger("yard.gateway")

BATCH_BYTES = 4 * 1024 * 1024
_KEYS = sa.text(
    "SELECT i.actor, i.key, i.digest, i.job_id FROM gateway.idempotency i "
    "JOIN unnest(CAST(:actors AS text[]), CAST(:keys AS text[])) AS wanted(actor, key) "
    "ON i.actor = wanted.actor AND i.key = wanted.key"
).bindparams(sa.bindparam("actors", type_=ARRAY(sa.Text)), sa.bindparam("keys", type_=ARRAY(sa.Text)))


class KeyReused(Exception):
    """The idempotency key stands for another document."""


class Overloaded(Retryable):
    """More submissions wait than may."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A validated job document and who sends it. `canonical` is its one JSON form, whatever it was written in.

    `trace`: the context of its request. Another task stores it, together with others.
    """

    document: JobDocument
    canonical: bytes
    actor: str
    idempotency_key: str | None
    trace: TraceHeaders = field(default_factory=dict[str, str], compare=False)

    def digest(self) -> str:
        """SHA-256 of the document with all keys in order: neither JSON or YAML, nor the order of fields, matters."""
        ordered = json.dumps(json.loads(self.canonical), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(ordered.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Accepted:
    """`created` is False when the idempotency key had stood for this job already; `submitted_at` is then unknown."""

    job_id: str
    created: bool
    submitted_at: datetime | None


@dataclass(frozen=True, slots=True)
class _Waiting:
    submission: Submission
    result: asyncio.Future[Accepted]


class SubmitBatcher:
    """`submit` from any number of requests; `run` is the one worker that writes."""

    def __init__(self, store: Store, *, batch_limit: int, queue_limit: int, timeout_seconds: float = 30.0) -> None:
        self._store = store
        self._batch_limit = batch_limit
        self._queue_limit = queue_limit
        self._timeout_seconds = timeout_seconds
        self._waiting: deque[_Waiting] = deque()
        self._wake = asyncio.Event()

    async def submit(self, submission: Submission) -> Accepted:
        """Store the job and send SubmitJob, once. Raises KeyReused, Overloaded, or Retryable: when the connection is
        lost at the commit nobody knows its outcome, and the same idempotency key finds out."""
        if len(self._waiting) >= self._queue_limit:
            raise Overloaded("too many submissions wait to be stored")
        waiting = _Waiting(submission, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._wake.set()
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await waiting.result
        except TimeoutError:
            raise Retryable("the database did not answer in time") from None

    async def run(self) -> None:
        """Write batches until cancelled; whoever still waits then gets Retryable."""
        try:
            while True:
                await self._wake.wait()
                batch = self._take()
                if not batch:
                    self._wake.clear()
                    continue
                await self._serve(batch)
        finally:
            for waiting in self._waiting:
                _fail(waiting, Retryable("the gateway is stopping"))
            self._waiting.clear()

    def _take(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        size = 0
        while self._waiting and len(batch) < self._batch_limit and size < BATCH_BYTES:
            waiting = self._waiting.popleft()
            if not waiting.result.done():  # the caller went away before anything was written
                batch.append(waiting)
                size += len(waiting.submission.canonical)
        return batch

    async def _serve(self, batch: Sequence[_Waiting]) -> None:
        try:
            outcomes = await self._write(batch)
        except Retryable as error:
            for waiting in batch:
                _fail(waiting, error)
            return
        except DBAPIError as error:  # what one submission did to the database is not the others' fault
            _log.error("submission refused by the database", batch=len(batch), exc_info=error)
            if len(batch) == 1:
                _fail(batch[0], error)
            else:
                for waiting in batch:
                    await self._serve([waiting])
            return
        except BaseException:
            for waiting in batch:
                _fail(waiting, Retryable("the submission was interrupted"))
            raise
        for waiting, outcome in zip(batch, outcomes, strict=True):
            if waiting.result.done():
                continue
            if isinstance(outcome, Accepted):
                waiting.result.set_result(outcome)
            else:
                waiting.result.set_exception(outcome)

    async def _write(self, batch: Sequence[_Waiting]) -> list[Accepted | KeyReused]:
        submissions = [waiting.submission for waiting in batch]
        while True:
            try:
                async with self._store.unit_of_work() as uow:
                    return await _accept(uow, submissions)
            except Conflict as error:  # another gateway stored one of the keys meanwhile: now it can be read
                _log.info("submitting again", error=str(error))


async def _accept(uow: UnitOfWork, submissions: Sequence[Submission]) -> list[Accepted | KeyReused]:
    known = await _known_keys(uow, submissions)
    outcomes: list[Accepted | KeyReused] = []
    fresh: list[tuple[str, Submission, str]] = []
    for submission in submissions:
        digest = submission.digest() if submission.idempotency_key is not None else ""
        slot = (submission.actor, submission.idempotency_key)
        if slot in known:
            stored_digest, job_id = known[slot]
            outcomes.append(Accepted(job_id, False, None) if stored_digest == digest else KeyReused())
            continue
        job_id = uow.new_id("job")
        if submission.idempotency_key is not None:
            known[slot] = (digest, job_id)
        fresh.append((job_id, submission, digest))
        outcomes.append(Accepted(job_id, True, uow.now))
    if fresh:
        await _store(uow, fresh)
    return outcomes


async def _known_keys(
    uow: UnitOfWork, submissions: Sequence[Submission]
) -> dict[tuple[str, str | None], tuple[str, str]]:
    keyed = [submission for submission in submissions if submission.idempotency_key is not None]
    if not keyed:
        return {}
    found = await uow.connection.execute(
        _KEYS,
        {"actors": [item.actor for item in keyed], "keys": [item.idempotency_key for item in keyed]},
    )
    return {(row.actor, row.key): (row.digest, row.job_id) for row in found}


async def _store(uow: UnitOfWork, fresh: Sequence[tuple[str, Submission, str]]) -> None:
    keys = [
        {
            "actor": submission.actor,
            "key": submission.idempotency_key,
            "digest": digest,
            "job_id": job_id,
            "created_at": uow.now,
        }
        for job_id, submission, digest in fresh
        if submission.idempotency_key is not None
    ]
    if await bulk_insert(uow.connection, IDEMPOTENCY, keys, ignore_existing=True) != len(keys):
        raise Conflict("an idempotency key was stored by another gateway meanwhile")
    first = await take_numbers(uow.connection, JOB_COUNTER, len(fresh))
    rows = [_job_row(job_id, submission, first + index, uow.now) for index, (job_id, submission, _) in enumerate(fresh)]
    await bulk_insert(uow.connection, JOBS, rows)
    for job_id, submission, _ in fresh:
        document = submission.document
        uow.emit(
            SubmitJob(
                job_id=job_id,
                project_id=document.project,
                spec=document,
                submitted_by=submission.actor,
                submitted_at=uow.now,
            ),
            trace=submission.trace,
        )


def _job_row(job_id: str, submission: Submission, seq: int, now: datetime) -> dict[str, object]:
    document = submission.document
    return {
        "job_id": job_id,
        "seq": seq,
        "name": document.name,
        "project": document.project,
        "queue": document.queue,
        "tier": document.tier.value,
        "priority": document.priority,
        "state": JobState.SUBMITTED.value,
        "attempt": 0,
        "tasks": document.tasks.model_dump_json(),
        "document": submission.canonical.decode(),
        "labels": document.labels,
        "submitted_by": submission.actor,
        "submitted_at": now,
        "places": "[]",
        "agents": "{}",
        "task_ends": "[]",
        "fact_offset": -1,
    }


def _fail(waiting: _Waiting, error: Exception) -> None:
    if not waiting.result.done():
        waiting.result.set_exception(error)
