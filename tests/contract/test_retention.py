"""Retention of the embedded log: what is old and consumed goes, what somebody still needs stays."""

from datetime import timedelta

import sqlalchemy as sa

from yard_bus.retention import apply_retention
from yard_events.base import wrap
from yard_events.registry import JOBS_REQUESTS, QUEUES_STATE, TOPICS
from yard_events.types import CancelJob, QueueState
from yard_runtime.service import Runtime
from yard_store.common_schema import create_common_tables


async def _append(runtime: Runtime, *events: CancelJob | QueueState) -> None:
    now = runtime.clock.now()
    await runtime.bus.publish([wrap(e, event_id=runtime.ids.new("evt"), source="test", time=now) for e in events])


async def _offsets(runtime: Runtime, topic: str) -> list[int]:
    statement = sa.text(
        "SELECT log_offset FROM yard_bus.log JOIN yard_bus.topic USING (topic_id) WHERE name = :name ORDER BY 1"
    )
    async with runtime.engine.connect() as connection:
        return list((await connection.execute(statement, {"name": topic})).scalars())


def _cancel(number: int) -> CancelJob:
    return CancelJob(job_id=f"job-{number}", project_id="p", requested_by="t")


async def test_old_records_go_and_the_rest_keeps_its_offsets(runtime: Runtime) -> None:
    await _append(runtime, *(_cancel(number) for number in range(5)))
    late = runtime.clock.now() + timedelta(seconds=TOPICS[JOBS_REQUESTS].retention_seconds + 1)
    assert await apply_retention(runtime.engine, late) == 5
    await _append(runtime, _cancel(5))
    assert await _offsets(runtime, JOBS_REQUESTS) == [5]
    async with runtime.bus.session(None, [JOBS_REQUESTS]) as session:
        async for refs in session.assignments():
            (ref,) = refs
            records = await session.read(ref, None, 10)
            assert [record.offset for record in records] == [5]
            break


async def test_what_a_lagging_service_has_not_consumed_stays(runtime: Runtime) -> None:
    await _append(runtime, *(_cancel(number) for number in range(5)))
    async with runtime.engine.begin() as connection:
        await connection.execute(sa.text("CREATE SCHEMA lagging"))

        def create(sync: sa.Connection) -> None:
            class Operations:
                @staticmethod
                def execute(statement: str) -> None:
                    sync.execute(sa.text(statement))

            create_common_tables(Operations, "lagging")

        await connection.run_sync(create)
        await connection.execute(
            sa.text("INSERT INTO lagging.offsets VALUES (:topic, 0, 'x', 3)"), {"topic": JOBS_REQUESTS}
        )
    late = runtime.clock.now() + timedelta(seconds=TOPICS[JOBS_REQUESTS].retention_seconds + 1)
    assert await apply_retention(runtime.engine, late) == 3
    assert await _offsets(runtime, JOBS_REQUESTS) == [3, 4]


async def test_a_compacted_topic_keeps_the_newest_of_each_key(runtime: Runtime) -> None:
    at = runtime.clock.now()
    states = [QueueState(queue=name, gpu_quota=quota, at=at) for name, quota in (("a", 1), ("b", 1), ("a", 2))]
    await _append(runtime, *states)
    late = at + timedelta(seconds=TOPICS[QUEUES_STATE].retention_seconds + 1)
    assert await apply_retention(runtime.engine, late) == 1
    assert await _offsets(runtime, QUEUES_STATE) == [1, 2]
