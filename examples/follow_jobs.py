"""Follow gpuyard's jobs with its typed consumer: `pip install 'gpuyard[events]'`.

    python3 examples/follow_jobs.py --bootstrap kafka:9092 --state positions.json

It goes on where it ended, gets every event, and none twice but the one that it was handling when it was interrupted.
"""

import argparse
import asyncio
import os

from yard_client.errors import ClientError
from yard_client.events import EventConsumer, FileCheckpoint, KafkaSecurity
from yard_events.types import JobEnded, JobFact, JobStarting


async def follow(chosen: argparse.Namespace) -> None:
    consumer = EventConsumer(
        chosen.bootstrap,
        group=chosen.group,
        state=FileCheckpoint(chosen.state) if chosen.state else None,
        projects=chosen.project,
        prefix=chosen.prefix,
        security=KafkaSecurity.from_environment(os.environ),
    )
    printed = 0
    async with consumer:
        async for event in consumer:
            match event.data:
                case JobStarting(tasks=tasks) as job:
                    nodes = sorted({task.node for task in tasks})
                    print(f"{job.job_id} {job.name}: {job.state} on {', '.join(nodes)}", flush=True)
                case JobEnded() as job:
                    print(f"{job.job_id} {job.name}: {job.state}, exit code {job.exit_code}", flush=True)
                case JobFact() as job:
                    print(f"{job.job_id} {job.name}: {job.state}", flush=True)
                case _:
                    continue
            # Otherwise an event counts as handled when the next one is asked for.
            await event.ack()
            printed += 1
            if printed == chosen.count:
                break


def main() -> None:
    parser = argparse.ArgumentParser(description="Print what happens to gpuyard's jobs, from Kafka.")
    parser.add_argument("--bootstrap", default="localhost:9092", help="host:port of some brokers")
    parser.add_argument("--group", help="keep positions in Kafka, and share the work with others of the group")
    parser.add_argument("--state", help="keep positions in this file")
    parser.add_argument("--project", action="append", help="only jobs of this project; may be repeated")
    parser.add_argument("--prefix", default="", help="what the installation puts before its topics")
    parser.add_argument("--count", type=int, help="end after so many events")
    try:
        asyncio.run(follow(parser.parse_args()))
    except (ClientError, ValueError) as error:
        raise SystemExit(str(error)) from None
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
