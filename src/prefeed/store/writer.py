"""The writing end of a tier: groups of values put and deleted, one commit a group, within a budget of bytes."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import lmdb

from prefeed.errors import StoreDamagedError, StoreError, TierFullError
from prefeed.store import directory as store_directory
from prefeed.store.ballast import Ballast
from prefeed.store.batches import read_transaction, write_transaction
from prefeed.store.entry_sums import sum_of
from prefeed.store.environment import (
    DAMAGE,
    Identity,
    SharedEnvironment,
    attach_writer,
    identity_of,
    process_id,
    release_writer,
    try_resize,
)
from prefeed.store.foreign import Pins
from prefeed.store.layout import (
    LARGE_BYTES,
    LARGE_PIECE_PAGES,
    LAYOUT_KEY,
    LAYOUT_VERSION,
    LOCK_BYTES,
    MAX_READERS,
    MIN_BUDGET_BYTES,
    PAGE_BYTES,
    PIECE_PAGES,
    capacity_of_map,
    data_path,
    map_bytes_for,
    piece_bytes,
    stored_bytes,
    sums_bytes_for,
    writer_lock_path,
)
from prefeed.store.reservation import PageMaker
from prefeed.store.sums import NOTHING, Found, Sums, examine
from prefeed.store.values import delete_value, put_pieces, require_spare_pages, value_size, value_sizes
from prefeed.system.byte_locks import LocksUnsupportedError
from prefeed.system.large_pages import align_next_mapping
from prefeed.system.locks import is_named
from prefeed.types import ENTRY_KEY_BYTES, Buffer

Put = tuple[bytes, Buffer, bool]
"""Key, value, and whether it is transient."""

_NO_SUMS: Final[Mapping[bytes, int]] = MappingProxyType({})
_SLACK_BYTES: Final = 1024**2
_TREE_PAGES_A_PUT: Final = 6
_WHOLE: Final = 0
_GIVING_SECONDS: Final = 0.05
_TIGHT_SHARE: Final = 0.9
_MOST_DELETES: Final = 1024
"""In one commit: LMDB writes the numbers of all pages that a commit frees into one run of pages."""

_STICKY_GROUPS: Final = 32
"""For this number of groups after one that did not fit at once, the way that worked is tried first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStatistics:
    """State of a tier; a snapshot.

    Attributes:
        resident_entries: Values kept for the next epoch.
        transient_entries: Values that are freed once consumed.
        used_bytes: What they cost together, counted by ``stored_bytes``.
        capacity_bytes: The most that ``used_bytes`` can be.
        budget_bytes: The most that the store may take of its file system.
        reserved_bytes: What the data file takes of it now.
        reader_slots: Reader slots that were ever in use at once, dead ones included.
    """

    resident_entries: int
    transient_entries: int
    used_bytes: int
    capacity_bytes: int
    budget_bytes: int
    reserved_bytes: int
    reader_slots: int


class TierWriter:
    """The one writer of a store.

    **Ownership.** The directory belongs to the store; ``destroy`` removes it. ``close`` leaves the values for the
    next writer, which finds them after SIGKILL too: every commit is whole or absent. It trusts nothing that it finds: trees are
    looked through, and residents compared with their sums.

    **Threads and processes.** One thread at a time; a second process is refused. Not used after a fork.

    **Invariants.** The files never take more than ``budget_bytes``. Nothing is written to a page that the file system
    has not given, hence no SIGBUS.

    **Blocking.** Memory speed; no call waits for a reader.

    Attributes:
        damage: What was wrong with the store that was found, in words; empty when nothing was.
    """

    def __init__(self, directory: Path, budget_bytes: int, lock_file: int) -> None:
        """Hold a directory that is locked; use ``open``."""
        self._directory = directory
        self._budget_bytes = budget_bytes
        self._lock_file = lock_file
        self._closed = True
        self._expects_foreign = False
        self.damage: str = ""

    def _begin(self, shared: SharedEnvironment, found: Found) -> None:
        self._closed = False
        self._shared = shared
        self._stage = _WHOLE
        self._sticky_groups = 0
        self._used_bytes = 0
        self._owed_deletes: list[bytes] = []
        self._process_id = process_id()
        self._pins: Pins | None = None
        self._ballast: Ballast | None = None
        info = shared.env.info()
        self._reservation = PageMaker(
            data_path(self._directory), reserved_bytes=_end_of_data(shared.env), map_bytes=info["map_size"]
        )
        self._sums: Sums | None = None
        try:
            self._recover(found)
        except BaseException:
            self._let_go()
            raise

    @classmethod
    def open(cls, directory: str | os.PathLike[str], *, budget_bytes: int) -> TierWriter:
        """Return the writer of a store, made if there was none, with what the last writer left of resident values.

        Transients are dropped, and residents that are not as they were stored. A store of another layout version, a damaged one, and
        one whose data do not fit the budget are emptied: this is a cache. With a larger budget the store grows, with a smaller one it is kept when
        its data lie within it; the owner then compares ``statistics().used_bytes`` with ``capacity_bytes``.

        Args:
            directory: Made if missing, mode 0700; holds nothing but the store.
            budget_bytes: The most that the store may take of its file system, all files together.

        Raises:
            StoreError: The directory cannot be used, or another process writes it; the message says what to change.
            TierFullError: The file system has no room even for an empty store.
            ValueError: The budget is too small for any store.
        """
        path = Path(directory).absolute()
        map_bytes_for(budget_bytes)
        writer = cls(path, budget_bytes, store_directory.prepare(path))
        try:
            writer._take()
        except BaseException:
            os.close(writer._lock_file)
            raise
        return writer

    def _take(self) -> None:
        """Open what is there; where that cannot be used, begin again."""
        found = self._examined()
        try:
            self._open(found)
        except TierFullError:
            raise
        except StoreError as err:
            self._empty(f"it cannot be opened: {err.message}")
            self._open(NOTHING)

    def _examined(self) -> Found:
        """Return what is to be found in the store, which is emptied when that cannot be told."""
        try:
            with translated(self._directory):
                removed = store_directory.remove_unusable(self._directory)
                self.damage = f"no files: {', '.join(removed)}" if removed else ""
                found = examine(self._directory)
        except StoreError as err:
            if not isinstance(err.__cause__, FileNotFoundError):
                self._empty(str(err.__cause__ or err))
            return NOTHING
        if len(found.wrong) > len(found.sums):
            self._empty(f"{len(found.wrong)} of {len(found.wrong) + len(found.sums)} entries do not fit their sums")
            return NOTHING
        if found.wrong:
            self.damage = f"{len(found.wrong)} of {len(found.wrong) + len(found.sums)} entries did not fit their sums"
        return found

    def _empty(self, why: str) -> None:
        self.damage = why
        with translated(self._directory):
            store_directory.remove_files(self._directory)

    def _open(self, found: Found) -> None:
        map_bytes = map_bytes_for(self._budget_bytes)
        store_directory.empty_unless_usable(self._directory, map_bytes)
        with translated(self._directory):
            store_directory.take_over(self._directory)
            shared = attach_writer(self._directory, lambda: _open_env(self._directory, map_bytes))
        self._begin(shared, found)

    def empty(self) -> None:
        """Replace the store, which is damaged or was removed, by an empty one.

        Raises:
            StoreError: It cannot be made again; nothing is stored from then on.
        """
        self._let_go()
        if not is_named(self._lock_file, writer_lock_path(self._directory)):  # the directory was removed
            lock_file, self._lock_file = self._lock_file, -1
            os.close(lock_file)
            self._lock_file = store_directory.prepare(self._directory)
        with translated(self._directory):
            store_directory.remove_files(self._directory)
        self._open(NOTHING)
        self.expect_foreign_readers(self._expects_foreign)

    @property
    def identity(self) -> Identity:
        """Which store it is: another one at the same path differs in it."""
        return self._shared.identity

    @property
    def is_in_place(self) -> bool:
        """Whether its files are still those at its path: else no reader that comes finds it."""
        return identity_of(self._directory) == self._shared.identity

    @property
    def directory(self) -> Path:
        """Where the store lies."""
        return self._directory

    @property
    def capacity_bytes(self) -> int:
        """The most that values may cost together, counted by ``stored_bytes``; shrinks if the file system fills up."""
        held = 0 if self._ballast is None else self._ballast.held_bytes
        return max(0, capacity_of_map(self._reservation.map_bytes) - held)

    def capacity_within(self, budget_bytes: int) -> int:
        """Return what ``capacity_bytes`` is when the store takes so much of its file system."""
        return capacity_of_map(map_bytes_for(max(budget_bytes, MIN_BUDGET_BYTES)))

    @property
    def used_bytes(self) -> int:
        """What the values cost together, counted by ``stored_bytes``."""
        return self._used_bytes

    @property
    def file_bytes(self) -> int:
        """What the store's files have of their file system."""
        sums_bytes = 0 if self._sums is None else self._sums.file_bytes
        return self._reservation.reserved_bytes - self._ballast_bytes + LOCK_BYTES + sums_bytes

    def put_many(self, items: Sequence[Put]) -> None:
        """Store a group of values in one commit; a key that exists is replaced.

        Raises:
            TierFullError: There is no room; none of the group is stored, what was stored stays.
            ValueError: A key is not 16 bytes long.
        """
        self.apply(items, ())

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Delete values, 1,024 a commit; keys that do not exist are passed over.

        Readers inside a batch keep their views; the room is free once they have left it.
        """
        self.apply((), keys)

    def apply(self, puts: Sequence[Put], deletes: Sequence[bytes], sums: Mapping[bytes, int] = _NO_SUMS) -> None:
        """Delete values and store others, in one commit if there is room for that, deletes first.

        Pages of deleted values can be written again two commits later. When the tier is nearly full the deletes are
        therefore committed by themselves, followed by empty commits, before the puts.

        Args:
            puts: Values to store.
            deletes: Keys of values that go.
            sums: Of values of the group, by key, as ``sum_of`` makes them; those that are missing are made here.

        Raises:
            TierFullError: There is no room; none of the group is stored, and the deletes are done, or will be with
                the next call when open batches leave not even room for them.
            ValueError: A key is not 16 bytes long, or a value is larger than LMDB takes; nothing is changed.
        """
        for key, _, _ in puts:
            if len(key) != ENTRY_KEY_BYTES:
                raise ValueError(f"a key has {ENTRY_KEY_BYTES} bytes, not {len(key)}: {key!r}")
        deletes = [*self._owed_deletes, *deletes]
        self._owed_deletes = []
        with translated(self._directory):
            if puts:
                if not self._try_reserve_for(puts):
                    self._delete(deletes)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._note_sums(puts, sums)
                self._apply_in_stages(puts, deletes)
            else:
                self._delete(deletes)

    def entries(self) -> Iterator[tuple[bytes, int, bool]]:
        """Yield key, size in bytes and whether it is transient, of every value; ordered by key within each kind.

        The tier is not changed while this runs.
        """
        with read_transaction(self._shared) as txn:
            for table, transient in ((self._shared.resident, False), (self._shared.transient, True)):
                yield from ((key, size, transient) for key, size in value_sizes(txn, table))

    def resize(self, budget_bytes: int) -> int:
        """Let the store take so much from now on; returns what it may take: not less than its data do, see ``give_back``."""
        if self._closed:
            return self._budget_bytes
        if self._ballast is not None and budget_bytes > self.file_bytes:
            self._ballast.give(budget_bytes - self.file_bytes)
        data_bytes = min(_end_of_data(self._shared.env) + _SLACK_BYTES, self._reservation.map_bytes)
        map_bytes = max(map_bytes_for(max(budget_bytes, MIN_BUDGET_BYTES)) + self._ballast_bytes, data_bytes)
        if map_bytes != self._reservation.map_bytes:
            self._reservation.remap(map_bytes, self._try_resize)
            if self._sums is not None and self._reservation.map_bytes == map_bytes:
                self._sums.resize(sums_bytes_for(max(budget_bytes, MIN_BUDGET_BYTES)))
        sums_bytes = 0 if self._sums is None else self._sums.limit_bytes
        self._budget_bytes = self._reservation.map_bytes - self._ballast_bytes + LOCK_BYTES + sums_bytes
        return self._budget_bytes

    def give_back(self, budget_bytes: int) -> int:
        """Give pages without values back to the kernel, until the store's files take no more than that; returns what they take.

        **Blocking**: about a tenth of a second. Values stay: delete some before, and call it again: there may be more to do,
        and readers leave their batches. What lies scattered in runs of one or two pages stays.
        """
        if self._closed:
            return self.file_bytes
        budget_bytes = max(budget_bytes, MIN_BUDGET_BYTES)
        with translated(self._directory):
            data_bytes = min(_end_of_data(self._shared.env) + _SLACK_BYTES, self._reservation.map_bytes)
            end = max(map_bytes_for(budget_bytes) + self._ballast_bytes, data_bytes)
            if end < self._reservation.map_bytes:
                self._reservation.remap(end, self._try_resize)
            if self._reservation.map_bytes == end:
                self._reservation.release(max(end, data_bytes))
                excess = self.file_bytes - budget_bytes
                if excess > 0 and self._ballast is not None:
                    self._age_freed_pages()
                    self._ballast.take(excess, within_seconds=_GIVING_SECONDS)
        return self.file_bytes

    @property
    def is_scattered(self) -> bool:
        """Whether ``give_back`` found nothing more to give back, for what is free lies in short runs, or readers hold it."""
        return self._ballast is not None and self._ballast.is_scattered

    def reclaim_dead_readers(self) -> int:
        """Free the slots of readers that were killed, and with them the pages they held; returns how many."""
        with translated(self._directory):
            return self._shared.env.reader_check()

    def expect_foreign_readers(self, are_expected: bool) -> None:
        """Let readers of other PID namespaces open the store, for some microseconds a commit; or let no more in."""
        self._expects_foreign = are_expected
        with translated(self._directory):
            if self._pins is not None:
                self._pins.expect(are_expected)

    def statistics(self) -> TierStatistics:
        """Return a snapshot. Split values make the numbers of entries slightly too high."""
        with translated(self._directory), read_transaction(self._shared) as txn:
            resident, transient = txn.stat(self._shared.resident), txn.stat(self._shared.transient)
        return TierStatistics(
            resident_entries=resident["entries"],
            transient_entries=transient["entries"],
            used_bytes=self._used_bytes,
            capacity_bytes=self.capacity_bytes,
            budget_bytes=self._budget_bytes,
            reserved_bytes=self._reservation.reserved_bytes,
            reader_slots=self._shared.env.info()["num_readers"],
        )

    def close(self) -> None:
        """Let go of the store; its values stay. A second call does nothing."""
        if self._lock_file < 0 or self._process_id != process_id():
            return
        self._let_go()
        os.close(self._lock_file)
        self._lock_file = -1

    def destroy(self) -> None:
        """Remove the store and its directory. Readers inside a batch keep their views; later reads find nothing."""
        store_directory.remove_files(self._directory)
        self.close()
        store_directory.remove(self._directory)

    def _let_go(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._pins is not None:
            self._pins.close()
        if self._sums is not None:
            self._sums.close()
        self._reservation.close()
        release_writer(self._shared)

    # ------------------------------------------------------------ one group

    def _note_sums(self, puts: Sequence[Put], known: Mapping[bytes, int]) -> None:
        """Write the sums of residents before these are stored: a value without a sum is not taken over."""
        if self._sums is not None:
            residents = ((key, value) for key, value, transient in puts if not transient)
            self._sums.add(known[key] if key in known else sum_of(key, value) for key, value in residents)
            self._sums.write()

    def _apply_in_stages(self, puts: Sequence[Put], deletes: Sequence[bytes]) -> None:
        first = self._stage if self._sticky_groups else _WHOLE
        self._sticky_groups = max(0, self._sticky_groups - 1)
        for stage in range(first, 2 + len(PIECE_PAGES)):
            if stage != _WHOLE:
                self._delete(deletes)
                self._age_freed_pages()
                deletes = ()
            try:
                self._commit(puts, deletes, 0 if stage < 2 else PIECE_PAGES[stage - 2])
            except _OverCapacityError:
                self._delete(deletes)
                break
            except lmdb.MapFullError:
                continue
            if stage > first:
                self._stage, self._sticky_groups = stage, _STICKY_GROUPS
            return
        needed = sum(stored_bytes(value_size(value)) for _, value, _ in puts)
        raise TierFullError(
            f"the tier in {self._directory} has no room for {len(puts)} values of {needed} bytes together: "
            f"{self._used_bytes} of {self.capacity_bytes} are used; free values first, wait for readers of freed "
            "values to leave their batch, or raise PREFEED_MEMORY",
            needed_bytes=needed, used_bytes=self._used_bytes, capacity_bytes=self.capacity_bytes,
        )  # fmt: skip

    def _delete(self, keys: Sequence[bytes]) -> None:
        """Delete in few commits; where there is no room to rewrite the tree for many, one by one, the rest later."""
        for start in range(0, len(keys), _MOST_DELETES):
            group = keys[start : start + _MOST_DELETES]
            try:
                self._commit((), group, 0)
            except lmdb.MapFullError:
                self._delete_one_by_one(group)

    def _delete_one_by_one(self, keys: Sequence[bytes]) -> None:
        for index, key in enumerate(keys):
            try:
                self._commit((), (key,), 0)
            except lmdb.MapFullError:
                self._owed_deletes += keys[index:]
                return

    def _age_freed_pages(self) -> None:
        """Pages freed by commit n are free for commit n + 2: make two commits."""
        with contextlib.suppress(lmdb.MapFullError):
            for _ in range(2):
                with self._write() as txn:
                    txn.put(LAYOUT_KEY, LAYOUT_VERSION)

    def _commit(self, puts: Sequence[Put], deletes: Sequence[bytes], piece_pages: int) -> None:
        used, capacity = self._used_bytes, self.capacity_bytes
        tables = (self._shared.resident, self._shared.transient)
        step = piece_bytes(piece_pages or LARGE_PIECE_PAGES)
        longest = step if piece_pages else LARGE_BYTES
        with self._write() as txn:
            for key in deletes:
                used -= delete_value(txn, key, tables)
            for key, value, transient in puts:
                table, other = (tables[1], tables[0]) if transient else tables
                if txn.get(key, None, other) is not None:
                    used -= delete_value(txn, key, tables)
                size = value_size(value)
                used += stored_bytes(size)
                if size > longest:
                    used -= delete_value(txn, key, tables)
                    put_pieces(txn, key, value, table, step)
                elif not txn.put(key, value, True, False, False, table):
                    used -= delete_value(txn, key, tables)
                    txn.put(key, value, True, False, False, table)
                if used > capacity:
                    raise _OverCapacityError("over capacity")
            if puts and used > _TIGHT_SHARE * capacity:
                require_spare_pages(txn)
        self._used_bytes = used

    @property
    def _ballast_bytes(self) -> int:
        return 0 if self._ballast is None else self._ballast.bytes

    def _write(self) -> contextlib.AbstractContextManager[Any]:
        if self._pins is not None:
            self._pins.move_on()
        return write_transaction(self._shared)

    def _try_reserve_for(self, puts: Sequence[Put]) -> bool:
        """Back every page that this group may need; where the file system has no more, LMDB gets no more either."""
        if self._reservation.reserved_bytes >= self._reservation.map_bytes:
            return True
        values = sum(value_size(value) for _, value, _ in puts)
        return self._try_reserve(values + len(puts) * _TREE_PAGES_A_PUT * PAGE_BYTES + _SLACK_BYTES)

    def _try_reserve(self, growth_bytes: int) -> bool:
        reservation = self._reservation
        if reservation.try_reserve(_end_of_data(self._shared.env) + growth_bytes):
            return True
        backed = reservation.reserved_bytes
        reservation.remap(backed, self._try_resize)
        return reservation.map_bytes == backed

    def _try_resize(self, map_bytes: int) -> bool:
        resize = partial(try_resize, self._shared, map_bytes)
        return resize() if self._pins is None else self._pins.try_anew(resize)

    def _recover(self, found: Found) -> None:
        with translated(self._directory):
            env = self._shared.env
            with contextlib.suppress(LocksUnsupportedError):  # then no foreign reader can open the store
                self._pins = Pins.of(self._directory, env.begin, lambda: int(env.info()["last_txnid"]))
            if not self._try_reserve(_SLACK_BYTES):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._shared.open_tables(create=True)
            if self._shared.layout_version() != LAYOUT_VERSION:
                with self._write() as txn:
                    txn.put(LAYOUT_KEY, LAYOUT_VERSION)
            self._shared.env.reader_check()
            self._ballast = Ballast(self._shared, self._reservation, self._write)
            self._used_bytes = sum(stored_bytes(size) for _, size, _ in self.entries())
            self._delete([key for key, _, transient in self.entries() if transient])
            self._delete(found.wrong)
            with contextlib.suppress(OSError):
                self._sums = Sums(self._directory, sums_bytes_for(self._budget_bytes), found.sums)


class _OverCapacityError(lmdb.MapFullError):
    """The owner asked for more than capacity_bytes: no way of storing helps."""


def _open_env(directory: Path, map_bytes: int) -> lmdb.Environment:
    store_directory.reserve_lock_file(directory)
    with align_next_mapping(map_bytes):
        return lmdb.open(
            os.fspath(directory), map_size=map_bytes, writemap=True, sync=False, metasync=False, readahead=False,
            meminit=False, mode=0o600, max_dbs=4, max_readers=MAX_READERS,
        )  # fmt: skip


def _end_of_data(env: lmdb.Environment) -> int:
    return (env.info()["last_pgno"] + 1) * PAGE_BYTES


@contextlib.contextmanager
def translated(directory: Path) -> Iterator[None]:
    """Turn what is raised inside into errors of the store in this directory."""
    try:
        yield
    except StoreError:
        raise
    except lmdb.BadValsizeError as err:
        raise ValueError(f"LMDB takes no value of this size: {err}") from err
    except (lmdb.Error, OSError) as err:
        if isinstance(err, lmdb.MapFullError) or (isinstance(err, OSError) and err.errno == errno.ENOSPC):
            raise TierFullError(
                f"no room in {directory}: {err}; free space on its file system (--shm-size in a container), lower "
                "PREFEED_MEMORY, or name another directory with PREFEED_MEMORY_DIR"
            ) from err
        if isinstance(err, DAMAGE):
            raise StoreDamagedError(f"the store in {directory} is damaged: {err}") from err
        raise StoreError(f"the store in {directory} failed: {err}; remove the directory if it is damaged") from err
