"""Where a pack comes to lie: a directory, or a place in an object store that is filled from a directory of the home."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

from xxhash import xxh3_64_hexdigest

from prefeed.config import Config
from prefeed.errors import CannotPackError, ObjectNotFoundError, PackFullError, PackOccupiedError
from prefeed.packing.environment import DATA_FILE, LOCK_FILE
from prefeed.packing.journal import JOURNAL_NAME
from prefeed.sources.listing import ENCODING
from prefeed.sources.pack_index import INDEX_NAME, PackIndex
from prefeed.sources.packed import PackedSource
from prefeed.sources.urls import canonical_url, open_plain_source, pack_url
from prefeed.system.files import make_private, sync, write_durably
from prefeed.transfer import store
from prefeed.types import Buffer

PARTIAL: Final = ".partial"
_OURS: Final = re.compile(
    rf"shard-\d{{6,}}\.(tar|tfrecord)({re.escape(PARTIAL)})?|{re.escape(DATA_FILE)}|{re.escape(LOCK_FILE)}"
    rf"|\.{re.escape(INDEX_NAME)}\.[0-9a-f-]+"
)


class Place(Protocol):
    """A place for one pack.

    Attributes:
        url: Canonical URL, as messages have it.
        work: Local directory in which files are written, and in which the journal lies.
    """

    url: str
    work: Path

    def index(self) -> PackIndex | None:
        """Return the index of the finished pack that is there; None if there is none."""
        ...

    def prepare(self) -> None:
        """Make the place ready to be packed into.

        Raises:
            PackOccupiedError: It holds something that no unfinished pack explains.
        """
        ...

    def publish(self, written: Path, name: str) -> None:
        """Put a whole file of ``work`` in its place."""
        ...

    def withdraw(self, names: Iterable[str]) -> None:
        """Remove data files that an unfinished pack has put in their place; those that are not there are passed over."""
        ...

    def finish(self, parts: Iterable[Buffer]) -> None:
        """Put the index in its place: the pack is finished."""
        ...

    def tidy(self) -> None:
        """Remove what a finished pack does not need."""
        ...


def open_place(url_or_path: str | os.PathLike[str], config: Config) -> Place:
    """Return the place; nothing is written yet.

    Raises:
        CannotPackError: Nothing can be written there.
    """
    url = canonical_url(url_or_path)
    if url.startswith("/"):
        return LocalPlace(Path(url), config)
    if url.startswith(store.WRITABLE):
        return StorePlace(url, config)
    raise CannotPackError(f"{url} cannot be written to: pack into a directory, or into s3://, gs:// or az://")


def clean(directory: Path, *, keep: set[str]) -> None:
    """Remove what an unfinished pack left in its directory, but for these files."""
    for entry in list(os.scandir(directory)):
        if _OURS.fullmatch(entry.name) and entry.name not in keep:
            os.unlink(entry.path)


def check_room(directory: Path, needed_bytes: int) -> None:
    """Check that the file system has that much room.

    Raises:
        PackFullError: It has less.
    """
    free = shutil.disk_usage(directory).free
    if needed_bytes > free:
        raise PackFullError(
            f"{directory} has {free:,} bytes free, and about {needed_bytes:,} are needed: free "
            f"{needed_bytes - free:,} bytes, or pack elsewhere",
            needed_bytes=needed_bytes,
            free_bytes=free,
        )


class LocalPlace:
    """A directory; see ``Place``."""

    def __init__(self, directory: Path, config: Config) -> None:
        """Pack into ``directory``, an absolute path."""
        self.url: str = str(directory)
        self.work = directory
        self._config = config

    def index(self) -> PackIndex | None:
        """See ``Place.index``."""
        return _index_at(self.url, self._config) if (self.work / INDEX_NAME).exists() else None

    def prepare(self) -> None:
        """See ``Place.prepare``."""
        if self.work.exists() and not self.work.is_dir():
            raise PackOccupiedError(f"{self.work} is a file; give a directory")
        self.work.mkdir(parents=True, exist_ok=True)
        _require_free(self.url, set(os.listdir(self.work)))

    def publish(self, written: Path, name: str) -> None:
        """See ``Place.publish``."""
        os.replace(written, self.work / name)
        sync(self.work)

    def withdraw(self, names: Iterable[str]) -> None:
        """See ``Place.withdraw``."""
        for name in names:
            (self.work / name).unlink(missing_ok=True)

    def finish(self, parts: Iterable[Buffer]) -> None:
        """See ``Place.finish``."""
        write_durably(self.work / INDEX_NAME, parts)

    def tidy(self) -> None:
        """See ``Place.tidy``."""
        (self.work / LOCK_FILE).unlink(missing_ok=True)


class StorePlace:
    """A prefix of an object store; see ``Place``. Files are written below the home, put there, and removed."""

    def __init__(self, url: str, config: Config) -> None:
        """Pack below ``url``, which is canonical."""
        self.url = url
        self.work = config.home / "packing" / xxh3_64_hexdigest(url.encode(*ENCODING))
        self._config = config

    def index(self) -> PackIndex | None:
        """See ``Place.index``."""
        try:
            return _index_at(self.url, self._config)
        except ObjectNotFoundError:
            return None

    def prepare(self) -> None:
        """See ``Place.prepare``."""
        make_private(self.work)
        if (self.work / JOURNAL_NAME).exists():
            return
        with contextlib.closing(self._store()) as place:
            infos = (info for batch in place.source().list_objects() for info in batch)
            _require_free(self.url, {info.path for info in infos})

    def publish(self, written: Path, name: str) -> None:
        """See ``Place.publish``."""
        self.copy(written, name)
        written.unlink()

    def withdraw(self, names: Iterable[str]) -> None:
        """See ``Place.withdraw``."""
        with contextlib.closing(self._store()) as place:
            for name in names:
                with contextlib.suppress(ObjectNotFoundError):
                    place.remove([name])

    def finish(self, parts: Iterable[Buffer]) -> None:
        """See ``Place.finish``."""
        index = self.work / INDEX_NAME
        write_durably(index, parts)
        self.copy(index, INDEX_NAME)

    def tidy(self) -> None:
        """See ``Place.tidy``."""
        clean(self.work, keep=set())
        (self.work / INDEX_NAME).unlink(missing_ok=True)

    def copy(self, file: Path, name: str) -> None:
        """Put a file into the store, in several parts when it is large.

        Raises:
            SourceError: The store refuses it, or does not answer.
        """
        with contextlib.closing(self._store()) as place:
            place.put_file(name, file)

    def _store(self) -> store.StorePlace:
        return store.StorePlace(self.url, self._config)


def _require_free(url: str, names: set[str]) -> None:
    if names and JOURNAL_NAME not in names:
        shown = ", ".join(sorted(names)[:3])
        raise PackOccupiedError(f"{url} holds something else ({shown}): pack into an empty or new directory")


def _index_at(url: str, config: Config) -> PackIndex:
    source = PackedSource(canonical_url(pack_url(url)), open_plain_source(url, config), home=config.home)
    try:
        return source.index()
    finally:
        source.close()
