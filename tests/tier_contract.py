"""What a tier is, its contract as tests, and a tier of one dict that passes it.

::

    class TestMyTier(TierContract):
        @pytest.fixture
        def tiers(self):
            ...
            yield MyTiers(...)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Protocol

import pytest

from prefeed.errors import TierFullError
from prefeed.store.layout import stored_bytes
from prefeed.types import ENTRY_KEY_BYTES, Buffer


class WritableTier(Protocol):
    """The one writer of a tier; one thread at a time."""

    @property
    def capacity_bytes(self) -> int:
        """The most that values may cost together, counted by ``stored_bytes``."""
        ...

    @property
    def used_bytes(self) -> int:
        """What they cost now."""
        ...

    @property
    def file_bytes(self) -> int:
        """What they have taken of the file system."""
        ...

    @property
    def is_scattered(self) -> bool:
        """Whether ``give_back`` gives no more, even when not all that is taken holds values."""
        ...

    def capacity_within(self, budget_bytes: int) -> int:
        """Return what ``capacity_bytes`` is when the tier takes so much of the file system."""
        ...

    def expect_foreign_readers(self, are_expected: bool) -> None:
        """Let readers of other PID namespaces open the tier; or, once those that are in have left, no more."""
        ...

    def resize(self, budget_bytes: int) -> int:
        """Let the tier take so much from now on; returns what it may take, more when its file has more already."""
        ...

    def give_back(self, budget_bytes: int) -> int:
        """Give back what holds no values, part by part, until no more than that is taken; returns what is taken now."""
        ...

    def apply(
        self,
        puts: Sequence[tuple[bytes, Buffer, bool]],
        deletes: Sequence[bytes],
        sums: Mapping[bytes, int] = MappingProxyType({}),
    ) -> None:
        """Delete, then store; raises TierFullError with none of the puts stored and the deletes done. Sums may be known."""
        ...

    def put_many(self, items: Sequence[tuple[bytes, Buffer, bool]]) -> None:
        """Store all of a group or, with TierFullError, none of it."""
        ...

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Delete values; unknown keys are passed over."""
        ...

    def entries(self) -> Iterator[tuple[bytes, int, bool]]:
        """Yield key, size in bytes, and whether it is transient."""
        ...

    def reclaim_dead_readers(self) -> int:
        """Free what killed readers held; returns how many there were."""
        ...

    def close(self) -> None:
        """Let go of the tier; its values stay."""
        ...

    def destroy(self) -> None:
        """Remove the tier and its values."""
        ...


class ViewBatch(Protocol):
    """A snapshot of a tier."""

    def get_views(self, keys: Sequence[bytes]) -> list[memoryview | None]:
        """Return a view of each value, None for those not held; valid inside the batch only."""
        ...


class ReadableTier(Protocol):
    """A reader of a tier; never raises for what the tier does."""

    def get(self, key: bytes) -> bytes | None:
        """Return a copy of a value, None if it is not held."""
        ...

    def batch(self) -> AbstractContextManager[ViewBatch]:
        """Return a context manager in which views are valid."""
        ...

    def reopen_if_replaced(self) -> bool:
        """Let go of a store that is no longer the one at its path; True if it was not."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether the last read found a tier, whatever it held."""
        ...

    def close(self) -> None:
        """Let go of the tier."""
        ...


SIZES = (0, 1, 1000, 2014, 2015, 4080, 4081, 84_000, 1_000_003)
"""Empty, inside a tree page, at the edges of a page, a photo, and a large one."""


class MemoryTier:
    """A tier that is a dict: for tests of what stands above tiers. One process; reader and writer are the same object.

    A batch sees what is written during it, which real tiers do not do; no one may rely on either.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._values: dict[bytes, tuple[bytes, bool]] = {}
        self._capacity_bytes = capacity_bytes

    @property
    def capacity_bytes(self) -> int:
        """The most that values may cost together."""
        return self._capacity_bytes

    @property
    def is_in_place(self) -> bool:
        """Whether it is where readers look for it."""
        return True

    @property
    def used_bytes(self) -> int:
        """What they cost now."""
        return sum(stored_bytes(len(value)) for value, _ in self._values.values())

    @property
    def file_bytes(self) -> int:
        """A dict takes no file system."""
        return 0

    @property
    def is_scattered(self) -> bool:
        """There is nothing to be given back."""
        return False

    def capacity_within(self, budget_bytes: int) -> int:
        """A dict needs nothing beside its values."""
        return budget_bytes

    def give_back(self, budget_bytes: int) -> int:
        """There is nothing to be given back."""
        return 0

    def expect_foreign_readers(self, are_expected: bool) -> None:
        """A dict has readers in its own process only."""

    @property
    def is_open(self) -> bool:
        """A dict is always there."""
        return True

    def resize(self, budget_bytes: int) -> int:
        """Hold so much from now on."""
        self._capacity_bytes = budget_bytes
        return budget_bytes

    def apply(
        self,
        puts: Sequence[tuple[bytes, Buffer, bool]],
        deletes: Sequence[bytes],
        sums: Mapping[bytes, int] = MappingProxyType({}),
    ) -> None:
        """Delete, then store all or none."""
        for key, _, _ in puts:
            if len(key) != ENTRY_KEY_BYTES:
                raise ValueError(f"a key has {ENTRY_KEY_BYTES} bytes, not {len(key)}")
        for key in deletes:
            self._values.pop(key, None)
        before = dict(self._values)
        for key, value, transient in puts:
            self._values[key] = (bytes(value), transient)
        if self.used_bytes > self._capacity_bytes:
            self._values = before
            raise TierFullError(f"no room for {len(puts)} values in {self._capacity_bytes} bytes")

    def put_many(self, items: Sequence[tuple[bytes, Buffer, bool]]) -> None:
        """Store all or none."""
        self.apply(items, ())

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Delete values; unknown keys are passed over."""
        self.apply((), keys)

    def entries(self) -> Iterator[tuple[bytes, int, bool]]:
        """Yield key, size and whether it is transient."""
        for key, (value, transient) in list(self._values.items()):
            yield key, len(value), transient

    def reclaim_dead_readers(self) -> int:
        """No reader of a dict can die by itself."""
        return 0

    def get(self, key: bytes) -> bytes | None:
        """Return a value, None if it is not held."""
        found = self._values.get(key)
        return None if found is None else found[0]

    def batch(self) -> AbstractContextManager[ViewBatch]:
        """Return a context manager in which views are valid."""
        return _MemoryBatch(self)

    def reopen_if_replaced(self) -> bool:
        """Nothing can replace a dict."""
        return False

    def close(self) -> None:
        """Nothing to let go of."""

    def destroy(self) -> None:
        """Forget all values."""
        self._values.clear()


class _MemoryBatch:
    def __init__(self, tier: MemoryTier) -> None:
        self._tier = tier
        self._views: list[memoryview | None] = []

    def __enter__(self) -> _MemoryBatch:
        return self

    def __exit__(self, *_: object) -> None:
        for view in self._views:
            if view is not None:
                view.release()

    def get_views(self, keys: Sequence[bytes]) -> list[memoryview | None]:
        values = [self._tier.get(key) for key in keys]
        views = [None if value is None else memoryview(value) for value in values]
        self._views += views
        return views


class Tiers(Protocol):
    """What the suite needs: both ends of one empty tier."""

    writer: WritableTier
    reader: ReadableTier


def key_of(number: int) -> bytes:
    """Return a key that looks like a hash: neighbours are far apart."""
    return (number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128)).to_bytes(16, "big")


def value_of(number: int, size_bytes: int) -> bytes:
    """Return bytes that tell one number and one offset from another."""
    word = (number * 0x9E3779B97F4A7C15 % (1 << 64)).to_bytes(8, "big")
    return (word * (size_bytes // 8 + 1))[:size_bytes]


class TierContract:
    """Run over every tier there is, the fake included."""

    @pytest.mark.parametrize("transient", [False, True], ids=["resident", "transient"])
    def test_a_value_comes_back_as_it_went_in(self, tiers: Tiers, transient: bool) -> None:
        values = {key_of(i): value_of(i, size) for i, size in enumerate(SIZES)}
        tiers.writer.put_many([(key, value, transient) for key, value in values.items()])
        assert {key: tiers.reader.get(key) for key in values} == values
        with tiers.reader.batch() as batch:
            views = batch.get_views(list(values))
            assert [view is not None and bytes(view) for view in views] == list(values.values())
        assert {key: (size, kind) for key, size, kind in tiers.writer.entries()} == {
            key: (len(value), transient) for key, value in values.items()
        }

    @pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
    def test_any_buffer_is_a_value(self, tiers: Tiers, buffer: type[Buffer]) -> None:
        tiers.writer.put_many([(key_of(1), buffer(b"abc" * 5000), False)])
        assert tiers.reader.get(key_of(1)) == b"abc" * 5000

    def test_unknown_keys_are_none_in_place(self, tiers: Tiers) -> None:
        tiers.writer.put_many([(key_of(1), b"one", False), (key_of(3), b"three", True)])
        with tiers.reader.batch() as batch:
            found = batch.get_views([key_of(i) for i in range(5)])
            assert [view and bytes(view) for view in found] == [None, b"one", None, b"three", None]
        assert tiers.reader.get(key_of(0)) is None

    def test_a_put_replaces_value_and_kind(self, tiers: Tiers) -> None:
        for transient, size in ((False, 10_000), (True, 50), (False, 0), (True, 90_000), (True, 4000)):
            tiers.writer.put_many([(key_of(7), value_of(size, size), transient)])
            assert tiers.reader.get(key_of(7)) == value_of(size, size)
            assert list(tiers.writer.entries()) == [(key_of(7), size, transient)]
            assert tiers.writer.used_bytes == stored_bytes(size)

    def test_deletes_come_before_puts(self, tiers: Tiers) -> None:
        tiers.writer.put_many([(key_of(1), b"old", False), (key_of(2), b"two", False)])
        tiers.writer.apply([(key_of(1), b"new", True)], [key_of(1), key_of(2), key_of(3)])
        assert list(tiers.writer.entries()) == [(key_of(1), 3, True)]
        assert tiers.reader.get(key_of(1)) == b"new"
        assert tiers.reader.get(key_of(2)) is None

    def test_what_is_deleted_costs_nothing(self, tiers: Tiers) -> None:
        keys = [key_of(i) for i in range(20)]
        tiers.writer.put_many([(key, value_of(i, i * 777), i % 2 == 0) for i, key in enumerate(keys)])
        tiers.writer.delete_many(keys)
        tiers.writer.delete_many(keys)
        assert tiers.writer.used_bytes == 0
        assert list(tiers.writer.entries()) == []
        assert tiers.reader.get(keys[3]) is None

    def test_a_group_that_does_not_fit_is_not_stored_at_all(self, tiers: Tiers) -> None:
        tiers.writer.put_many([(key_of(0), b"stays", False), (key_of(1), b"goes", False)])
        size = tiers.writer.capacity_bytes // 4
        group = [(key_of(i), value_of(i, size), False) for i in range(2, 7)]
        with pytest.raises(TierFullError):
            tiers.writer.apply(group, [key_of(1)])
        assert list(tiers.writer.entries()) == [(key_of(0), 5, False)]
        assert tiers.writer.used_bytes == stored_bytes(5)
        tiers.writer.put_many(group[:3])
        assert tiers.reader.get(key_of(0)) == b"stays"

    def test_no_key_but_of_16_bytes(self, tiers: Tiers) -> None:
        for key in (b"", b"short", b"x" * 17):
            with pytest.raises(ValueError, match="16 bytes"):
                tiers.writer.put_many([(key_of(0), b"x", False), (key, b"x", False)])
        assert list(tiers.writer.entries()) == []

    def test_what_is_given_back_holds_no_values(self, tiers: Tiers) -> None:
        keys = [key_of(i) for i in range(12)]
        tiers.writer.put_many([(key, value_of(i, 50_000), False) for i, key in enumerate(keys)])
        tiers.writer.delete_many(keys[::2])
        assert tiers.writer.capacity_within(tiers.writer.capacity_bytes) <= tiers.writer.capacity_bytes
        for _ in range(20):
            assert tiers.writer.give_back(0) == tiers.writer.file_bytes
        assert all(tiers.reader.get(key_of(i)) == value_of(i, 50_000) for i in range(1, 12, 2))
        tiers.writer.resize(16 * 1024**2)
        tiers.writer.put_many([(key, value_of(i, 50_000), False) for i, key in enumerate(keys)])
        assert all(tiers.reader.get(key) == value_of(i, 50_000) for i, key in enumerate(keys))

    def test_a_view_is_dead_after_its_batch(self, tiers: Tiers) -> None:
        tiers.writer.put_many([(key_of(1), b"x" * 5000, False)])
        with tiers.reader.batch() as batch:
            (view,) = batch.get_views([key_of(1)])
            assert view is not None
        with pytest.raises(ValueError, match="released"):
            bytes(view)

    def test_a_destroyed_tier_holds_nothing(self, tiers: Tiers) -> None:
        tiers.writer.put_many([(key_of(1), b"x", False)])
        tiers.writer.destroy()
        tiers.reader.reopen_if_replaced()
        assert tiers.reader.get(key_of(1)) is None

    def test_nothing_is_held_of_an_empty_tier(self, tiers: Tiers) -> None:
        assert tiers.reader.get(key_of(1)) is None
        with tiers.reader.batch() as batch:
            assert batch.get_views([]) == []
        tiers.writer.apply((), ())
        assert tiers.writer.reclaim_dead_readers() == 0
