"""The room of stage caches in memory, and that on disk: who may take how much of it, beside the objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from prefeed.core.shares import Shares
from prefeed.server.session_files import CacheKey, SessionFiles
from prefeed.store.namespaces import Holders, is_open_elsewhere, try_trim
from prefeed.store.read_counts import counted_reads
from prefeed.store.shared import SharedTier
from prefeed.store.shared_files import empty_if_damaged


class Room:
    """One budget, its division, and the directories that it pays for.

    Args:
        root: Directory below which the sessions lie.
        budget_bytes: The most that objects and caches may take together.
        floor_bytes: What the file system must keep free.
        on_disk: Values have sums beside them.
        is_suspect: As for ``empty_if_damaged``.

    **Threads**: the loop's.
    **Invariants**: what the objects may take, all limits, and what dropped caches still hold stay within the budget.
    """

    def __init__(
        self, root: Path, budget_bytes: int, *, floor_bytes: int = 0, on_disk: bool = False, is_suspect: bool = True
    ) -> None:
        self.directory = root
        self.is_suspect = is_suspect
        self.damage: list[str] = []
        self._on_disk = on_disk
        self.floor_bytes = floor_bytes
        self.files = SessionFiles(root)
        self.shares = Shares(budget_bytes)
        self._objects_bytes: Callable[[], int] = lambda: 0
        self._resize_objects: Callable[[int], int] = lambda budget_bytes: budget_bytes
        self._dropped: dict[str, Holders] = {}
        self._num_dropped = 0

    def bind(self, *, objects_bytes: Callable[[], int], resize_objects: Callable[[int], int]) -> None:
        """Divide the room with the objects from now on.

        Args:
            objects_bytes: Returns what they take of the file system, which does not come back.
            resize_objects: Lets them take so many bytes at most; returns what they may take, more when they have it.
        """
        self._objects_bytes, self._resize_objects = objects_bytes, resize_objects
        self._resize_objects(self.shares.objects_limit_bytes)

    def find(self, key: CacheKey, limit_bytes: int) -> None:
        """A cache of an earlier life is here; who has it open may still write up to its limit."""
        if why := empty_if_damaged(self.files.path(key), on_disk=self._on_disk, is_suspect=self.is_suspect):
            self.damage.append(f"the cache in {self.files.path(key)} was damaged ({why}): its samples are made again")
        if not self._try_trim(key):
            self._set(key, max(self.files.taken_bytes(key), limit_bytes))

    def free_bytes(self, key: CacheKey) -> int:
        """Return what could be added to the limit of a cache."""
        return self.shares.free_bytes(key, objects_bytes=self._objects_bytes())

    def limit_of(self, key: CacheKey) -> int:
        """Return the most that a cache may take here."""
        return self.shares.limit_of(key)

    def raise_limit(self, key: CacheKey, limit_bytes: int) -> int:
        """Let a cache take that much, or as much as there is; returns its limit, which is never lowered by this."""
        before = self.shares.limit_of(key)
        limit = self.shares.grant(key, limit_bytes, objects_bytes=self._objects_bytes())
        if limit > before and self._resize_objects(self.shares.objects_limit_bytes) > self.shares.objects_limit_bytes:
            self._set(key, before)  # the objects could not give it back
        return self.shares.limit_of(key)

    def contents_of(self, key: CacheKey, *, on_disk: bool = False) -> tuple[int, int]:
        """Return entries of a cache and their bytes; does not wait, and who has its directory may be stopped: then none."""
        if not self.files.has_store(key):
            return 0, 0
        tier = SharedTier(
            self.files.path(key), limit_bytes=self.limit_of(key), on_disk=on_disk, patience_seconds=0, adopts=False
        )
        try:
            statistics = tier.statistics()
        finally:
            tier.close()
        return statistics.entries, statistics.value_bytes

    def reads_of(self, key: CacheKey) -> tuple[int, int]:
        """Return hits and misses that its processes have counted there."""
        return counted_reads(self.files.path(key))

    def is_in_use(self, key: CacheKey) -> bool:
        """Return True while some process has the cache open."""
        return is_open_elsewhere(self.files.path(key))

    def settle(self, key: CacheKey) -> bool:
        """Nobody uses the cache: lower its limit to what its files take. False when some process has it open."""
        trimmed = self._try_trim(key)
        self._resize_objects(self.shares.objects_limit_bytes)
        return trimmed

    def drop(self, keys: Iterable[CacheKey]) -> None:
        """The caches are about to be removed; what processes have open of them counts until they let go."""
        for key in keys:
            holders = Holders.of(self.files.path(key))
            limit = self.shares.limit_of(key)
            self.shares.forget(key)
            if holders is not None and holders.are_there():
                self._num_dropped += 1
                name = f"dropped-{self._num_dropped}"
                self._dropped[name] = holders
                self.shares.set(name, limit)
            elif holders is not None:
                holders.close()

    def reclaim(self) -> None:
        """Count no more what dropped caches held, where everybody has let go."""
        for name, holders in list(self._dropped.items()):
            if not holders.are_there():
                holders.close()
                del self._dropped[name]
                self.shares.forget(name)
        self._resize_objects(self.shares.objects_limit_bytes)

    @property
    def waits_for_others(self) -> bool:
        """True while processes hold what was dropped."""
        return bool(self._dropped)

    def close(self) -> None:
        """Let go of everything; what lies in the directories stays."""
        for holders in self._dropped.values():
            holders.close()
        self._dropped.clear()

    def _try_trim(self, key: CacheKey) -> bool:
        if not try_trim(self.files.path(key)):
            return False
        self._set(key, self.files.taken_bytes(key))
        return True

    def _set(self, key: CacheKey, limit_bytes: int) -> None:
        if limit_bytes:
            self.shares.set(key, limit_bytes)
        else:
            self.shares.forget(key)
