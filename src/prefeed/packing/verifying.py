"""Reading all of a pack back."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final

import numpy as np

from prefeed.config import Config
from prefeed.errors import SourceError
from prefeed.packing.work import PackProgress
from prefeed.sources.answers import patiently
from prefeed.sources.packed import PackedSource
from prefeed.sources.urls import open_source

_THREADS: Final = 16
_BATCH: Final = 256
_DEADLINE_SECONDS: Final = 10.0
"""A damaged value stays damaged: it is not asked for longer than this."""


def verify(url: str, config: Config, *, progress: PackProgress | None = None) -> tuple[str, ...]:
    """Read every object of a pack and compare it with its checksum; return what is wrong, a sentence each.

    Args:
        url: Canonical URL of the pack, ``pack+…``.
        config: Settings.
        progress: Told how far it is.

    Raises:
        SourceError: The pack cannot be opened.
    """
    source = open_source(url, config)
    assert isinstance(source, PackedSource)
    try:
        return tuple(_wrong(source, progress or (lambda objects, total, size: None)))
    finally:
        source.close()


def _wrong(source: PackedSource, progress: PackProgress) -> Iterator[str]:
    index = source.index(newest=True)
    index.validate()

    def problem(number: int) -> str | None:
        try:
            patiently(lambda: source.fetch(index.path(number)), deadline_seconds=_DEADLINE_SECONDS)
        except SourceError as err:
            return err.message
        return None

    order = iter(np.lexsort((index.offsets, index.files)).tolist())  # as it lies in the data files
    done = 0
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="prefeed-verify") as pool:
        while batch := list(islice(order, _BATCH)):
            yield from filter(None, pool.map(problem, batch))
            done += len(batch)
            progress(done, len(index), int(index.sizes[batch].sum()))
