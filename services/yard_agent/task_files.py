"""The files of a node's tasks: what they print, and the scratch folder of those that name no folder to work in."""

import os
import shutil
import stat
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path


class TaskFiles:
    """Paths only; whoever runs a task makes its folders. An allocation's id is a plain name."""

    def __init__(self, folder: Path) -> None:
        self._outputs = str(folder / "output")
        self._scratch = str(folder / "work")

    def output(self, allocation_id: str) -> str:
        return f"{self._outputs}/{allocation_id}"

    def scratch(self, allocation_id: str) -> str:
        return f"{self._scratch}/{allocation_id}"

    def output_bytes(self, allocation_id: str) -> int:
        """How much the task has printed; 0 without a file, whatever a task put in its place."""
        try:
            found = os.lstat(self.output(allocation_id))
        except OSError:
            return 0
        return found.st_size if stat.S_ISREG(found.st_mode) else 0

    def remove(self, allocation_ids: Iterable[str]) -> list[str]:
        """Delete the files of these tasks, which takes time; returns what could not be deleted and why."""
        failures: list[str] = []
        for allocation_id in allocation_ids:
            for path in (self.output(allocation_id), self.scratch(allocation_id)):
                try:
                    _remove(path)
                except (OSError, RecursionError) as error:  # a task can nest folders deeper than they can be removed
                    failures.append(f"{path}: {getattr(error, 'strerror', None) or error}")
        return failures

    def leftovers(self, known: Collection[str], unchanged_since: float) -> list[str]:
        """Tasks whose files a lost journal left behind: not `known`, and not changed since (seconds since 1970).

        A folder that cannot be read, whatever took its place, has none: cleaning must not end the agent, and the next
        task's start says what is wrong with it.
        """
        found: set[str] = set()
        for folder in (self._outputs, self._scratch):
            with suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):  # deleted meanwhile
                        if entry.name not in known and entry.stat(follow_symlinks=False).st_mtime < unchanged_since:
                            found.add(entry.name)
        return sorted(found)


def _remove(path: str) -> None:
    try:
        kind = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(kind):
        os.unlink(path)
        return
    # Tasks make folders that even their owner may not write, such as module caches.
    os.chmod(path, 0o700)
    for folder, names, _files in os.walk(path):
        for name in names:
            inner = os.path.join(folder, name)
            if not os.path.islink(inner):
                os.chmod(inner, 0o700)
    shutil.rmtree(path)
