"""`python -m yard_allinone.schemas write|check|release [FOLDER]`; the Makefile's `schemas`, `schemas-check` and
`schemas-release`. Exit codes: 0 fine, 1 something differs or breaks, 2 usage."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from yard_allinone.schemas import files, released

_ADVICE = (
    "Within a version an event only gains optional fields: make a new type (….v2) beside this one, as "
    "schemas/README.md says."
)


def main(arguments: Sequence[str]) -> int:
    """Carries out one command line and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m yard_allinone.schemas", description=__doc__)
    parser.add_argument("command", choices=("write", "check", "release"))
    parser.add_argument("folder", nargs="?", type=Path, default=Path("schemas"))
    chosen = parser.parse_args(arguments)
    folder: Path = chosen.folder
    if not folder.is_dir():
        print(f"there is no folder {folder}: run it in the root of the repository, or name one", file=sys.stderr)
        return 2
    if chosen.command == "write":
        files.write(folder, files.generate())
        return 0
    if chosen.command == "check":
        return max(_check_files(folder), _check_released(folder))
    return _release(folder)


def _check_files(folder: Path) -> int:
    different = files.differences(folder, files.generate())
    for difference in different:
        print(f"{folder / difference.path}: {difference.what}", file=sys.stderr)
    if different:
        print(f"{folder}/ is not what the code says: run `make schemas` and commit the result.", file=sys.stderr)
    return 1 if different else 0


def _check_released(folder: Path) -> int:
    breaks = released.incompatibilities(released.read(folder), released.current())
    for each in breaks:
        print(each, file=sys.stderr)
    if breaks:
        print(f"This breaks what was released ({folder / released.FILE}). {_ADVICE}", file=sys.stderr)
    return 1 if breaks else 0


def _release(folder: Path) -> int:
    """What is published now becomes what later versions are held to. Refused while something breaks or differs."""
    if max(_check_files(folder), _check_released(folder)):
        return 1
    text = released.text_of(released.grown(released.read(folder), released.current()))
    (folder / released.FILE).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
