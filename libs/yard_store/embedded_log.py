"""What the embedded server logged since a moment, for messages about why it did not start."""

from pathlib import Path

_TAIL_LINES = 12
_TAIL_BYTES = 16_384


class LogTail:
    """Reads `folder`: `start.log` has what the server prints before its log is open, the other files are its log."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sizes: dict[str, int] = {}

    @property
    def start_file(self) -> Path:
        return self._folder / "start.log"

    def mark(self) -> None:
        """Later calls of `since_mark` leave out what is in the files now."""
        self._sizes = {file.name: file.stat().st_size for file in self._folder.glob("postgresql-*.log")}

    def since_mark(self) -> str:
        """The last lines, oldest first; empty where there is nothing."""
        lines: list[str] = []
        for file in (self.start_file, *sorted(self._folder.glob("postgresql-*.log"))):
            lines += _lines_from(file, self._sizes.get(file.name, 0))
        return "\n".join(lines[-_TAIL_LINES:])


def _lines_from(file: Path, offset: int) -> list[str]:
    try:
        with file.open("rb") as content:
            size = content.seek(0, 2)
            # A file that is shorter than it was has been overwritten by rotation.
            begin = offset if offset <= size else 0
            content.seek(max(begin, size - _TAIL_BYTES))
            return content.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
