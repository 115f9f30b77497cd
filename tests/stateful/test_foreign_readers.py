"""Foreign readers and the writer, step by step: every order of their steps, with and without deaths.

The two sides are the real ones (``ForeignEnvironment``, ``SnapshotLocks``, ``Pins``); the kernel's locks and LMDB's file are models.
LMDB is taken to be as quick to use pages again as it may be: every page that the oldest snapshot which it knows of does not need.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import lmdb
import pytest

from prefeed.store import foreign
from prefeed.store.foreign import FIRST_SNAPSHOT_BYTE, OPEN_BYTE, ForeignEnvironment, Pins, SnapshotLocks

Hook = Callable[[], None]
STEPS_OF_A_WRITE = 3


class Died(BaseException):
    """The process does nothing any more."""


@dataclass
class Kernel:
    """Locks of bytes, by who has them."""

    shared: dict[object, set[int]] = field(default_factory=dict)
    owned: dict[object, set[int]] = field(default_factory=dict)

    def others(self, who: object, byte: int) -> tuple[bool, bool]:
        """Return whether somebody else shares the byte, and whether somebody else has it alone."""
        return (
            any(byte in held for other, held in self.shared.items() if other is not who),
            any(byte in held for other, held in self.owned.items() if other is not who),
        )


class ModelLocks:
    """``ByteLocks``, of one holder."""

    def __init__(self, kernel: Kernel, step: Hook = lambda: None) -> None:
        self.kernel, self.step = kernel, step
        kernel.shared[self], kernel.owned[self] = set(), set()

    def try_share(self, start: int) -> bool:
        self.step()
        if self.kernel.others(self, start)[1]:
            return False
        self.kernel.shared[self].add(start)
        return True

    def try_own(self, start: int) -> bool:
        self.step()
        if any(self.kernel.others(self, start)):
            return False
        self.kernel.owned[self].add(start)
        return True

    def unlock(self, start: int, length: int = 1) -> None:
        self.step()
        for held in (self.kernel.shared[self], self.kernel.owned[self]):
            held -= {byte for byte in held if byte >= start and (not length or byte < start + length)}

    def are_locked_elsewhere(self, start: int, length: int) -> bool:
        self.step()
        bytes_held = set().union(*(held for who, held in self.kernel.shared.items() if who is not self))
        return any(byte >= start and (not length or byte < start + length) for byte in bytes_held)

    def close(self) -> None:
        self.kernel.shared[self], self.kernel.owned[self] = set(), set()


@dataclass
class Meta:
    number: int
    page: int


class File:
    """A store of one value, which each commit writes to another page: two meta pages, pages, and which of them are free."""

    def __init__(self) -> None:
        self.metas = [Meta(0, 0), Meta(1, 1)]
        self.pages = {0: 0, 1: 1}
        self.freed_by = {1: [0]}  # transaction -> pages that no snapshot from it on needs

    def newest(self) -> Meta:
        return max(self.metas, key=lambda meta: meta.number)

    def last_transaction(self) -> int:
        return self.newest().number


class ModelTransaction:
    """A read transaction of LMDB's: it has copied the number and the root from a meta page, one after the other."""

    def __init__(self, file: File, step: Hook) -> None:
        self.file, self.step = file, step
        meta = file.newest()
        self.number = meta.number
        step()
        self.page = meta.page
        self.cursor = self.stat = None

    def id(self) -> int:
        return self.number

    def get(self) -> int:
        self.step()
        return self.file.pages[self.page]

    def abort(self) -> None:
        self.step()


@dataclass
class ModelPin:
    number: int
    is_open: bool = True

    def id(self) -> int:
        return self.number

    def abort(self) -> None:
        self.is_open = False


class Writer:
    """The writer: ``step`` does the next of its steps, one write transaction after the other."""

    def __init__(self, file: File, kernel: Kernel) -> None:
        self.file, self.kernel = file, kernel
        self.open_pins: list[ModelPin] = []
        self._steps: Iterator[None] = iter(())
        self.start()

    def start(self) -> None:
        """As a server that has just been started does, on whatever the one before it left."""
        self.locks = ModelLocks(self.kernel)
        if self.locks.are_locked_elsewhere(FIRST_SNAPSHOT_BYTE, self.file.last_transaction()):
            self.locks.close()
            raise StoreEmptiedError
        self.open_pins = []
        self.pins = Pins(self.locks, self._begin, self.file.last_transaction)
        self._steps = self._write_forever()

    def die(self) -> None:
        self.locks.close()
        self.open_pins = []

    def step(self) -> None:
        next(self._steps)

    def _begin(self) -> ModelPin:
        pin = ModelPin(self.file.last_transaction())
        self.open_pins.append(pin)
        return pin

    def _write_forever(self) -> Iterator[None]:
        while True:
            self.pins.move_on()
            file, last = self.file, self.file.newest()
            number = last.number + 1
            oldest = min([last.number, *(pin.number for pin in self.open_pins if pin.is_open)])
            free = [page for freed, pages in file.freed_by.items() if freed <= oldest for page in pages]
            page = min(free, default=len(file.pages))
            for pages in file.freed_by.values():
                if page in pages:
                    pages.remove(page)
            file.pages[page] = number
            yield
            meta = min(file.metas, key=lambda meta: meta.number)
            meta.page = page
            yield
            file.freed_by[number] = [last.page]
            meta.number = number
            yield


class StoreEmptiedError(Exception):
    """The writer began another store: readers keep the files of this one, and nobody writes them."""


class World:
    """One reader, whose every step runs ``at_step`` first; the writer; and a file between them."""

    def __init__(self, at_step: Callable[[int], None] = lambda number: None) -> None:
        self.kernel, self.file = Kernel(), File()
        self.writer = Writer(self.file, self.kernel)
        self.num_steps = 0
        self.at_step = at_step

    def reader(self) -> ForeignEnvironment:
        """Return one that has the store open; its steps are counted from then on."""
        self.writer.pins.expect(True)
        at_step, self.at_step = self.at_step, lambda number: None
        self.reader_locks = ModelLocks(self.kernel, self._step)
        environment = self._environment(self.reader_locks, self._step)
        self.at_step, self.num_steps = at_step, 0
        return environment

    def bystander(self) -> ForeignEnvironment:
        """Another reader, whose steps nobody interrupts."""
        return self._environment(ModelLocks(self.kernel), lambda: None)

    def _environment(self, locks: ModelLocks, step: Hook) -> ForeignEnvironment:
        world = self

        class Metas:
            def last_transaction(self) -> int:
                step()
                return world.file.last_transaction()

        class Environment:
            def begin(self, *, buffers: bool) -> ModelTransaction:
                step()
                return ModelTransaction(world.file, step)

        metas: Any = Metas()
        return ForeignEnvironment(Environment(), metas, SnapshotLocks(locks))

    def _step(self) -> None:
        self.num_steps += 1
        self.at_step(self.num_steps)


def read_once(environment: ForeignEnvironment) -> None:
    """Read twice inside one batch; wrong bytes are an AssertionError."""
    with environment.begin() as txn:
        number = txn._txn.id()
        assert [txn.get(), txn.get()] == [number, number], "a page was used again under its reader"


def schedules(num_gaps: int, num_steps: int) -> Iterator[tuple[int, ...]]:
    """Yield every way to spread steps of the writer over the gaps between steps of the reader."""
    for bars in itertools.combinations(range(num_gaps + num_steps - 1), num_gaps - 1):
        edges = (-1, *bars, num_gaps + num_steps - 1)
        yield tuple(after - before - 1 for before, after in itertools.pairwise(edges))


GAPS = 12
"""A batch that begins at once has that many steps; one that begins anew more, of which the later ones are not interrupted."""


def run(schedule: tuple[int, ...]) -> World:
    def at_step(number: int) -> None:
        for _ in range(schedule[number - 1] if number <= len(schedule) else 0):
            world.writer.step()

    world = World(at_step)
    environment = world.reader()
    for _ in range(2):
        read_once(environment)
    return world


def moves_on(world: World) -> bool:
    """Return whether the writer keeps only the last snapshot once it begins another write transaction, or the one after."""
    for _ in range(3 * STEPS_OF_A_WRITE):
        world.writer.step()
        if world.writer.pins.snapshots == (world.file.last_transaction(),):
            return True
    return False


def test_no_page_is_used_again_under_a_reader_in_any_order_of_steps() -> None:
    for schedule in schedules(GAPS, 2 * STEPS_OF_A_WRITE):
        world = run(schedule)
        assert moves_on(world), schedule


def test_nor_where_the_writer_is_far_quicker() -> None:
    """Many commits in any two gaps."""
    for first, second in itertools.combinations_with_replacement(range(GAPS), 2):
        for many, more in itertools.product((1, 4, 7, 11, 20), repeat=2):
            schedule = [0] * GAPS
            schedule[first] += many
            schedule[second] += more
            assert moves_on(run(tuple(schedule))), schedule


@pytest.mark.parametrize("broken", ["no pin", "no lock", "no second look", "moves on at once"])
def test_each_part_is_needed(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if broken == "no pin":
        monkeypatch.setattr(Pins, "move_on", lambda self: None)
        monkeypatch.setattr(Pins, "expect", lambda self, are_expected: self._locks.unlock(OPEN_BYTE))
    if broken == "no lock":
        monkeypatch.setattr(SnapshotLocks, "enter", lambda self, snapshot: None)
        monkeypatch.setattr(SnapshotLocks, "leave", lambda self, snapshot: None)
    if broken == "no second look":
        monkeypatch.setattr(ForeignEnvironment, "_is_in", lambda self, txn, snapshot: txn.id() == snapshot)
    if broken == "moves on at once":
        monkeypatch.setattr(ModelLocks, "are_locked_elsewhere", lambda self, start, length: False)
    with pytest.raises(AssertionError):
        for steps in (4, 2 * STEPS_OF_A_WRITE, 3 * STEPS_OF_A_WRITE):
            for schedule in schedules(8, steps):
                run(schedule)


def test_a_reader_that_dies_at_any_step_keeps_nothing() -> None:
    for death in range(1, GAPS + 1):
        for before in range(2 * STEPS_OF_A_WRITE):

            def at_step(number: int, death: int = death) -> None:
                if number == death:
                    raise Died

            world = World()
            environment = world.reader()
            for _ in range(before):
                world.writer.step()
            world.at_step = at_step
            try:
                for _ in range(2):
                    read_once(environment)
            except Died:
                world.reader_locks.close()  # as the kernel does
            assert moves_on(world), (death, before)


def test_a_writer_that_dies_at_any_step_leaves_readers_what_they_read() -> None:
    """The next one keeps the store if it can keep what they read, and else leaves them the old one."""
    num_kept = num_emptied = 0
    for death in range(1, GAPS + 1):
        for before, after in itertools.product(range(2 * STEPS_OF_A_WRITE), range(3 * STEPS_OF_A_WRITE)):
            kept, emptied = succession(death, before, after)
            num_kept += kept
            num_emptied += emptied
    assert num_kept > num_emptied > 0


def succession(death: int, before: int, after: int) -> tuple[int, int]:
    """Let the writer die at that step of a reader, and another begin; return how often it kept the store, and did not."""
    kept = emptied = 0

    def at_step(number: int) -> None:
        nonlocal kept, emptied
        if number != death:
            return
        for _ in range(before):
            world.writer.step()
        world.writer.die()
        try:
            world.writer.start()
        except StoreEmptiedError:
            emptied += 1
        else:
            kept += 1
            for _ in range(after):
                world.writer.step()

    world = World(at_step)
    environment = world.reader()
    for _ in range(2):
        read_once(environment)
    return kept, emptied


def test_pins_move_on_however_long_batches_overlap() -> None:
    """There is always somebody inside a batch, and each ends after the next has begun."""
    world = World()
    world.reader()
    readers = [world.bystander() for _ in range(3)]
    inside = [reader.begin() for reader in readers]
    lag = []
    for turn in range(60):
        reader = turn % len(readers)
        fresh = readers[reader].begin()  # one process may have several
        inside[reader].abort()
        inside[reader] = fresh
        for _ in range(STEPS_OF_A_WRITE):
            world.writer.step()
        for txn in inside:
            assert txn.get() == txn._txn.id()
        lag.append(world.file.last_transaction() - world.writer.pins.snapshots[0])
    assert max(lag) <= 2 * len(readers) + 2
    for txn in inside:
        txn.abort()
    assert moves_on(world)


def test_the_writer_maps_the_file_again_only_where_no_pin_is_needed_for_an_earlier_snapshot() -> None:
    """That ends its pins; the next one can only be of the last snapshot."""
    world = World()
    environment = world.reader()

    def remap() -> bool:
        for pin in world.writer.open_pins:
            pin.abort()
        return True

    with environment.begin() as txn:
        assert world.writer.pins.try_anew(remap), "it is in the last"
        for _ in range(2 * STEPS_OF_A_WRITE):
            world.writer.step()
        assert not world.writer.pins.try_anew(remap)
        for _ in range(2 * STEPS_OF_A_WRITE):
            world.writer.step()
        assert txn.get() == txn._txn.id()
    assert world.writer.pins.try_anew(remap)
    assert world.writer.pins.snapshots == (world.file.last_transaction(),)
    assert moves_on(world)


def test_no_client_comes_in_before_the_writer_knows() -> None:
    world = World()
    with pytest.raises(OSError, match="has let no reader"):
        SnapshotLocks(ModelLocks(world.kernel))
    assert world.writer.pins.snapshots == (), "native readers alone cost no pin"
    environment = world.reader()
    world.writer.pins.expect(False)
    assert world.writer.pins.snapshots, "one has it open"
    read_once(environment)
    world.reader_locks.close()
    assert moves_on_without_readers(world)
    with pytest.raises(OSError, match="has let no reader"):
        SnapshotLocks(ModelLocks(world.kernel))


def moves_on_without_readers(world: World) -> bool:
    for _ in range(STEPS_OF_A_WRITE + 1):
        world.writer.step()
    return world.writer.pins.snapshots == ()


def test_a_writer_that_finds_readers_keeps_what_they_read_before_it_writes() -> None:
    world = World()
    environment = world.reader()
    world.writer.die()
    with environment.begin() as txn:
        world.writer.start()
        assert world.writer.pins.snapshots == (txn._txn.id(),)


def test_a_batch_gives_up_where_the_writer_commits_all_the_time() -> None:
    world = World(lambda number: [world.writer.step() for _ in range(STEPS_OF_A_WRITE)] and None)
    environment = world.reader()
    with pytest.raises(lmdb.Error, match="commits all the time"):
        environment.begin()
    world.at_step = lambda number: None
    read_once(environment)
    assert moves_on(world)


def test_no_pin_where_lmdb_has_no_reader_slot_left(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()

    def refuse() -> Any:
        raise lmdb.ReadersFullError("all slots are taken")

    monkeypatch.setattr(world.writer.pins, "_begin", refuse)
    world.writer.pins.expect(True)
    with pytest.raises(OSError, match="has let no reader"):
        SnapshotLocks(ModelLocks(world.kernel))
    assert foreign.FIRST_SNAPSHOT_BYTE > foreign.OPEN_BYTE
