"""`yard topics plan|apply`: the topics on Kafka against the registry."""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from yard_bus.kafka_options import KafkaOptions
from yard_bus.kafka_topics import Plan, apply_plan, plan_topics
from yard_domain.errors import Permanent, Retryable
from yard_events.registry import TOPICS
from yard_runtime.settings import KafkaSettings

_TRIES = 10
_PAUSE_SECONDS = 0.5


def plan(output: str) -> int:
    """Print what `apply` would do; 0 when there is nothing, 1 when there is something."""
    return _run(lambda options: _plan(options, output))


def apply(output: str) -> int:
    """Make what is missing and alter what differs; 1 when something cannot be changed in place."""
    return _run(lambda options: _apply(options, output))


def _run(work: Any) -> int:
    console = Console(stderr=True)
    try:
        options = KafkaSettings().options()
    except ValidationError as error:
        for item in error.errors():
            console.print(f"yard topics: YARD_KAFKA_{str(item['loc'][0]).upper()}: {item['msg']}", markup=False)
        return 2
    if options is None:
        console.print("yard topics: YARD_KAFKA is not set; it names the brokers, as host:port", markup=False)
        return 2
    running: Coroutine[Any, Any, int] = work(options)
    try:
        return asyncio.run(running)
    except (Retryable, Permanent) as error:
        console.print(f"yard topics: {error}", markup=False)
        return 1


async def _plan(options: KafkaOptions, output: str) -> int:
    found = await plan_topics(options, list(TOPICS.values()))
    _show(found, output, "to be made", "differs")
    return 0 if found.empty else 1


async def _apply(options: KafkaOptions, output: str) -> int:
    wanted = list(TOPICS.values())
    before = await plan_topics(options, wanted)
    await apply_plan(options, before)
    after = before
    for _ in range(_TRIES):  # brokers tell of a change a moment after they accepted it
        after = await plan_topics(options, wanted)
        if all(difference.final for difference in after.differences) and not after.missing:
            break
        await asyncio.sleep(_PAUSE_SECONDS)
    _show(before, output, "made", "altered")
    return 0 if after.empty else 1


def _show(plan: Plan, output: str, made: str, altered: str) -> None:
    rows = [
        {"topic": topic.name, "what": made, "detail": _shape(topic.num_partitions, topic.topic_configs)}
        for topic in plan.missing
    ]
    rows += [
        {"topic": one.topic, "what": "stays" if one.final else altered, "detail": one.sentence}
        for one in plan.differences
    ]
    if output == "json":
        print(json.dumps({"topics": rows}, indent=2))
        return
    if not rows:
        print("All topics are as they should be.")
        return
    table = Table("topic", "what", "detail")
    for row in rows:
        table.add_row(row["topic"], row["what"], row["detail"])
    Console().print(table)


def _shape(partitions: int, settings: dict[str, str]) -> str:
    return ", ".join(
        [f"{partitions} partition{'s' if partitions > 1 else ''}", *(f"{k}={v}" for k, v in settings.items())]
    )
