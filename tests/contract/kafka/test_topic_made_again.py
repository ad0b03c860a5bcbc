"""A topic deleted and made again under a running service: offsets of the old one mean nothing in the new one."""

import asyncio
from contextlib import suppress

import structlog.testing
from aiokafka.admin import NewTopic

from support.contract import MANY, ONE, effects, event, stored_offset, until
from support.kafka_harness import admin
from support.kafka_instances import own_topics
from support.kafka_service import Loop, make_loop
from yard_bus.kafka_metadata import topic_shapes
from yard_bus.kafka_options import KafkaOptions
from yard_domain.errors import Retryable
from yard_runtime.service import Runtime


async def delete_and_make_again(options: KafkaOptions) -> None:
    """As quickly as the broker lets."""
    name = options.prefix + ONE.name
    async with admin(options) as client:
        before = (await topic_shapes(client._client, [ONE.name], options.prefix))[ONE.name].incarnation
        await client.delete_topics([name])
        while [error[1] for error in (await client.create_topics([NewTopic(name, 1, 1)])).topic_errors] != [0]:
            await asyncio.sleep(0.01)

        async def known() -> bool:
            shape = (await topic_shapes(client._client, [ONE.name], options.prefix)).get(ONE.name)
            return shape is not None and shape.incarnation != before

        await until(known, "the new one is known")


async def published(loop: Loop, numbers: range) -> None:
    """To the new topic; the first tries may still mean the old one, and fail."""
    async with asyncio.timeout(20):
        for n in numbers:
            done = False
            while not done:
                with suppress(Retryable):
                    await loop.bus.publish([event(n, "new")])
                    done = True


async def test_its_partition_stops_and_says_so_while_others_go_on(kafka: str, runtime: Runtime) -> None:
    async with own_topics(kafka) as options:
        loop = await make_loop(runtime, options)
        loop.service.handlers = {topic.name: loop.service.handlers[ONE.name] for topic in (ONE, MANY)}
        with structlog.testing.capture_logs() as logs:
            loop.task = asyncio.create_task(loop.service.run(lambda: None))
            try:
                await loop.emit(range(3))
                await loop.until_done(3)
                at = await stored_offset(loop.store)
                assert at is not None
                await delete_and_make_again(options)
                await published(loop, range(100, 110 + at))
                await until(loop.service.problems, "the stop is reported")
                [problem] = loop.service.problems()
                assert ONE.name in problem
                assert "made again" in problem
                await loop.bus.publish([event(n, f"k{n}", topic=MANY.name) for n in range(8)])
                await loop.until_done(11)
            finally:
                loop.task.cancel()
                await asyncio.wait([loop.task])
                await loop.bus.close()
        alarms = [line for line in logs if line["event"] == "partition stopped"]
        assert [(line["topic"], line["partition"], line["log_level"]) for line in alarms] == [(ONE.name, 0, "error")]
        assert [key for key, _ in await effects(loop.store) if key == "new"] == []
        assert await stored_offset(loop.store) == at
