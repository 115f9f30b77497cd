"""Tiers of an index and segments, two in memory and one in files, and checks of what they hold."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

from prefeed.store.files import TierFiles
from prefeed.store.index import IndexReader
from prefeed.store.log import Corrupt, LogReader, LogWriter
from prefeed.store.memory import MemoryFiles
from prefeed.store.segment import PAGE_BYTES, TRAILER_BYTES

MIB = 1024**2


def key_of(number: int) -> bytes:
    """Return a key, a hash as all keys are."""
    return blake2b(number.to_bytes(8, "little"), digest_size=16).digest()


def value_of(number: int, size_bytes: int) -> bytes:
    """Return a value without zeros: holes in a file show."""
    return random.Random(f"{number} {size_bytes}").randbytes(size_bytes).replace(b"\0", b"\1")


class LogTier:
    """The descriptors of a tier. Values in files have checksums, which readers compare."""

    def __init__(self, index: int, segments: list[int], *, sums: bool) -> None:
        self.index, self.segments, self.sums = index, segments, sums

    @property
    def segment(self) -> int:
        """The segment of values that are not transient."""
        return self.segments[0]

    def writer(self, budget_bytes: int = 64 * MIB) -> LogWriter:
        """Open the tier, as another process does after a kill."""
        return LogWriter(self.index, self.segments, budget_bytes=budget_bytes, sums=self.sums)

    def reader(self, on_corrupt: Corrupt | None = None) -> LogReader:
        return LogReader(self.index, self.segments, verify=self.sums, on_corrupt=on_corrupt)

    def held(self, expected: Mapping[bytes, bytes]) -> set[bytes]:
        """Return which keys are held; their values are right."""
        reader = self.reader()
        found = {key: reader.get(key) for key in expected}
        assert {key for key, value in found.items() if value not in (None, expected[key])} == set()
        return {key for key, value in found.items() if value is not None}

    def validate(self, writer: LogWriter, values: Mapping[bytes, bytes], *, slack_pages: int = 1) -> None:
        """Check that the values are all there is, and that pages without a part of them are free."""
        assert self.held(values) == set(values)
        assert {key: size for key, size, _ in writer.entries()} == {key: len(value) for key, value in values.items()}
        assert writer.num_entries == len(values)
        assert writer.value_bytes == sum(map(len, values.values()))
        for number, descriptor in enumerate(self.segments):
            pages: set[int] = set()
            for _, place in IndexReader(self.index).entries():
                if place.segment == number:
                    end = place.offset + place.length + TRAILER_BYTES
                    pages.update(range(place.offset // PAGE_BYTES, (end - 1) // PAGE_BYTES + 1))
            allocated = os.fstat(descriptor).st_blocks * 512
            assert len(pages) * PAGE_BYTES <= allocated <= (len(pages) + slack_pages) * PAGE_BYTES


@contextmanager
def tier_in_memory(*, sums: bool = False) -> Iterator[LogTier]:
    files = MemoryFiles()
    try:
        yield LogTier(files.index, files.segments, sums=sums)
    finally:
        files.close()


@contextmanager
def tier_in_files(directory: Path) -> Iterator[LogTier]:
    files = TierFiles(directory)
    try:
        yield LogTier(files.index, files.segments, sums=True)
    finally:
        files.close()
