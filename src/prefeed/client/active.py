"""Which reader serves the sample that this thread is making: set by the loader, used by datasets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prefeed.client.reader import ObjectReader


class _Active(threading.local):
    reader: ObjectReader | None = None


_active = _Active()


@contextmanager
def serving(reader: ObjectReader) -> Iterator[None]:
    """Inside it, datasets of this thread read with the loader's reader, which knows whose plan they follow."""
    previous, _active.reader = _active.reader, reader
    try:
        yield
    finally:
        _active.reader = previous


def active_reader(manifest_dir: Path) -> ObjectReader | None:
    """Return the reader in charge, if it reads this manifest."""
    reader = _active.reader
    return reader if reader is not None and reader.dataset.manifest.directory == manifest_dir else None
