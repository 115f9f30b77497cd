"""Background threads that compute the items of an iterable before the loop requests them.

    for batch in prefeed.BackgroundGenerator(loader): ...

The loop (consumer) and the thread share two queues and nothing else::

     consumer ←── ready: items, then one end ──── thread ──next()─→ iterator
              ──── taken: sizes of items ───────→        ──close()→

The thread has no reference to the consumer, which may be deleted at any time. Its finalizer then stops the thread.
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
"""Maximum wait of a finalizer, and of interpreter exit, for the item that is being computed."""

_CONTAINERS: Final = (Mapping, list, tuple, set, frozenset, deque)

_NOT_FORWARDED: Final = frozenset({"send", "throw", "state_dict", "load_state_dict"})
"""Not forwarded, because a generator would run in the wrong thread, and a loader's state includes items that were not delivered yet."""


class BackgroundGenerator(Iterator[T], Generic[T]):
    """Iterator whose items are computed ahead by a thread.

    A drop-in replacement for the class of this name in the package prefetch_generator. The thread starts immediately. Attributes that
    this class does not define are read from the iterable (``.dataset``, ``.sampler``). Assignments do not change the iterable.

    Args:
        generator: Any iterable. ``iter()`` is called here, all other methods in the thread. If the loop ends early, the thread calls the
            iterator's ``close()``, if it has one.
        max_prefetch: Maximum number of items that are ready or being computed; 0 or less for no limit.
        preprocess_func: Function that the thread applies to each item, or None.
        max_bytes: Maximum size of these items, as a number of bytes or a text such as ``"1GiB"``; None for no limit. The next item is
            assumed to be as large as the largest so far. One item is always allowed. Sizes are those of ``num_bytes_of``.

    Raises:
        TypeError: The object cannot be iterated over, or ``preprocess_func`` cannot be called.
        ValueError: ``max_bytes`` is not positive, or one of the limits is not a whole number.

    **Errors**: an exception of the iterator or of ``preprocess_func``, including ``KeyboardInterrupt`` and ``SystemExit``, is raised at
    its position in the order, with its traceback. The iteration then ends.

    **Ownership**: ``close()``, leaving a ``with`` block, or dropping the last reference ends the thread. ``close()`` waits
    for the item that is being computed. The other two, and the end of the program, wait at most 5 s; the thread then ends after that item.

    **Threads and processes**: any thread may call ``next()``; each item is returned once. A forked child has no such thread, so that
    ``next()`` raises ``ForkedError`` there.

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
        # Create the finalizer first, because Ctrl-C may interrupt the start, and then the thread runs.
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
        self._maker.ready.put((None, 0, StopIteration()))  # wake other threads that wait
        self._thread.join()
        try:
            raise end
        finally:
            del end  # with its traceback it refers to this frame

    next = __next__
    """Alias, as in prefetch_generator."""

    def __len__(self) -> int:
        """Return the number of items of the whole iterable, if it has one."""
        return len(self._wrapped)

    def __bool__(self) -> bool:
        return True  # without this method, bool() would call __len__

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
        """Stop the thread and close the iterator. Wait for the item that is being computed.

        A second call does nothing.

        Raises:
            BaseException: The exception of the iterator's own ``close()``.
        """
        self._is_over = True
        if self._finalizer.alive:
            _stop(self._maker, self._thread, timeout_seconds=None)
            self._finalizer.detach()
        if self._owns_wrapped:
            self._wrapped = None


class _Maker(Generic[T]):
    """Work and state of the thread.

    Attributes:
        ready: Queue of (item, size in bytes, None). The last entry is (None, 0, exception that ended the iteration).
        taken: Queue of the sizes of consumed items.

    **Threads and processes**: ``run`` is the thread. The other methods may be called anywhere, also by the garbage collector during any
    other call, because they take no lock.

    **Invariants**: the thread holds no reference to an item while it waits.
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
        """Compute items until the iterator ends or ``stop`` is called."""
        end: BaseException = StopIteration()
        try:
            self._make_items()
        except BaseException as err:  # noqa: BLE001 - KeyboardInterrupt, too, is for the caller of next()
            end = err
        self._iterator = iter(())  # before the end is published, so that a reader that sees the end holds no iterator
        self.ready.put((None, 0, end))
        del end  # its traceback refers to this frame

    def stop(self) -> None:
        """Stop after the current item. Does not wait."""
        self._is_stopped = True
        self.taken.put(0)

    def is_waiting(self) -> bool:
        """Return whether the thread has reached its limits. Used by tests."""
        is_done = self._num_ahead >= self._max_items or self._is_full()
        return is_done and self.taken.empty() and self.ready.qsize() == self._num_ahead

    def forget_items(self) -> None:
        """Drop the items that are ready, and end the iteration for readers that wait."""
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
        except BaseException as err:  # noqa: BLE001 - raised by close()
            self.failure = err

    def _preprocessed(self, preprocess: Callable[[T], Any], item: T) -> Any:
        """Apply the function to an item. If it fails, close the iterator, which has not reached its end."""
        try:
            return preprocess(item)
        except BaseException:
            with suppress(BaseException):  # the function's own error is raised
                close_iterator(self._iterator)
            raise

    def _counted(self, item: T) -> int:
        num_bytes = num_bytes_of(item)
        self._bytes_ahead += num_bytes
        self._largest_bytes = max(self._largest_bytes, num_bytes)
        return num_bytes

    def _wait_for_room(self) -> bool:
        """Wait until the limits allow another item. Return False after ``stop``."""
        taken = self.taken
        while self._num_ahead >= self._max_items or not taken.empty() or self._is_full():
            self._bytes_ahead -= taken.get()
            self._num_ahead -= 1
            if self._is_stopped:
                return False
        return not self._is_stopped

    def _is_full(self) -> bool:
        """Return whether another item would probably exceed ``max_bytes``. False without items."""
        if self._max_bytes is None or self._num_ahead == 0:
            return False
        return self._bytes_ahead + self._largest_bytes > self._max_bytes


def _stop(maker: _Maker[Any], thread: threading.Thread, *, timeout_seconds: float | None = _WAIT_SECONDS) -> None:
    """Stop the thread and wait for it, unless it is the current one. Raise the exception of the iterator's ``close()``.

    A forked child has no such thread.
    """
    maker.stop()
    if thread.is_alive() and thread is not threading.current_thread():
        # Without this wait, a loader with persistent workers would start again while the thread still uses it.
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
    """Decorate a generator function so that it returns a ``BackgroundGenerator``.

    Use ``@background`` or, with arguments, ``@background(max_prefetch=3)``.

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
"""Alias of ``background``, as in prefetch_generator."""


# ---------------------------------------------------------------- sizes


def _whole_number(name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        hint = "a number of bytes, or text such as '1GiB'" if name == "max_bytes" else "a whole number"
        raise ValueError(f"{name} must be {hint}, not {value!r}")
    return operator.index(value)


def num_bytes_of(item: object) -> int:
    """Estimate the size of an item in bytes: its tensors, arrays and strings, at any depth.

    The size of an object with ``nbytes`` is that number. The size of a mapping, list, tuple, set, dataclass or object with ``__dict__`` is
    the sum of its parts, each counted once. Other sizes are those of ``sys.getsizeof``.
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
    """Return the size of a value without parts; None for a container."""
    try:
        size = getattr(value, "nbytes", None)
    except RuntimeError:  # a sparse tensor, whose parts torch does not expose here
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
