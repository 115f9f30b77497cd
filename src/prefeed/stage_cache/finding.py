"""Samples that are in a cache and still true: the files of each entry's note are compared with the present."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

from prefeed.errors import EntryFormatError
from prefeed.interception import current_reader
from prefeed.stage_cache.cache_store import CacheStore
from prefeed.stage_cache.files_seen import FilesSeen, Note, decode_note, keys_now
from prefeed.stage_cache.rows import Row

_log = logging.getLogger("prefeed")

ABSENT: Final = object()
"""Stands for a sample that is to be made."""


class Finder:
    """Reads samples from caches of one stage.

    **Threads and processes.** Any thread; works on after a fork.
    """

    def __init__(self, *, revalidates: bool) -> None:
        """Note how to read.

        Args:
            revalidates: Files are asked each time whether they have changed; else once.
        """
        self._revalidates = revalidates
        self._trusted: dict[bytes, bytes] = {}

    def found(
        self,
        store: CacheStore,
        keys: Sequence[bytes],
        borrow: ExitStack | None = None,
    ) -> list[Any]:
        """Return samples that are in the cache and still true, ``ABSENT`` for others.

        Args:
            store: The cache.
            keys: Their identities.
            borrow: Samples that are all found are views, valid until this is closed. None: they own what they hold.
        """
        with ExitStack() as stack:
            views = stack.enter_context(store.reading()).get_views(keys)
            entries = [None if view is None else _opened(view) for view in views]
            notes = [None if entry is None else entry.note for entry in entries]
            true = self._true(notes)
            copy = borrow is None or not all(true)
            samples = [
                _load(entry.row, copy=copy) if is_true and entry is not None else ABSENT
                for entry, is_true in zip(entries, true, strict=True)
            ]
            if borrow is not None and not copy:
                borrow.push(stack.pop_all())
        _tell_stage_above(note for note, is_true in zip(notes, true, strict=True) if is_true and note is not None)
        return samples

    def note(self, store: CacheStore, key: bytes) -> Note | None:
        """Return the note of an entry, true or not; None if there is none. A few microseconds, however large it is."""
        with store.reading() as views:
            view = views.get_views((key,))[0]
            entry = None if view is None else _opened(view)
            return None if entry is None else entry.note

    def entry(self, store: CacheStore, key: bytes) -> tuple[bytes, Note] | None:
        """Return the entry of one sample and its note if it is true; None if it is not."""
        data = store.get(key)
        entry = None if data is None else _opened(memoryview(data))
        if data is None or entry is None or not self._true((entry.note,))[0]:
            return None
        return data, entry.note

    def _true(self, notes: Sequence[Note | None]) -> list[bool]:
        """Return for each note whether its files are still the same."""
        wanted = {path for note in notes if note is not None for path in note.paths}
        now = {path: self._trusted[path] for path in wanted if path in self._trusted}
        asked = keys_now([path for path in wanted if path not in now])
        if not self._revalidates:
            self._trusted.update(asked)
        now |= asked
        return [
            note is not None and (not note.paths or all(now[path] == key for path, key in note.files()))
            for note in notes
        ]


class _Entry(NamedTuple):
    row: Row
    note: Note


def _opened(view: memoryview) -> _Entry | None:
    try:
        row = Row.open(view)
        return _Entry(row, decode_note(row.note))
    except EntryFormatError:
        return None


def _load(row: Row, *, copy: bool) -> Any:
    try:
        return row.load(copy=copy)
    except EntryFormatError as err:
        _log.warning("prefeed: a sample is computed again: %s", err)
        return ABSENT


def _tell_stage_above(notes: Iterable[Note]) -> None:
    """A sample of a cached stage above is being made of these entries."""
    reader = current_reader()
    if isinstance(reader, FilesSeen):
        for note in notes:
            reader.add(note)
