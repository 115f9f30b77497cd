"""From paths to ids, for lists of paths that grow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

_MOST_RECENT_AT_FIRST: Final = 1024


class PathIndex:
    """Hashes of all paths in order with their ids, 12 bytes a path, and the newest paths in a dict.

    Args:
        hashes: ``xxh3_64`` of each path, shape (num_paths,).
        path_bytes: Returns a path by its id: equal hashes are told apart by their paths.

    Invariants: the dict holds at most an eighth of the paths, or 1024. Of equal hashes lower ids come first.
    """

    def __init__(self, hashes: NDArray[np.uint64], path_bytes: Callable[[int], bytes]) -> None:
        """Sort the hashes; about 0.1 µs each."""
        order = np.argsort(hashes, kind="stable")
        self._path_bytes = path_bytes
        self._hashes = hashes[order]
        self._ids = order.astype(np.uint32)
        self._recent: dict[bytes, int] = {}
        self._has_repeats = bool((self._hashes[1:] == self._hashes[:-1]).any())

    @property
    def has_repeats(self) -> bool:
        """Whether a path may have several ids; those that are added later do not count."""
        return self._has_repeats

    def find(self, path: bytes) -> int | None:
        """Return the lowest id of a path; None if it has none."""
        return next(self._found(path), None)

    def find_all(self, path: bytes) -> list[int]:
        """Return the ids of a path, ascending."""
        return list(self._found(path))

    def find_hashes(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the lowest id of a path with each of these hashes, -1 where there is none; about 0.1 µs each."""
        self._merge()
        if not len(self._hashes):
            return np.full(len(hashes), -1, np.int64)
        places = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        return np.where(self._hashes[places] == hashes, self._ids[places].astype(np.int64), -1)

    def _found(self, path: bytes) -> Iterator[int]:
        wanted = np.uint64(xxh3_64_intdigest(path))
        for rank in range(int(np.searchsorted(self._hashes, wanted)), len(self._hashes)):
            if self._hashes[rank] != wanted:
                break
            index = int(self._ids[rank])
            if self._path_bytes(index) == path:
                yield index
        if (recent := self._recent.get(path)) is not None:
            yield recent

    def add(self, paths: list[bytes], first: int) -> None:
        """Take note of paths that were appended with ids from ``first`` on."""
        for index, path in enumerate(paths, first):
            self._recent.setdefault(path, index)
        if len(self._recent) > max(_MOST_RECENT_AT_FIRST, len(self._ids) // 8):
            self._merge()

    def _merge(self) -> None:
        if not self._recent:
            return
        hashes = np.fromiter(map(xxh3_64_intdigest, self._recent), np.uint64, len(self._recent))
        order = np.argsort(hashes, kind="stable")
        ids = np.fromiter(self._recent.values(), np.uint32, len(hashes))[order]
        places = np.searchsorted(self._hashes, hashes[order], side="right")
        self._hashes = np.insert(self._hashes, places, hashes[order])
        self._ids = np.insert(self._ids, places, ids)
        self._recent = {}
