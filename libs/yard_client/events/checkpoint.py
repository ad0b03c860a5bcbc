"""Where positions are kept when Kafka does not keep them."""

import asyncio
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from yard_client.events.errors import CheckpointUnreadable
from yard_client.events.position import Place, Position


class Checkpoint(Protocol):
    """Keeps positions for one reader. Implement it over your own database, and write `event.position_after()` in the
    transaction of the event's effects to have each effect exactly once; `save` may then do nothing."""

    async def load(self) -> Mapping[Place, Position]:
        """Everything saved; empty before the first time."""
        ...

    async def save(self, positions: Mapping[Place, Position]) -> None:
        """Positions of the partitions that moved. They are durable when it returns."""
        ...


class FileCheckpoint:
    """Positions in a JSON file, replaced as a whole. For one reader at a time."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._positions: dict[Place, Position] = {}

    async def load(self) -> Mapping[Place, Position]:
        """Raises CheckpointUnreadable when the file is something else, OSError when it cannot be read."""
        self._positions = await asyncio.to_thread(self._read)
        return dict(self._positions)

    async def save(self, positions: Mapping[Place, Position]) -> None:
        """Raises OSError when it cannot be written; the file is then what it was."""
        merged = self._positions | dict(positions)
        await asyncio.to_thread(self._write, merged)
        self._positions = merged

    def _read(self) -> dict[Place, Position]:
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            topics = cast(dict[str, dict[str, Any]], document["topics"])
            return {
                Place(topic, int(number)): Position.from_document(position)
                for topic, partitions in topics.items()
                for number, position in partitions.items()
            }
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointUnreadable(self._path, str(error) or type(error).__name__) from error

    def _write(self, positions: Mapping[Place, Position]) -> None:
        topics: dict[str, dict[str, Any]] = {}
        for place, position in sorted(positions.items()):
            topics.setdefault(place.topic, {})[str(place.partition)] = position.document()
        draft = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}")
        try:
            with draft.open("w", encoding="utf-8") as file:
                json.dump({"topics": topics}, file)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._path)
        finally:
            draft.unlink(missing_ok=True)
