"""Place of a pack: a directory, or a prefix of an object store that is filled from a directory of the home."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

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
from prefeed.transfer.store import WRITABLE, StorePlace
from prefeed.types import Buffer

PARTIAL: Final = ".partial"
_OURS: Final = re.compile(
    rf"shard-\d{{6,}}\.(tar|tfrecord)({re.escape(PARTIAL)})?|{re.escape(DATA_FILE)}|{re.escape(LOCK_FILE)}"
    rf"|\.{re.escape(INDEX_NAME)}\.[0-9a-f-]+"
)


class PackLocation:
    """Place of one pack.

    Attributes:
        url: Canonical URL.
        work: Local directory for the journal and for files that are being written. Of a directory it is the place itself; for a
            store it is a directory of the home, and files are removed from there after their upload.
        is_store: True for an object store.
    """

    def __init__(self, url_or_path: str | os.PathLike[str], config: Config) -> None:
        """Describe the place; nothing is written yet.

        Raises:
            CannotPackError: A place of this kind cannot be written.
        """
        self.url: str = canonical_url(url_or_path)
        self.is_store: bool = self.url.startswith(WRITABLE)
        self._config = config
        if not self.is_store and not self.url.startswith("/"):
            raise CannotPackError(
                f"{self.url} cannot be written to: pack into a directory, or into s3://, gs:// or az://"
            )
        below_home = config.home / "packing" / xxh3_64_hexdigest(self.url.encode(*ENCODING))
        self.work: Path = below_home if self.is_store else Path(self.url)

    def index(self) -> PackIndex | None:
        """Return the index of the finished pack in this place; None if there is no such pack."""
        if not self.is_store and not (self.work / INDEX_NAME).exists():
            return None
        source = PackedSource(
            canonical_url(pack_url(self.url)), open_plain_source(self.url, self._config), home=self._config.home
        )
        with contextlib.closing(source):
            try:
                return source.index()
            except ObjectNotFoundError:
                return None

    def prepare(self) -> None:
        """Create the directory, and check that the place holds nothing but an unfinished pack.

        Raises:
            PackOccupiedError: The place holds something else.
        """
        if self.is_store:
            make_private(self.work)
            if (self.work / JOURNAL_NAME).exists():
                return
            with contextlib.closing(StorePlace(self.url, self._config)) as place:
                names = {info.path for batch in place.source().list_objects() for info in batch}
        else:
            if self.work.exists() and not self.work.is_dir():
                raise PackOccupiedError(f"{self.work} is a file; give a directory")
            self.work.mkdir(parents=True, exist_ok=True)
            names = set(os.listdir(self.work))
        if names and JOURNAL_NAME not in names:
            shown = ", ".join(sorted(names)[:3])
            raise PackOccupiedError(f"{self.url} holds something else ({shown}): pack into an empty or new directory")

    def require_room(self, needed_bytes: int) -> None:
        """Check the free space of the directory.

        Raises:
            PackFullError: The file system has less than ``needed_bytes``.
        """
        free = shutil.disk_usage(self.work).free
        if needed_bytes > free:
            raise PackFullError(
                f"{self.work} has {free:,} bytes free, and about {needed_bytes:,} are needed: free "
                f"{needed_bytes - free:,} bytes, or pack elsewhere",
                needed_bytes=needed_bytes,
                free_bytes=free,
            )

    def publish(self, name: str) -> None:
        """Move a complete data file from its partial name to its place."""
        written = self.work / (name + PARTIAL)
        if self.is_store:
            self.upload(written, name)
            written.unlink()
        else:
            os.replace(written, self.work / name)
            sync(self.work)

    def upload(self, file: Path, name: str) -> None:
        """Put a file into the store.

        Raises:
            SourceError: The store refuses the file, or does not answer.
        """
        with contextlib.closing(StorePlace(self.url, self._config)) as place:
            place.put_file(name, file)

    def withdraw(self, names: Iterable[str]) -> None:
        """Remove published data files; missing ones are no error."""
        if not self.is_store:
            for name in names:
                (self.work / name).unlink(missing_ok=True)
            return
        with contextlib.closing(StorePlace(self.url, self._config)) as place:
            for name in names:
                with contextlib.suppress(ObjectNotFoundError):
                    place.remove([name])

    def clean(self, *, keep: set[str]) -> None:
        """Remove the files of an unfinished pack from the directory, except these."""
        for entry in list(os.scandir(self.work)):
            if _OURS.fullmatch(entry.name) and entry.name not in keep:
                os.unlink(entry.path)

    def finish(self, index: Iterable[Buffer]) -> None:
        """Write the index, which makes the pack a finished one."""
        write_durably(self.work / INDEX_NAME, index)
        if self.is_store:
            self.upload(self.work / INDEX_NAME, INDEX_NAME)

    def tidy(self) -> None:
        """Remove files that a finished pack does not need."""
        if self.is_store:
            self.clean(keep=set())
            (self.work / INDEX_NAME).unlink(missing_ok=True)
        else:
            (self.work / LOCK_FILE).unlink(missing_ok=True)
