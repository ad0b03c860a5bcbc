"""An instance frozen in the middle of a unit of work: its locks must not keep everybody else out for ever."""

import signal

from support.contract import ONE, effects
from support.kafka_instances import instance, own_topics
from support.kafka_service import make_loop
from yard_runtime.service import Runtime

QUICKLY = "2"
"""Seconds that a transaction may idle; the default is `yard_store.engine.IDLE_IN_TRANSACTION_SECONDS`."""


async def test_the_next_one_takes_over_although_the_frozen_one_holds_the_rows_of_its_term(
    kafka: str, runtime: Runtime, database: str
) -> None:
    async with own_topics(kafka) as options:
        loop = await make_loop(runtime, options, "writer")
        holding = "support.kafka_holding_process"
        async with instance(database, options, "one", QUICKLY, module=holding) as one:
            await one.until_says("ready")
            await loop.emit(range(3))
            await loop.until_done(3)
            async with instance(database, options, "two", QUICKLY, module=holding) as two:
                await loop.emit([3], key="hold")
                await one.until_says("inside")
                one.signal(signal.SIGSTOP)
                await two.until_says("inside")  # active, and at the event that the other one did not finish
                await loop.until_done(4)
                one.signal(signal.SIGCONT)
                await one.until_says("standby")
                await loop.emit(range(4, 8))
                await loop.until_done(8)
                two.signal(signal.SIGKILL)
                await one.until_says("ready")
                await loop.emit([8])
                await loop.until_done(9)
        assert [n for _, n in await effects(loop.store)] == list(range(9))
        assert (await loop.store.offsets([ONE.name])).keys() == {(ONE.name, 0)}
        await loop.bus.close()
