"""The typed consumer: at least once, without doubles as far as anybody can tell, going on where it ended."""
# pyright: reportMissingTypeStubs=false
# aiokafka comes without stubs.

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

try:
    from aiokafka import TopicPartition
    from aiokafka.errors import (
        IllegalStateError,
        KafkaError,
        NoOffsetForPartitionError,
        OffsetOutOfRangeError,
    )
except ImportError as missing:
    raise ImportError("following events needs aiokafka: pip install 'gpuyard[events]'") from missing

from yard_client.events.checkpoint import Checkpoint
from yard_client.events.connection import REFUSALS, connect, describe, refused
from yard_client.events.errors import KafkaUnreachable, PositionLost
from yard_client.events.keeping import CheckpointKeeper, GroupKeeper, Keeper, Nowhere
from yard_client.events.position import Place, Position
from yard_client.events.progress import PartitionProgress
from yard_client.events.reading import Reader
from yard_client.events.rebalancing import Rebalances
from yard_client.events.received import Counts, MalformedRecord, ReceivedEvent
from yard_client.events.security import KafkaSecurity
from yard_client.events.selection import KnownType, select
from yard_client.retry import Backoff, RetryPolicy

_log = logging.getLogger("yard.events")

_BREATH = 100
"""After so many records that were at hand, others on the event loop get their turn."""
_LONGEST_VALUE_BYTES = 4 * 2**20


class EventConsumer:
    """Follows gpuyard's events: `async with EventConsumer(…) as consumer: async for event in consumer: …`.

    `group`: positions are kept in Kafka, and members of the group share the partitions. `state`: positions are kept
    there (`FileCheckpoint`, or your own), and this reader has all partitions. Neither: nothing is kept. `start` is
    where a partition without a saved position begins.

    An event is done when the next one is asked for (`acknowledge="automatic"`), or only when `event.ack()` says so
    ("manual"). What is not done, because the program ended or failed while it handled it, comes again. Automatic
    positions are saved every `save_interval_seconds` and at the end.

    Without `topics` they follow from `types`, and are the lifecycle of jobs where there are none either. `prefix`
    stands before the names of an installation's topics. `unknown="raw"` hands out events of types that this version
    does not know, with `data` None. Records that are no events are passed over, counted, and told to `on_malformed`.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        group: str | None = None,
        state: Checkpoint | None = None,
        topics: Sequence[str] | None = None,
        types: Sequence[str | KnownType] | None = None,
        projects: Collection[str] | None = None,
        queues: Collection[str] | None = None,
        start: Literal["earliest", "latest"] = "earliest",
        acknowledge: Literal["automatic", "manual"] = "automatic",
        unknown: Literal["skip", "raw"] = "skip",
        lost_position: Literal["raise", "earliest"] = "raise",
        on_malformed: Callable[[MalformedRecord], None] | None = None,
        prefix: str = "",
        security: KafkaSecurity = KafkaSecurity(),  # noqa: B008 - frozen
        retry: RetryPolicy = RetryPolicy(budget_seconds=60.0, longest_pause_seconds=5.0),  # noqa: B008 - frozen
        save_interval_seconds: float = 1.0,
        longest_handling_seconds: float = 300.0,
        session_timeout_seconds: float = 10.0,
    ) -> None:
        if group is not None and state is not None:
            raise ValueError("positions are kept by the group or by the state, not by both")
        self._bootstrap = bootstrap
        self._group = group
        self._state = state
        self._selection = select(topics=topics, types=types, projects=projects, queues=queues)
        self._start = start
        self._automatic = acknowledge == "automatic"
        self._lost_position = lost_position
        self._prefix = prefix
        self._security = security
        self._retry = retry
        self._save_interval = save_interval_seconds
        self._longest_handling = longest_handling_seconds
        self._session_timeout = session_timeout_seconds
        self.counts = Counts()
        self._reader = Reader(self._selection, self.counts, unknown == "raw", on_malformed, prefix)
        self._progress: dict[Place, PartitionProgress] = {}
        self._let_go: dict[Place, tuple[PartitionProgress, int]] = {}
        self._in_hand: tuple[PartitionProgress, int] | None = None
        self._saving = asyncio.Lock()
        self._look_at: float | None = None
        self._unopened = False
        self._taken = 0
        self._consumer: Any = None
        self._keeper: Keeper = Nowhere()

    # --- life --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Raises KafkaUnreachable, KafkaRefused, TopicMissing, and what the state's `load` raises."""
        topics = [self._prefix + name for name in self._selection.topics]
        self._consumer = await connect(self._arguments(), topics, self._bootstrap, self._retry)
        if self._group is not None:
            self._keeper = GroupKeeper(self._consumer, self._group, self._connection())
        elif self._state is not None:
            self._keeper = CheckpointKeeper(self._state)
        try:
            await self._keeper.load([])
            self._consumer.subscribe(topics, listener=Rebalances(self._revoked))
        except BaseException:
            await self._consumer.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What is done is saved; the event in hand is not done unless it was acknowledged."""
        try:
            await self._try_to_save()
        finally:
            await self._consumer.stop()

    def _connection(self) -> dict[str, Any]:
        servers = [server.strip() for server in self._bootstrap.split(",") if server.strip()]
        return {"bootstrap_servers": servers, "client_id": "yard-client", **self._security.arguments()}

    def _arguments(self) -> dict[str, Any]:
        return self._connection() | {
            "group_id": self._group,
            "enable_auto_commit": False,
            # A reset would skip or repeat silently; where to begin is decided here.
            "auto_offset_reset": "none",
            "isolation_level": "read_committed",
            "max_partition_fetch_bytes": _LONGEST_VALUE_BYTES,
            "max_poll_interval_ms": int(self._longest_handling * 1000),
            "session_timeout_ms": int(self._session_timeout * 1000),
            "heartbeat_interval_ms": int(self._session_timeout * 1000 / 4),
            "metadata_max_age_ms": 60_000,
            "retry_backoff_ms": 100,
        }

    # --- reading -----------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedEvent:
        """The next event that is wanted. Raises PositionLost, KafkaRefused."""
        if self._automatic and self._in_hand is not None:
            progress, offset = self._in_hand
            progress.done_to(offset)
        self._in_hand = None
        backoff = Backoff(RetryPolicy(float("inf"), 0.1, self._retry.longest_pause_seconds), self._now())
        while True:
            try:
                record = await self._next_record()
            except REFUSALS as error:
                raise refused(self._bootstrap, error) from error
            except KafkaError as error:
                _log.warning("reading from %s: %s", self._bootstrap, describe(error))
                await asyncio.sleep(backoff.pause(self._now()) or 0.0)
                continue
            # Nothing is awaited between taking a record from Kafka's client and noting it: a caller that is cancelled
            # here would lose it.
            event = None if record is None else self._take(record)
            if event is not None:
                return event

    async def _next_record(self) -> Any:
        """None when something else is to be done first."""
        if self._taken >= _BREATH:
            self._taken = 0
            await asyncio.sleep(0)
        if self._unopened:
            await self._open_all()
        if self._look_at is not None and self._now() >= self._look_at:
            await self._look_after_positions()
        wait = None if self._look_at is None else max(self._look_at - self._now(), 0.0)
        try:
            async with asyncio.timeout(wait):
                return await self._consumer.getone()
        except TimeoutError:
            return None
        except NoOffsetForPartitionError:
            self._unopened = True
        except OffsetOutOfRangeError as error:
            await self._find_lost_positions(error.args[0])
        return None

    def _take(self, record: Any) -> ReceivedEvent | None:
        self._taken += 1
        place = Place(record.topic, record.partition)
        progress = self._progress.get(place)
        if progress is None:
            # Newly ours: where we stand in it is found out first, and the record comes again if it is wanted.
            self._unopened = True
            return None
        if record.offset < progress.next_offset:
            return None
        if self._look_at is None:
            self._look_at = self._now() + self._save_interval
        found = self._reader.read(record, progress)
        if found is None:
            return None
        offset: int = record.offset
        self._in_hand = (progress, offset)
        self.counts.delivered += 1
        return found.event(
            acknowledge=lambda: self._acknowledge(place, progress, offset),
            position_after=lambda: progress.position_after(offset),
        )

    # --- positions ---------------------------------------------------------------------------------------------------

    async def _open_all(self) -> None:
        """Go to where we stand in every partition that is ours and not open yet."""
        ours = {Place(where.topic, where.partition) for where in self._consumer.assignment()}
        places = sorted(ours - self._progress.keys())
        saved = await self._keeper.load(places)
        fresh = [_kafka(place) for place in places if place not in saved]
        ends = self._consumer.beginning_offsets if self._start == "earliest" else self._consumer.end_offsets
        starts: Mapping[Any, int] = await ends(fresh) if fresh else {}
        for place in places:
            position = saved.get(place) or Position(starts[_kafka(place)])
            progress, offset = self._let_go.pop(place, (None, None))
            if progress is None or offset != position.offset:
                # Another member went on from where we let it go: it is as if we had never had it.
                progress = PartitionProgress(position)
            # Where a reader began is kept as well: what comes before its first save must not be skipped.
            progress.unsaved |= place not in saved
            self._seek(place, progress)
        self._unopened = False
        if self._look_at is None:
            self._look_at = self._now() + self._save_interval

    def _seek(self, place: Place, progress: PartitionProgress) -> None:
        try:
            self._consumer.seek(_kafka(place), progress.next_offset)
        except IllegalStateError:
            return  # it went to another member in the meantime
        self._progress[place] = progress

    async def _find_lost_positions(self, offsets: Mapping[Any, int]) -> None:
        for where, offset in offsets.items():
            first: int = (await self._consumer.beginning_offsets([where]))[where]
            end: int = (await self._consumer.end_offsets([where]))[where]
            if first <= offset <= end:
                continue
            if self._lost_position == "raise":
                raise PositionLost(where.topic, where.partition, offset, first, end)
            _log.warning("%s/%s: from %s on events were deleted unread", where.topic, where.partition, offset)
            progress = PartitionProgress(Position(first))
            progress.unsaved = True
            self._seek(Place(where.topic, where.partition), progress)

    async def _look_after_positions(self) -> None:
        """Save what is done. Where everything is, the position also passes markers of transactions, which no record
        follows: they are not deleted before it."""
        self._look_at = None
        for place, progress in list(self._progress.items()):
            where = _kafka(place)
            if progress.position.offset == progress.next_offset and where in self._consumer.assignment():
                progress.skip_to(await self._consumer.position(where))
        if not await self._try_to_save():
            self._look_at = self._now() + self._save_interval

    async def _acknowledge(self, place: Place, progress: PartitionProgress, offset: int) -> None:
        progress.done_to(offset)
        backoff = Backoff(self._retry, self._now())
        while self._progress.get(place) is progress:
            try:
                # Also when it looks saved: another save may just be under way, which this one waits for.
                await self._save()
                if not progress.unsaved:
                    return
            except KafkaError as error:
                pause = backoff.pause(self._now())
                if pause is None:
                    raise KafkaUnreachable(self._bootstrap, f"saving a position: {describe(error)}") from error
                await asyncio.sleep(pause)

    async def _try_to_save(self) -> bool:
        """False when Kafka does not take it now; it is tried again. What a state of the caller's raises is raised."""
        try:
            await self._save()
        except KafkaError as error:
            _log.warning("positions are not saved: %s", describe(error))
            return False
        return True

    async def _save(self) -> None:
        """Raises KafkaError, and what the state's `save` raises."""
        async with self._saving:
            moved = {place: progress for place, progress in self._progress.items() if progress.unsaved}
            if not moved:
                return
            for progress in moved.values():
                progress.unsaved = False
            try:
                await self._keeper.save({place: progress.position for place, progress in moved.items()})
            except BaseException:
                for progress in moved.values():
                    progress.unsaved = True
                raise

    async def _revoked(self, revoked: Collection[Any]) -> None:
        """Called while the group is rearranged: what is done is saved, for whoever goes on."""
        await self._try_to_save()
        for where in revoked:
            place = Place(where.topic, where.partition)
            progress = self._progress.pop(place, None)
            if progress is not None:
                self._let_go[place] = (progress, progress.position.offset)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _kafka(place: Place) -> Any:
    return TopicPartition(place.topic, place.partition)
