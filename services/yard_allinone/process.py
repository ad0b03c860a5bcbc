"""One process of services: `python -m yard_allinone.process --target a,b`, configured by the environment."""

import argparse
import asyncio
import cProfile
import gc
import os
import socket
import sys
from pathlib import Path

import structlog
import uvloop
from pydantic import ValidationError

from yard_allinone.targets import TARGETS, parse_targets
from yard_bus.postgres import PostgresBus
from yard_domain.errors import InvalidField, Retryable
from yard_events.registry import TOPICS
from yard_obs.logs import configure_logs
from yard_runtime.clock import SystemClock, SystemIds
from yard_runtime.host import ServiceHost
from yard_runtime.service import Runtime, Service
from yard_runtime.settings import ProcessSettings
from yard_store.engine import create_engine

_log = structlog.get_logger("yard.process")

PROFILE_VARIABLE = "YARD_PROFILE_DIR"


def main(target: str) -> int:
    """Run until told to stop; 2 for a configuration that cannot work."""
    try:
        names = parse_targets(target)
        settings = ProcessSettings()  # type: ignore[call-arg]  # read from the environment
    except InvalidField as error:
        print(f"yard serve: {error}", file=sys.stderr)
        return 2
    except ValidationError as error:
        for item in error.errors():
            print(f"yard serve: YARD_{str(item['loc'][0]).upper()}: {item['msg']}", file=sys.stderr)
        return 2
    configure_logs(level=settings.log_level)
    profile = cProfile.Profile() if PROFILE_VARIABLE in os.environ else None
    try:
        if profile is not None:
            profile.enable()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(names, settings))
    finally:
        if profile is not None:
            profile.disable()
            profile.dump_stats(Path(os.environ[PROFILE_VARIABLE]) / f"{names[0]}-{os.getpid()}.prof")
    return 0


async def _serve(names: list[str], settings: ProcessSettings) -> None:
    clock = SystemClock()
    ids = SystemIds(clock)
    application = f"gpuyard {','.join(names)}"
    engine = create_engine(settings.database_url, application=application, pool_size=settings.pool_size)
    bus = PostgresBus(engine, clock=clock, ids=ids)
    runtime = Runtime(
        engine=engine,
        bus=bus,
        clock=clock,
        ids=ids,
        instance=f"{socket.gethostname()}/{os.getpid()}",
        internal_token=settings.internal_token.get_secret_value(),
    )
    services = await _build_when_possible(names, runtime, bus)
    # What was built lives as long as the process: the collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    host = ServiceHost(services, listen=settings.listen, internal_token=runtime.internal_token)
    try:
        await host.run()
    finally:
        await engine.dispose()


async def _build_when_possible(names: list[str], runtime: Runtime, bus: PostgresBus) -> list[Service]:
    """Any start order: a database that is not there yet is waited for."""
    pause = 0.1
    while True:
        try:
            await bus.migrate()
            await bus.ensure_topics(list(TOPICS.values()))
            return [await TARGETS[name](runtime) for name in names]
        except Retryable as error:
            _log.warning("waiting for the database", error=str(error))
            await runtime.clock.sleep(pause)
            pause = min(pause * 2, 2.0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="yard serve")
    parser.add_argument("--target", required=True)
    sys.exit(main(parser.parse_args().target))
