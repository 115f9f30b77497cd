"""Items of any iterable, made by a thread before they are asked for.

    for batch in prefeed.BackgroundGenerator(loader): ...

The two sides share two queues and nothing else::

     consumer ←── ready: items, then one end ──── thread ──next()─→ iterator
              ──── taken: sizes of items ───────→        ──close()→

The thread knows nothing of the consumer, which may go at any time; when it does, the thread is told to stop.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import ModuleType, TracebackType
from typing import Any, Final, Generic, ParamSpec, Self, TypeVar, overload

from prefeed.errors import ForkedError
from prefeed.quantities import parse_bytes
from prefeed.shown import shown

__all__ = ["BackgroundGenerator", "background", "close_iterator", "num_bytes_of", "prefetch"]

T = TypeVar("T")
P = ParamSpec("P")

_WAIT_SECONDS: Final = 5.0
"""How long a generator that is dropped, or the end of the program, waits for the item that is being made."""

_CONTAINERS: Final = (Mapping, list, tuple, set, frozenset, deque)

_NOT_FORWARDED: Final = frozenset({"send", "throw", "state_dict", "load_state_dict"})
"""A generator would be run in the wrong thread, and a loader's state counts items that were not delivered yet."""


class BackgroundGenerator(Iterator[T], Generic[T]):
    """An iterator over the items of an iterable, made by a thread before they are asked for.

    A drop-in for the class of this name in the package prefetch_generator. The thread starts at once. Attributes that it
    does not have itself are those of the iterable (``.dataset``, ``.sampler``); what is set is set here alone.

    Args:
        generator: Any iterable. ``iter()`` of it is called here, everything else of it in the thread. If the loop is
            left before the end, the iterator's ``close()`` is called, if it has one, in the thread.
        max_prefetch: Items that are ready or being made, beyond those that were handed over; 0 or less: no limit.
        preprocess_func: Called in the thread with each item; what it returns is handed over in its place. None: nothing is called.
        max_bytes: Most bytes that these items take together, as a number or as text, ``"1GiB"``; None: no limit. The next one is expected to be as large as
            the largest so far; one is made in any case. See ``num_bytes_of``.

    Raises:
        TypeError: The object cannot be iterated over, or ``preprocess_func`` cannot be called.
        ValueError: ``max_bytes`` is not positive, or one of the two is no whole number.

    **Errors**: whatever the iterator or ``preprocess_func`` raises, ``KeyboardInterrupt`` and ``SystemExit`` included, is raised
    in its place in the order, with its traceback; after that there are no more items.

    **Ownership**: ``close()``, leaving a ``with`` block, or dropping the last reference ends the thread. ``close()`` waits
    for the item that is being made; the others for 5 s at most, after which the thread ends by itself when it has it. So
    does the end of the program.

    **Threads and processes**: any thread may ask for items; each is handed over once. In a forked child there is no
    thread: ``next()`` raises ``ForkedError``.

    **Blocking**: ``next()`` blocks until an item is ready, ``close()`` was called, or Ctrl-C was pressed.
    """

    def __init__(
        self,
        generator: Iterable[T],
        max_prefetch: int = 1,
        preprocess_func: Callable[[T], Any] | None = None,
        *,
        max_bytes: int | str | None = None,
    ) -> None:
        max_prefetch = _whole_number("max_prefetch", max_prefetch)
        if isinstance(max_bytes, str):
            max_bytes = parse_bytes(max_bytes)
        if max_bytes is not None and (max_bytes := _whole_number("max_bytes", max_bytes)) <= 0:
            raise ValueError(f"max_bytes must be positive, or None for no limit: {max_bytes}")
        if preprocess_func is not None and not callable(preprocess_func):
            raise TypeError(f"preprocess_func must be a function of one item, or None, not {preprocess_func!r}")
        self._is_over = False
        self._pid = os.getpid()
        iterator = iter(generator)
        self._wrapped: Any = generator
        self._owns_wrapped = iterator is generator
        self._maker: _Maker[T] = _Maker(
            iterator, max_prefetch=max_prefetch, max_bytes=max_bytes, preprocess=preprocess_func
        )
        self._get_ready, self._put_taken = self._maker.ready.get, self._maker.taken.put
        self._thread = threading.Thread(target=self._maker.run, name="prefeed-background", daemon=True)
        # In this order: Ctrl-C may interrupt the start, and then the thread runs.
        self._finalizer = weakref.finalize(self, _stop, self._maker, self._thread)
        self._thread.start()

    def __repr__(self) -> str:
        state = "at its end" if self._is_over else f"made ahead by a thread of process {self._pid}"
        return f"<{type(self).__name__} of {shown(self._wrapped)}, {state}>"

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._is_over:
            raise StopIteration
        if os.getpid() != self._pid:
            raise ForkedError(
                f"the items are made by a thread of process {self._pid}, which this process was forked from; "
                "make the generator in the process that uses it"
            )
        item: T
        item, num_bytes, end = self._get_ready()
        if end is None:
            self._put_taken(num_bytes)
            return item
        self._is_over = True
        self._maker.ready.put((None, 0, StopIteration()))  # another thread may wait, too
        self._thread.join()
        try:
            raise end
        finally:
            del end  # with its traceback it refers to this frame

    next = __next__
    """As in prefetch_generator."""

    def __len__(self) -> int:
        """Return the number of items of the whole iterable, if it has one."""
        return len(self._wrapped)

    def __bool__(self) -> bool:
        return True  # iterators are; without this it would have to have a length

    def __getattr__(self, name: str) -> Any:
        wrapped = self.__dict__.get("_wrapped")
        if wrapped is None or name in _NOT_FORWARDED or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        return getattr(wrapped, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the thread and close the iterator; there are no more items. Waits for the item that is being made.

        A second call does nothing.

        Raises:
            BaseException: What the iterator's own ``close()`` raised.
        """
        self._is_over = True
        if self._finalizer.alive:
            _stop(self._maker, self._thread, timeout_seconds=None)
            self._finalizer.detach()
        if self._owns_wrapped:
            self._wrapped = None


class _Maker(Generic[T]):
    """What the thread does, and all that it refers to.

    Attributes:
        ready: Item, its size in bytes, None; in the end nothing, 0, and why there are no more.
        taken: Sizes of the items that were handed over.

    **Threads and processes**: ``run`` is the thread; all else may be called anywhere, also by the garbage collector in the
    midst of anything: no lock is taken.

    **Invariants**: no item is referred to while the thread waits.
    """

    def __init__(
        self,
        iterator: Iterator[T],
        *,
        max_prefetch: int,
        max_bytes: int | None,
        preprocess: Callable[[T], Any] | None = None,
    ) -> None:
        self.ready: SimpleQueue[tuple[Any, int, BaseException | None]] = SimpleQueue()
        self.taken: SimpleQueue[int] = SimpleQueue()
        self.failure: BaseException | None = None
        self._iterator = iterator
        self._preprocess = preprocess
        self._max_items = max_prefetch if max_prefetch > 0 else sys.maxsize
        self._max_bytes = max_bytes
        self._is_stopped = False
        self._num_ahead = 0
        self._bytes_ahead = 0
        self._largest_bytes = 0

    def run(self) -> None:
        """Make items until there are no more, or none are wanted."""
        end: BaseException = StopIteration()
        try:
            self._make_items()
        except BaseException as err:  # noqa: BLE001 - KeyboardInterrupt, too, is for the caller of next()
            end = err
        self._iterator = iter(())  # before the end is known: a reader that sees the end finds nothing of it left
        self.ready.put((None, 0, end))
        del end  # frames that its traceback has refer to their callers: to this one

    def stop(self) -> None:
        """Make no more items. Does not wait."""
        self._is_stopped = True
        self.taken.put(0)

    def is_waiting(self) -> bool:
        """Return True when the thread has made all that it may, for tests."""
        is_done = self._num_ahead >= self._max_items or self._is_full()
        return is_done and self.taken.empty() and self.ready.qsize() == self._num_ahead

    def forget_items(self) -> None:
        """Drop what is ready: it will not be asked for; a waiting reader is told that there is no more."""
        try:
            while True:
                self.ready.get_nowait()
        except Empty:
            self.ready.put((None, 0, StopIteration()))

    def _make_items(self) -> None:
        put = self.ready.put
        while self._wait_for_room():
            item = next(self._iterator)
            if self._preprocess is not None:
                item = self._preprocessed(self._preprocess, item)
            self._num_ahead += 1
            put((item, 0 if self._max_bytes is None else self._counted(item), None))
            del item
        try:
            close_iterator(self._iterator)
        except BaseException as err:  # noqa: BLE001 - for the caller of close()
            self.failure = err

    def _preprocessed(self, preprocess: Callable[[T], Any], item: T) -> Any:
        """Return what the function makes of an item; when it fails, the iterator is closed: it has not come to its end."""
        try:
            return preprocess(item)
        except BaseException:
            with suppress(BaseException):  # the function's error is the one that is told
                close_iterator(self._iterator)
            raise

    def _counted(self, item: T) -> int:
        num_bytes = num_bytes_of(item)
        self._bytes_ahead += num_bytes
        self._largest_bytes = max(self._largest_bytes, num_bytes)
        return num_bytes

    def _wait_for_room(self) -> bool:
        """Return True when there is room for one more item; False when none is wanted."""
        taken = self.taken
        while self._num_ahead >= self._max_items or not taken.empty() or self._is_full():
            self._bytes_ahead -= taken.get()
            self._num_ahead -= 1
            if self._is_stopped:
                return False
        return not self._is_stopped

    def _is_full(self) -> bool:
        """Return True when another item is expected to be too much, and there is one."""
        if self._max_bytes is None or self._num_ahead == 0:
            return False
        return self._bytes_ahead + self._largest_bytes > self._max_bytes


def _stop(maker: _Maker[Any], thread: threading.Thread, *, timeout_seconds: float | None = _WAIT_SECONDS) -> None:
    """End the thread, and wait for it unless it is this one. What the iterator's ``close()`` raised is raised.

    In a forked child the thread has ended with the fork.
    """
    maker.stop()
    if thread.is_alive() and thread is not threading.current_thread():
        # Without waiting, a loader whose workers stay would be begun again while the thread is still inside of it.
        thread.join(timeout_seconds)
    maker.forget_items()
    failure, maker.failure = maker.failure, None
    if failure is not None:
        try:
            raise failure
        finally:
            del failure  # its traceback refers to this frame


def close_iterator(iterator: Iterator[Any]) -> None:
    """Call the iterator's ``close()``, if it has one, as ``yield from`` does when it is left before the end."""
    close = getattr(iterator, "close", None)
    if callable(close):
        close()


# ---------------------------------------------------------------- the decorator


@overload
def background(max_prefetch: Callable[P, Iterable[T]], /) -> Callable[P, BackgroundGenerator[T]]: ...


@overload
def background(
    max_prefetch: int = 1, max_bytes: int | str | None = None
) -> Callable[[Callable[P, Iterable[T]]], Callable[P, BackgroundGenerator[T]]]: ...


def background(max_prefetch: Any = 1, max_bytes: int | str | None = None) -> Any:
    """Make a function that returns a generator return a ``BackgroundGenerator`` over it.

    May stand bare, ``@background``, or with arguments, ``@background(max_prefetch=3)``.

    Args:
        max_prefetch: As of ``BackgroundGenerator``.
        max_bytes: As of ``BackgroundGenerator``.
    """
    if callable(max_prefetch):
        return background()(max_prefetch)

    def decorate(function: Callable[P, Iterable[T]]) -> Callable[P, BackgroundGenerator[T]]:
        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> BackgroundGenerator[T]:
            return BackgroundGenerator(function(*args, **kwargs), max_prefetch, max_bytes=max_bytes)

        return wrapper

    return decorate


prefetch = background
"""The same; prefetch_generator has both names."""


# ---------------------------------------------------------------- sizes


def _whole_number(name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        hint = "a number of bytes, or text such as '1GiB'" if name == "max_bytes" else "a whole number"
        raise ValueError(f"{name} must be {hint}, not {value!r}")
    return operator.index(value)


def num_bytes_of(item: object) -> int:
    """Return about how many bytes an item takes: those of its tensors, arrays and strings, at any depth.

    An object with ``nbytes`` takes that many; mappings, lists, tuples, sets, dataclasses and what has ``__dict__`` the sum of
    what they hold, each object once; anything else what Python says of it.
    """
    num_bytes = 0
    seen: set[int] = set()
    left: list[object] = [item]
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        size = _own_bytes(value)
        if size is None:
            left.extend(_parts_of(value))
        else:
            num_bytes += size
    return num_bytes


def _own_bytes(value: object) -> int | None:
    """Return the size of what has no parts; None when the parts have to be asked."""
    try:
        size = getattr(value, "nbytes", None)
    except RuntimeError:  # a sparse tensor: torch says to add those of its parts, which are a guess away
        return sys.getsizeof(value)
    if isinstance(size, int) and not isinstance(value, type):
        return size
    if isinstance(value, bytes | bytearray | str):
        return len(value)
    has_parts = isinstance(value, _CONTAINERS) or hasattr(value, "__dict__") or dataclasses.is_dataclass(value)
    return None if has_parts and not isinstance(value, type | ModuleType) else sys.getsizeof(value)


def _parts_of(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, _CONTAINERS):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    return vars(value).values()
