"""What every service shows of its event pipeline: lag, outbox, parked and stopped."""

from collections.abc import Callable, Mapping

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from yard_bus.protocol import PartitionRef, Session
from yard_obs import catalogue
from yard_runtime.gauges import TableGauges
from yard_store.unit_of_work import Store


def pipeline_gauges(
    name: str, store: Store, session: Session, stopped: Callable[[], Mapping[PartitionRef, str]]
) -> TableGauges:
    """Of the active instance of service `name`, for as long as it is active."""
    metrics = store.metrics
    outbox, parked = store.tables.outbox, store.tables.parked
    waiting = sa.select(sa.func.count(), sa.func.min(outbox.c.created_at)).select_from(outbox)
    by_topic = sa.select(parked.c.topic, sa.func.count().label("events")).group_by(parked.c.topic)

    async def read(connection: AsyncConnection) -> None:
        count, oldest = (await connection.execute(waiting)).one()
        age = 0.0 if oldest is None else max((store.clock.now() - oldest).total_seconds(), 0.0)
        metrics.gauge(catalogue.OUTBOX_SIZE).set(count, service=name)
        metrics.gauge(catalogue.OUTBOX_OLDEST_AGE).set(age, service=name)
        metrics.gauge(catalogue.STOPPED).set(len(stopped()), service=name)
        metrics.gauge(catalogue.SERVICE_ACTIVE).set(1, service=name)
        metrics.gauge(catalogue.PARKED).replace(
            [(row.events, {"service": name, "topic": row.topic}) for row in await connection.execute(by_topic)],
            service=name,
        )
        metrics.gauge(catalogue.CONSUMER_LAG).replace(
            [
                (behind, {"service": name, "topic": topic, "partition": str(partition)})
                for (topic, partition), behind in (await session.lag()).items()
            ],
            service=name,
        )

    def forget() -> None:
        for metric in (catalogue.OUTBOX_SIZE, catalogue.OUTBOX_OLDEST_AGE, catalogue.STOPPED):
            metrics.gauge(metric).remove(service=name)
        metrics.gauge(catalogue.PARKED).replace([], service=name)
        metrics.gauge(catalogue.CONSUMER_LAG).replace([], service=name)
        metrics.gauge(catalogue.SERVICE_ACTIVE).set(0, service=name)

    return TableGauges(store, read, forget)
