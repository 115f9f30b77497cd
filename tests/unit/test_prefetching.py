"""The thread that makes items ahead: what prefetch_generator does wrong, and all the ways in which it may end."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import prefeed
from leaks import wait_until
from prefeed.errors import ForkedError
from prefeed.prefetching import BackgroundGenerator, background, num_bytes_of, prefetch

pytestmark = pytest.mark.usefixtures("sandbox")

SECONDS = 60


class Source:
    """Counts up; says what it was asked for, and by whom.

    Attributes:
        num_started: Items that were begun.
        may_go_on: Cleared: the next item is not finished until it is set.
        closed_in: The thread in which it was closed.
    """

    def __init__(self, length: int = 1_000_000) -> None:
        self.length = length
        self.num_started = 0
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.closed_in: threading.Thread | None = None
        self.made_in: threading.Thread | None = None

    def __iter__(self) -> Iterator[int]:
        try:
            self.made_in = threading.current_thread()
            for number in range(self.length):
                self.num_started += 1
                assert self.may_go_on.wait(SECONDS)
                yield number
        finally:
            self.closed_in = threading.current_thread()

    def has_started(self, number: int) -> bool:
        return wait_until(lambda: self.num_started >= number, timeout_seconds=SECONDS)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prefeed-background"]


def is_idle(items: BackgroundGenerator[Any]) -> bool:
    """Return True when the thread has made all that it may: it waits."""
    return wait_until(items._maker.is_waiting, timeout_seconds=SECONDS)


# ---------------------------------------------------------------- what it yields


@pytest.mark.parametrize("max_prefetch", [0, -1, 1, 2, 1000])
def test_same_items_in_the_same_order(max_prefetch: int) -> None:
    assert list(BackgroundGenerator(range(500), max_prefetch)) == list(range(500))


def test_none_is_an_item() -> None:
    assert list(BackgroundGenerator([None, 1, None])) == [None, 1, None]


def test_after_the_end_it_has_ended() -> None:
    items = BackgroundGenerator(iter([1]))
    assert next(items) == 1
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(items)
    assert not threads()


def test_what_a_generator_returns_is_kept() -> None:
    def generator() -> Any:
        yield 1
        return "all"

    def outer() -> Any:
        returned.append((yield from BackgroundGenerator(generator())))

    returned: list[str] = []
    assert list(outer()) == [1]
    assert returned == ["all"]


def test_next_is_a_method_too() -> None:
    with BackgroundGenerator(range(3)) as items:
        assert items.next() == 0


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_whatever_is_raised_comes_in_its_place_with_its_traceback(error: type[BaseException]) -> None:
    def read_the_third_file() -> None:
        raise error("third")

    def generator() -> Iterator[int]:
        yield 1
        yield 2
        read_the_third_file()

    items = BackgroundGenerator(generator(), 5)
    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(error, match="third") as raised:
        next(items)
    frames = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert frames[-2:] == ["generator", "read_the_third_file"]
    with pytest.raises(StopIteration):
        next(items)


@pytest.mark.parametrize("error", [ValueError, StopIteration])
def test_an_error_is_not_kept(error: type[Exception]) -> None:
    """Its traceback has the frames of the iterator, and these the frames that called them."""

    class Rows:
        def __iter__(self) -> Any:
            return self

        def __next__(self) -> int:
            raise error

    rows = Rows()
    gone = weakref.ref(rows)
    gc.disable()
    try:
        items = BackgroundGenerator(rows)
        del rows
        with contextlib.suppress(ValueError):
            list(items)
        del items
        assert gone() is None
    finally:
        gc.enable()


def test_what_cannot_be_iterated_over_is_said_at_once() -> None:
    with pytest.raises(TypeError, match="'int' object is not iterable"):
        BackgroundGenerator(3)  # type: ignore[arg-type]


# ---------------------------------------------------------------- how far ahead


@pytest.mark.parametrize("max_prefetch", [1, 2, 7])
def test_exactly_that_number_of_items_ahead(max_prefetch: int) -> None:
    source = Source()
    with BackgroundGenerator(source, max_prefetch) as items:
        for number in range(5):
            assert is_idle(items)
            assert source.num_started == number + max_prefetch
            assert next(items) == number


def test_an_item_is_handed_over_while_the_next_one_is_not_to_be_had() -> None:
    source = Source()
    with BackgroundGenerator(source) as items:
        assert is_idle(items)
        source.may_go_on.clear()
        assert next(items) == 0
        assert source.has_started(2)
        source.may_go_on.set()
        assert next(items) == 1


@pytest.mark.parametrize("max_prefetch", [0, -3])
def test_zero_is_no_limit(max_prefetch: int) -> None:
    source = Source(2000)
    with BackgroundGenerator(source, max_prefetch) as items:
        assert source.has_started(2000)
        assert list(items) == list(range(2000))


def test_without_a_limit_nothing_piles_up() -> None:
    def generator() -> Iterator[int]:
        for number in range(100):
            assert wanted.acquire(timeout=SECONDS)
            piled_up.append(items._maker.taken.qsize())
            yield number

    wanted = threading.Semaphore(0)
    piled_up: list[int] = []
    items = BackgroundGenerator(generator(), 0)
    for number in range(100):
        wanted.release()
        assert next(items) == number
    assert max(piled_up) <= 2
    items.close()


def test_the_thread_starts_at_once() -> None:
    source = Source()
    with BackgroundGenerator(source):
        assert source.has_started(1)


def test_the_thread_keeps_no_item() -> None:
    def generator() -> Iterator[Any]:
        yield np.zeros(10)
        assert may_go_on.wait(SECONDS)

    may_go_on = threading.Event()
    with BackgroundGenerator(generator()) as items:
        item = weakref.ref(next(items))
        assert wait_until(lambda: item() is None, timeout_seconds=SECONDS)
        may_go_on.set()


@pytest.mark.parametrize(("max_prefetch", "expected"), [(0, 4), (3, 3), (100, 4)])
def test_bytes_are_a_limit_too(max_prefetch: int, expected: int) -> None:
    started = []

    def generator() -> Iterator[bytes]:
        for number in range(100):
            started.append(number)
            yield bytes(10)

    with BackgroundGenerator(generator(), max_prefetch, max_bytes=45) as items:
        for number in range(10):
            assert is_idle(items)
            assert len(started) == number + expected
            next(items)


def test_one_item_is_made_whatever_its_size() -> None:
    assert [len(item) for item in BackgroundGenerator(map(bytes, (10, 100, 1000, 3)), 0, max_bytes=50)] == [
        10,
        100,
        1000,
        3,
    ]


@pytest.mark.parametrize("max_bytes", [0, -1])
def test_bytes_must_be_positive(max_bytes: int) -> None:
    with pytest.raises(ValueError, match=f"max_bytes must be positive.*: {max_bytes}"):
        BackgroundGenerator([1], max_bytes=max_bytes)


# ---------------------------------------------------------------- as the wrapped loader


class Loader:
    dataset = "photos"

    def state_dict(self) -> dict[str, int]:
        return {"ahead": 1}

    def __init__(self) -> None:
        self.sampler = "in order"
        self._private = 1

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_it_looks_like_the_loader() -> None:
    with BackgroundGenerator(Loader()) as items:
        assert (len(items), items.dataset, items.sampler, items._private) == (3, "photos", "in order", 1)
        with pytest.raises(AttributeError, match="'Loader' object has no attribute 'batch_size'"):
            _ = items.batch_size
        assert not hasattr(items, "batch_size")
        assert not hasattr(items, "state_dict")  # it would be that of the thread, ahead of the loop
        assert list(items) == [0, 1, 2]
    assert items.dataset == "photos"


def test_what_is_set_is_not_set_in_the_loader() -> None:
    loader = Loader()
    with BackgroundGenerator(loader) as items:
        items.sampler = "shuffled"
        assert (items.sampler, loader.sampler) == ("shuffled", "in order")


def test_without_a_length_it_has_none() -> None:
    with BackgroundGenerator(iter([1])) as items:
        assert items
        with pytest.raises(TypeError, match="no len"):
            len(items)


def test_a_generator_is_not_run_from_outside() -> None:
    with BackgroundGenerator(x for x in range(3)) as items:
        assert not hasattr(items, "send")
        assert not hasattr(items, "throw")
        assert items.gi_code


# ---------------------------------------------------------------- the words of prefetch_generator


def test_an_item_is_preprocessed_in_the_thread() -> None:
    def double(item: int) -> int:
        made_in.append(threading.current_thread().name)
        return 2 * item

    made_in: list[str] = []
    assert list(BackgroundGenerator(range(3), 1, double)) == [0, 2, 4]
    assert list(BackgroundGenerator(generator=range(3), max_prefetch=0, preprocess_func=double)) == [0, 2, 4]
    assert set(made_in) == {"prefeed-background"}
    assert list(BackgroundGenerator([1, 2], preprocess_func=lambda _: None)) == [None, None]
    with BackgroundGenerator([1] * 9, 9, lambda _: bytes(100), max_bytes=250) as items:
        assert is_idle(items)
        assert items._maker.ready.qsize() == 2  # sizes are those of what is handed over


def test_what_preprocessing_raises_comes_in_its_place_and_closes_the_generator() -> None:
    source = Source()
    items = BackgroundGenerator(iter(source), 2, lambda number: 6 // (2 - number))
    assert [next(items), next(items)] == [3, 6]
    with pytest.raises(ZeroDivisionError):
        next(items)
    with pytest.raises(StopIteration):
        next(items)
    assert source.closed_in is source.made_in is not None
    with pytest.raises(TypeError, match="preprocess_func must be a function of one item, or None, not 3"):
        BackgroundGenerator([1], 1, 3)  # type: ignore[arg-type]


def test_both_names_of_the_decorator() -> None:
    @prefeed.prefetch(max_prefetch=3)
    def numbers(stop: int) -> Iterator[int]:
        yield from range(stop)

    assert list(numbers(4)) == [0, 1, 2, 3]
    assert prefeed.prefetch is prefetch is background


# ---------------------------------------------------------------- the decorator


def test_decorator_with_arguments_and_bare() -> None:
    @background
    def bare(stop: int) -> Iterator[int]:
        """Count."""
        yield from range(stop)

    @background(max_prefetch=3, max_bytes=1000)
    def given(stop: int) -> Iterator[int]:
        yield from range(stop)

    @background(2)
    def by_place(stop: int, *, start: int = 0) -> Iterator[int]:
        yield from range(start, stop)

    assert (bare.__name__, bare.__doc__) == ("bare", "Count.")
    for _ in range(2):
        assert list(bare(4)) == list(given(4)) == list(by_place(4)) == [0, 1, 2, 3]
    assert list(by_place(4, start=2)) == [2, 3]
    with given(4) as items:
        assert isinstance(items, prefeed.BackgroundGenerator)
        assert items._maker._max_items == 3
        assert items._maker._max_bytes == 1000


def test_decorated_method() -> None:
    class Reader:
        items = (1, 2)

        @prefeed.background()
        def read(self) -> Iterator[int]:
            yield from self.items

    assert list(Reader().read()) == [1, 2]


# ---------------------------------------------------------------- the end


def leave_by_break(source: Source) -> None:
    for _ in BackgroundGenerator(source):
        break


def leave_by_close(source: Source) -> None:
    items = BackgroundGenerator(source)
    next(items)
    items.close()


def leave_by_with(source: Source) -> None:
    with BackgroundGenerator(source) as items:
        next(items)


def leave_by_error(source: Source) -> None:
    with contextlib.suppress(ZeroDivisionError):
        for number in BackgroundGenerator(source):
            1 // number


def leave_by_the_collector(source: Source) -> None:
    items = BackgroundGenerator(source)
    next(items)
    items.itself = items
    del items
    gc.collect()


def leave_unused(source: Source) -> None:
    BackgroundGenerator(source)


@pytest.mark.parametrize(
    ("leave", "times"),
    [
        (leave_by_break, 50),
        (leave_by_close, 50),
        (leave_by_with, 50),
        (leave_by_error, 50),
        (leave_unused, 50),
        (leave_by_the_collector, 3),
    ],
)
def test_nothing_is_left(leave: Callable[[Source], None], times: int) -> None:
    for _ in range(times):
        source = Source()
        leave(source)
        assert not threads()
        assert source.made_in is None or source.closed_in is source.made_in is not threading.current_thread()


def test_one_that_is_dropped_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source()
    items = BackgroundGenerator(source)
    assert is_idle(items)
    source.may_go_on.clear()
    next(items)
    assert source.has_started(2)
    (thread,) = threads()
    monkeypatch.setattr(thread, "join", lambda timeout: waited.append(timeout))
    waited: list[float] = []
    del items
    assert waited == [5.0]
    monkeypatch.undo()
    source.may_go_on.set()
    thread.join(SECONDS)
    assert source.closed_in is thread


def test_what_was_ready_is_dropped() -> None:
    rows = [np.zeros(10) for _ in range(3)]
    gone = [weakref.ref(row) for row in rows]
    items = BackgroundGenerator((rows.pop() for _ in range(3)), 3)
    assert wait_until(lambda: items._maker.ready.qsize() >= 3, timeout_seconds=SECONDS)
    items.close()
    assert [row() for row in gone] == [None, None, None]


def test_ctrl_c_while_the_thread_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    source = Source()
    with pytest.raises(KeyboardInterrupt) as raised:
        BackgroundGenerator(source)
    del raised
    gc.collect()
    assert not threads()


def test_dropped_by_its_own_thread() -> None:
    """The iterator may be what keeps the generator."""

    def generator() -> Iterator[int]:
        yield 1
        assert may_drop.wait(SECONDS)
        held.clear()
        yield 2

    may_drop = threading.Event()
    held = [BackgroundGenerator(generator())]
    thread = held[0]._thread
    next(held[0])
    may_drop.set()
    thread.join(SECONDS)
    assert not thread.is_alive()


def test_close_wakes_who_waits() -> None:
    source = Source()
    source.may_go_on.clear()
    items = BackgroundGenerator(source)
    found: list[list[int]] = []
    waiting = [threading.Thread(target=lambda: found.append(list(items))) for _ in range(3)]
    for thread in waiting:
        thread.start()
    closing = threading.Thread(target=items.close)
    closing.start()
    assert wait_until(lambda: items._maker._is_stopped, timeout_seconds=SECONDS)
    source.may_go_on.set()
    for thread in [*waiting, closing]:
        thread.join(SECONDS)
    assert [item for items in found for item in items] in ([], [0])
    with pytest.raises(StopIteration):
        next(items)


def test_closed_twice_and_after_the_end() -> None:
    items = BackgroundGenerator(range(3))
    assert list(items) == [0, 1, 2]
    items.close()
    items.close()
    assert list(items) == []


def test_close_lets_the_iterator_go() -> None:
    """A torch iterator has no ``close``: its workers end with it."""

    class Endless:
        def __iter__(self) -> Any:
            return self

        def __next__(self) -> int:
            return 1

    endless = Endless()
    gone = weakref.ref(endless)
    items = BackgroundGenerator(endless)
    del endless
    next(items)
    items.close()
    assert gone() is None
    with pytest.raises(AttributeError, match="no attribute 'dataset'"):
        _ = items.dataset


def test_iterators_are_closed_that_are_no_generators() -> None:
    class Rows:
        is_closed = False

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> int:
            return 1

        def close(self) -> None:
            self.is_closed = True

    rows = Rows()
    for _ in BackgroundGenerator(BackgroundGenerator(rows)):
        break
    assert rows.is_closed
    assert not threads()


def test_what_closing_raises_is_for_who_closes() -> None:
    def generator() -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            raise OSError("cannot close")

    items = BackgroundGenerator(generator())
    next(items)
    with pytest.raises(OSError, match="cannot close"):
        items.close()
    items.close()
    assert not threads()


def test_several_threads_share_the_items() -> None:
    items = BackgroundGenerator(range(2000), 3)
    found: list[list[int]] = []
    consumers = [threading.Thread(target=lambda: found.append(list(items))) for _ in range(4)]
    for thread in consumers:
        thread.start()
    for thread in consumers:
        thread.join(SECONDS)
    assert sorted(number for numbers in found for number in numbers) == list(range(2000))


# ---------------------------------------------------------------- processes


def in_a_child(function: Callable[[], None]) -> int:
    """Return the exit status of a forked child that runs a function."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            function()
            gc.collect()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_does_not_hang() -> None:
    def use() -> None:
        with pytest.raises(ForkedError, match=f"thread of process {os.getppid()}"):
            next(items)
        items.close()
        assert list(items) == []

    with BackgroundGenerator(Source()) as items:
        next(items)
        assert in_a_child(use) == 0
        assert next(items) == 1


def test_a_forked_child_may_drop_it() -> None:
    def drop() -> None:
        items.clear()

    items = [BackgroundGenerator(Source())]
    next(items[0])
    assert in_a_child(drop) == 0
    assert next(items[0]) == 1
    items.clear()


def test_one_that_has_ended_has_ended_in_a_child_too() -> None:
    items = BackgroundGenerator(range(2))
    assert list(items) == [0, 1]
    assert in_a_child(lambda: exit_if(list(items))) == 0


def exit_if(wrong: Any) -> None:
    assert not wrong


PROGRAM = """
import sys, threading, time, prefeed

def numbers():
    try:
        number = 0
        while True:
            yield number
            number += 1
    finally:
        print("closed in", threading.current_thread().name, flush=True)

items = prefeed.BackgroundGenerator(numbers(), 2)
next(items)
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(("end", "status"), [("", 0), ("sys.exit(3)", 3), ("raise ValueError", 1)])
def test_the_end_of_the_program_closes_it(end: str, status: int) -> None:
    found = run(PROGRAM + end)
    assert (found.stdout, found.returncode) == ("closed in prefeed-background\n", status)


def test_ctrl_c_ends_a_program_that_waits() -> None:
    program = PROGRAM.replace(
        "yield number", "number and threading.Event().wait(0.2) or print('made', flush=True); yield number"
    )
    program += "for _ in items: pass"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "made\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert out.endswith("closed in prefeed-background\n")
    assert err.rstrip().endswith("KeyboardInterrupt")


# ---------------------------------------------------------------- sizes


@dataclass
class Pair:
    image: Any
    label: Any


class Labelled:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.itself = self


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (b"12345", 5),
        (bytearray(7), 7),
        ("abc", 3),
        (np.zeros((2, 3), np.float32), 24),
        ([np.zeros(3, np.uint8), (b"12", {"a": b"345"})], 8),
        (Pair(b"1234", np.zeros(2)), 20),
        (Labelled(b"123"), 3),
        (memoryview(b"123"), 3),
        ({b"12", b"345"}, 5),
        (range(10**12), sys.getsizeof(range(1))),
        (5, sys.getsizeof(5)),
        (np, sys.getsizeof(np)),
        (np.ndarray, sys.getsizeof(np.ndarray)),
        ([], 0),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else type(value).__name__,
)
def test_sizes(item: Any, expected: int) -> None:
    assert num_bytes_of(item) == expected


def test_each_object_counts_once() -> None:
    array = np.zeros(100, np.uint8)
    nested: list[Any] = [array, array]
    nested.append(nested)
    assert num_bytes_of(nested) == 100


def test_sizes_of_tensors() -> None:
    torch = pytest.importorskip("torch")
    assert num_bytes_of({"image": torch.zeros(4, 3), "label": torch.zeros(2, dtype=torch.int64)}) == 48 + 16
    assert num_bytes_of(torch.eye(3).to_sparse()) > 0
