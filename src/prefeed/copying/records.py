"""Where copies lie, and what is written beside them.

::

    <place>/prefeed-staged-<uid>/              0700
        <name>-<hash of url>/                  one copy; who works at it holds a lock on this directory
            copy.json                          what it is; without it prefeed removes nothing
            data/                              the path to train from
            incoming/                          files that are being written
    <home>/staged/<hash of host, directory>.json   that there is a copy: for lists, and to say of one that it is gone

A copy needs no server and no record in the home: removing either by hand does no harm.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from prefeed.config import Config
from prefeed.places import expanded
from prefeed.store.directory import is_private
from prefeed.system.files import make_private, replacing
from prefeed.system.machine import host_name

FORMAT: Final = 1
MARKER: Final = "copy.json"
DATA: Final = "data"
INCOMING: Final = "incoming"
MEMORY: Final = "memory"
"""The place that stands for ``PREFEED_MEMORY_DIR``."""

COPYING, COMPLETE, PARTIAL, REMOVING = "copying", "complete", "partial", "removing"
INTERRUPTED, GONE = "interrupted", "gone"
"""States that nobody writes down: found out when a copy is looked at."""

_MOST_NAME: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRecord:
    """What is known of one copy.

    Attributes:
        source: Canonical URL of the origin.
        directory: Of the copy; what to train from is ``data`` in it.
        state: ``copying``, ``complete``, ``partial`` or ``removing``.
        num_files: Files that are copies, so far.
        bytes: Their size.
        num_linked: Names that lead to the origin, there being no room for a copy.
        linked_bytes: The size of those.
        num_missing: Names of the origin that are not there.
        started: Seconds since 1970 when the last run began.
        finished: When it ended; 0.0 when it did not.
        pid: Process that copies, or did.
        host: Name of its machine: others that share the home cannot see what lies on its disks.
    """

    source: str
    directory: str
    state: str
    num_files: int = 0
    bytes: int = 0
    num_linked: int = 0
    linked_bytes: int = 0
    num_missing: int = 0
    started: float = 0.0
    finished: float = 0.0
    pid: int = 0
    host: str = ""

    @property
    def data(self) -> Path:
        """The path to train from."""
        return Path(self.directory) / DATA


# ---------------------------------------------------------------- names


def place_of(to: str, config: Config) -> Path:
    """Return the directory that ``memory`` or a path names."""
    return config.memory_dir if to == MEMORY else expanded(to)


def copies_of_user(place: Path) -> Path:
    """Return the directory of this user's copies in a place."""
    return place / f"prefeed-staged-{os.geteuid()}"


def copy_directory(place: Path, url: str) -> Path:
    """Return the directory of the copy of an origin in a place."""
    parts = urlsplit(url) if "://" in url else None
    name = url.rstrip("/").rpartition("/")[2] if parts is None or parts.path.strip("/") else parts.netloc
    clean = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[:_MOST_NAME] or "data"
    return copies_of_user(place) / f"{clean}-{_digest(url)}"


def _digest(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:8]


# ---------------------------------------------------------------- reading and writing


def write_record(record: CopyRecord, config: Config) -> None:
    """The copy's own record says this, and the home has it too if it can be written."""
    text = json.dumps({"format": FORMAT, **asdict(record)}, indent=1) + "\n"
    directory = Path(record.directory)
    _write(directory / MARKER, text)
    with contextlib.suppress(OSError):  # lists would miss a copy on disk; nothing else needs it
        make_private(_home_file(record.directory, config).parent)
        _write(_home_file(record.directory, config), text)


def forget(directory: str, config: Config) -> None:
    """The home does not know this copy any more."""
    for file in (_home_file(directory, config), config.home / "staged" / f"{_digest(directory)}.json"):
        with contextlib.suppress(OSError):  # the second: of versions that named it without the host
            file.unlink()


def read_record(directory: Path) -> CopyRecord | None:
    """Return what a directory says that it is; None when it is no copy of this user made by prefeed."""
    if not is_private(directory):
        return None
    return _read(directory / MARKER, directory)


def known_copies(config: Config) -> Iterator[CopyRecord]:
    """Yield copies in memory and those that the home remembers, each once; some may be gone."""
    seen = set()
    for directory in sorted(copies_of_user(config.memory_dir).glob("*/")):
        record = read_record(directory)
        if record is not None:
            seen.add(record.directory)
            yield record
    for file in sorted((config.home / "staged").glob("*.json")):
        remembered = _read(file, None)
        if remembered is not None and remembered.directory not in seen:
            here = read_record(Path(remembered.directory))
            if here is None and remembered.host not in ("", host_name()):
                continue  # of another node
            seen.add(remembered.directory)
            yield here or remembered


def _read(file: Path, directory: Path | None) -> CopyRecord | None:
    try:
        values: dict[str, Any] = json.loads(file.read_bytes())
        names = {field.name for field in fields(CopyRecord)}
        if values.pop("format") != FORMAT or not isinstance(values["state"], str):
            return None
        known = {name: value for name, value in values.items() if name in names}
        # A copy that was moved, or is mounted elsewhere now, is where it is found.
        return CopyRecord(**(known | ({} if directory is None else {"directory": str(directory)})))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _home_file(directory: str, config: Config) -> Path:
    return config.home / "staged" / f"{_digest(f'{host_name()} {directory}')}.json"


def _write(file: Path, text: str) -> None:
    with replacing(file, private=True, durable=False) as opened:
        opened.write(text.encode())
