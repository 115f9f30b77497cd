"""LMDB environments whose keys are paths. Each value is one range of ``data.mdb``, which readers of the pack read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Self

import numpy as np

from prefeed.errors import CannotPackError
from prefeed.types import Buffer

try:
    import lmdb
except ImportError:  # the other formats do not need it
    WRITE_ERRORS: tuple[type[Exception], ...] = (OSError,)
else:
    WRITE_ERRORS = (OSError, lmdb.Error)

DATA_FILE: Final = "data.mdb"
LOCK_FILE: Final = "lock.mdb"
_MAPPING: Final = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) ")


def require_lmdb() -> None:
    """Raise ``CannotPackError`` if LMDB environments cannot be written."""
    if len(WRITE_ERRORS) == 1:
        raise CannotPackError("lmdb needs the package lmdb: pip install 'prefeed[pack]'")


class EnvironmentWriter:
    """Writes values, a batch per transaction: after a kill at any instant, whole batches are there.

    **Ownership.** The creator closes it; a context manager.
    """

    def __init__(self, directory: Path, map_bytes: int) -> None:
        """Open or create the environment.

        Args:
            directory: Directory of ``data.mdb``.
            map_bytes: Expected size, in bytes; the map grows if that is too small.
        """
        self._map_bytes = map_bytes
        self._environment = lmdb.open(str(directory), map_size=map_bytes, readahead=False)

    def put(self, batch: Sequence[tuple[bytes, Buffer]]) -> None:
        """Write these values and make them durable."""
        while True:
            try:
                with self._environment.begin(write=True) as transaction:
                    for key, value in batch:
                        transaction.put(key, value)
                return
            except lmdb.MapFullError:
                self._map_bytes *= 2
                self._environment.set_mapsize(self._map_bytes)

    def keep_only(self, keys: Iterable[bytes], num_keys: int) -> None:
        """Delete all other keys, which a process had written and not recorded when it was killed."""
        with self._environment.begin(write=True) as transaction:
            if transaction.stat()["entries"] != num_keys:
                wanted = set(keys)
                for key in [key for key in transaction.cursor().iternext(values=False) if key not in wanted]:
                    transaction.delete(key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._environment.close()


def value_offsets(data_file: Path, keys: Iterable[bytes]) -> Iterator[int]:
    """Yield the offset of each key's value in the data file.

    Raises:
        CannotPackError: A key is not there.
    """
    with (
        lmdb.open(str(data_file), subdir=False, readonly=True, lock=False, readahead=False) as environment,
        environment.begin(buffers=True) as transaction,
    ):
        places = _Places(data_file)
        for key in keys:
            value = transaction.get(key)
            if value is None:
                raise CannotPackError(f"{data_file} has lost {key!r}: remove the directory and pack again")
            yield places.offset(value)


class _Places:
    """Offsets of mapped values: LMDB maps its file as it is."""

    def __init__(self, data_file: Path) -> None:
        self._data_file = data_file
        self._base: int | None = None

    def offset(self, value: memoryview) -> int:
        if not len(value):
            return 0
        address = int(np.frombuffer(value, np.uint8).__array_interface__["data"][0])
        if self._base is None:
            self._base = self._find_base(address)
        return address - self._base

    def _find_base(self, address: int) -> int:
        """Return the address of byte 0 of the file."""
        with open("/proc/self/maps") as maps:
            for line in maps:
                match = _MAPPING.match(line)
                if match and int(match[1], 16) <= address < int(match[2], 16):
                    return int(match[1], 16) - int(match[3], 16)
        raise CannotPackError(f"{self._data_file} is not mapped, so that its values cannot be found")
