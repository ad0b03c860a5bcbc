"""One process of services: `python -m yard_allinone.process --target a,b`, configured by the environment."""

import argparse
import asyncio
import cProfile
import gc
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import structlog
import uvloop
from pydantic import ValidationError

from yard_allinone.targets import TARGETS, parse_targets
from yard_bus.kafka import KafkaBus
from yard_bus.kafka_options import KafkaOptions
from yard_bus.postgres import PostgresBus
from yard_bus.protocol import Bus
from yard_domain.errors import InvalidField, Retryable
from yard_events.registry import TOPICS
from yard_obs.logs import configure_logs
from yard_obs.telemetry import Telemetry, configure_telemetry
from yard_runtime.clock import SystemClock, SystemIds
from yard_runtime.host import ServiceHost
from yard_runtime.service import Runtime, Service
from yard_runtime.settings import KafkaSettings, ProcessSettings
from yard_store.engine import create_engine

_log = structlog.get_logger("yard.process")

PROFILE_VARIABLE = "YARD_PROFILE_DIR"


@dataclass(frozen=True, slots=True)
class Process:
    """What the environment says, checked."""

    names: list[str]
    settings: ProcessSettings
    kafka: KafkaOptions | None
    instance: str
    telemetry: Telemetry


def main(target: str) -> int:
    """Run until told to stop; 2 for a configuration that cannot work."""
    try:
        process = _configured(target)
    except InvalidField as error:
        print(f"yard serve: {error}", file=sys.stderr)
        return 2
    except ValidationError as error:
        for item in error.errors():
            print(f"yard serve: {_variable(error, item['loc'])}: {item['msg']}", file=sys.stderr)
        return 2
    configure_logs(level=process.settings.log_level)
    profile = cProfile.Profile() if PROFILE_VARIABLE in os.environ else None
    try:
        if profile is not None:
            profile.enable()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(process))
    finally:
        if profile is not None:
            profile.disable()
            profile.dump_stats(Path(os.environ[PROFILE_VARIABLE]) / f"{process.names[0]}-{os.getpid()}.prof")
        process.telemetry.shutdown()
    return 0


def _configured(target: str) -> Process:
    """Raises InvalidField or ValidationError, before anything is started."""
    names = parse_targets(target)
    settings = ProcessSettings()  # type: ignore[call-arg]  # read from the environment
    kafka = KafkaSettings().options()
    if settings.database_url is None and (kafka is None or names != ["agent"]):
        raise InvalidField("YARD_DATABASE_URL", "is missing; only an agent on Kafka does without a database")
    instance = f"{socket.gethostname()}/{os.getpid()}"
    telemetry = configure_telemetry(",".join(names), instance, os.environ)
    return Process(names, settings, kafka, instance, telemetry)


def _variable(error: ValidationError, place: tuple[int | str, ...]) -> str:
    name = str(place[0]) if place else "?"
    if name.startswith("YARD_"):
        return name
    return f"YARD_KAFKA_{name.upper()}" if error.title == KafkaSettings.__name__ else f"YARD_{name.upper()}"


async def _serve(process: Process) -> None:
    clock = SystemClock()
    ids = SystemIds(clock)
    settings = process.settings
    # An agent on Kafka has no database: an engine that nobody asks connects to nothing.
    engine = create_engine(
        settings.database_url or "postgresql://nowhere.invalid/none",
        application=f"gpuyard {','.join(process.names)}",
        pool_size=settings.pool_size,
    )
    kafka = process.kafka
    bus: Bus = PostgresBus(engine, clock=clock, ids=ids) if kafka is None else KafkaBus(kafka, clock=clock)
    runtime = Runtime(
        engine=engine,
        bus=bus,
        clock=clock,
        ids=ids,
        instance=process.instance,
        internal_token=settings.internal_token.get_secret_value(),
        metrics=process.telemetry.metrics,
    )
    try:
        services = await _build_when_possible(process.names, runtime)
        # What was built lives as long as the process: the collector need not look at it again and again.
        gc.collect()
        gc.freeze()
        host = ServiceHost(
            services,
            listen=settings.listen,
            internal_token=runtime.internal_token,
            telemetry=process.telemetry,
            metrics_token="" if settings.metrics_token is None else settings.metrics_token.get_secret_value(),
        )
        async with asyncio.TaskGroup() as group:
            making = None if kafka is None else group.create_task(_make_topics(runtime), name="topics")
            await host.run()
            if making is not None:
                making.cancel()
    finally:
        await bus.close()
        await engine.dispose()


async def _build_when_possible(names: list[str], runtime: Runtime) -> list[Service]:
    """Any start order: a database that is not there yet is waited for."""
    pause = 0.1
    while True:
        try:
            if isinstance(runtime.bus, PostgresBus):
                await runtime.bus.migrate()
                await runtime.bus.ensure_topics(list(TOPICS.values()))
            return [await TARGETS[name](runtime) for name in names]
        except Retryable as error:
            _log.warning("waiting for the database", error=str(error))
            await runtime.clock.sleep(pause)
            pause = min(pause * 2, 2.0)


async def _make_topics(runtime: Runtime) -> None:
    """Beside the services, which accept work also while Kafka is away and use the topics once they are there."""
    pause = 0.5
    while True:
        try:
            await runtime.bus.ensure_topics(list(TOPICS.values()))
            return
        except Retryable as error:
            _log.warning("topics are not made yet", error=str(error))
            await runtime.clock.sleep(pause)
            pause = min(pause * 2, 5.0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="yard serve")
    parser.add_argument("--target", required=True)
    sys.exit(main(parser.parse_args().target))
