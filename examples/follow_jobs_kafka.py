"""Follow gpuyard's jobs from plain Kafka, without gpuyard's own library: `pip install aiokafka` is all it needs.

    python3 examples/follow_jobs_kafka.py --bootstrap kafka:9092 --from-beginning

The three rules that a reader must keep stand where they are kept: committed records only, no doubles, and no trouble
with what a later version adds. Nothing is saved: it begins at the log's end, or with --from-beginning at its start.
To go on where you ended, save the next offset of each partition together with `highest`, once an effect is safe.
"""

import argparse
import asyncio
import json
import sys

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaConnectionError


async def follow(bootstrap: str, topic: str, from_beginning: bool, count: int | None) -> None:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest" if from_beginning else "latest",
        # 1. The relays write in transactions. Without this you would also see records of those that were given up.
        isolation_level="read_committed",
    )
    await consumer.start()
    try:
        if topic not in await consumer.topics():
            raise SystemExit(f"there is no topic {topic} at {bootstrap}")
        consumer.subscribe([topic])
        highest: dict[tuple[int, str], int] = {}
        printed = 0
        while count is None or printed < count:
            record = await consumer.getone()
            try:
                headers = {name: value.decode() for name, value in record.headers}
                place = (record.partition, headers["ce_source"])
                sequence = int(headers["yard_publishseq"])

                # 2. A relay that was interrupted publishes the same events again, under the same numbers.
                if sequence <= highest.get(place, -1):
                    continue
                highest[place] = sequence

                # 3. Types that you do not know are skipped, fields that you do not know are ignored.
                if not headers["ce_type"].startswith("yard.jobs."):
                    continue
                job = json.loads(record.value)
                line = f"{headers['ce_time']} {job['job_id']} {job['name']}: {job['state']}"
            except (KeyError, TypeError, ValueError) as error:
                print(f"offset {record.offset} is no event of a job: {error!r}", file=sys.stderr)
                continue
            print(f"{line} ({job['reason']})" if job.get("reason") else line, flush=True)
            printed += 1
    finally:
        await consumer.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description="Print what happens to gpuyard's jobs, from Kafka.")
    parser.add_argument("--bootstrap", default="localhost:9092", help="host:port of a broker")
    parser.add_argument("--topic", default="yard.jobs.events.v1")
    parser.add_argument("--from-beginning", action="store_true", help="begin with the oldest event that is kept")
    parser.add_argument("--count", type=int, help="end after so many events")
    chosen = parser.parse_args()
    try:
        asyncio.run(follow(chosen.bootstrap, chosen.topic, chosen.from_beginning, chosen.count))
    except KafkaConnectionError as error:
        raise SystemExit(f"cannot reach Kafka at {chosen.bootstrap}: {error}") from None
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
