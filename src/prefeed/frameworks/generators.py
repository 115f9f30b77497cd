"""Serves a Python generator in a framework's pipeline as a dataset, in which the i-th element of each pass is sample i.

The next element of a generator is unknown. But most generators iterate over a list, which is the same in each pass:

    first pass      search the generator's variables for a list of files, which the first elements confirm or refute
    later passes    predict that element i opens the files that it opened before
"""

from __future__ import annotations

import functools
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any, Final
from weakref import WeakSet, ref

import numpy as np

from prefeed.config import current
from prefeed.interception import answers_everywhere, reads_from
from prefeed.interception.asking import FileReader
from prefeed.loaders.feed import Feed, Feeds
from prefeed.loaders.kinds import length_of
from prefeed.loaders.searching import attributes_of, find_columns
from prefeed.loaders.sources import ServedSource
from prefeed.sources.mounts import Roots
from prefeed.system.clock import Clock

_UNKNOWN_LENGTH: Final = 1 << 14
"""Number of elements whose files are learned in the first pass of a generator without a list of files."""

_MAX_ELEMENTS: Final = 1 << 24
_MAX_PARTS: Final = 1 << 16
_MAX_SAMPLES: Final = 1 << 20
"""Maximum number of remembered elements of parts; twice the length of the list of files if that is larger."""

_PLAN_COST_FACTOR: Final = 50
"""A new plan is made after this many times its duration, so that planning takes at most 2% of the time."""

_MAX_LENGTHS: Final = 3
"""Maximum number of list lengths that are searched, because each search may take a second."""

_DATA: Final = (str, os.PathLike, list, tuple, dict, np.ndarray)
"""Types of global variables that are searched for lists of files."""

_END: Final = object()


class GeneratorElements:
    """Dataset of the elements of one pass. A subclass with the generator's name is created per generator.

    Args:
        held: Variables of the generator, by name.
        length: Number of elements; None for the length of a list of files among the variables, or a default.
    """

    def __init__(self, held: dict[str, Any], length: int | None = None) -> None:
        self.held = SimpleNamespace(**held)  # Nested, so that no variable is mistaken for an attribute of a dataset.
        self._length = _UNKNOWN_LENGTH
        found = self._length_of_list() if length is None else length
        self.is_length_known: bool = found is not None
        self._length = found or _UNKNOWN_LENGTH

    def __len__(self) -> int:
        return self._length

    def _length_of_list(self) -> int | None:
        covers = Roots.of(current()).covers
        lengths = {length_of(value) for value in _flatten_held(vars(self.held)) if not isinstance(value, str | bytes)}
        known = sorted((length for length in lengths if length and length <= _MAX_ELEMENTS), reverse=True)
        return next((length for length in known[:_MAX_LENGTHS] if find_columns(self, length, covers=covers)), None)


def _flatten_held(held: dict[str, Any]) -> Iterator[Any]:
    for value in held.values():
        yield value
        yield from attributes_of(value).values()


def held_values(generator: Callable[..., Any]) -> dict[str, Any]:
    """Return the variables of a callable: closure, defaults, arguments of a ``partial``, bound object and global data."""
    if isinstance(generator, functools.partial):
        arguments = {f"argument{place}": value for place, value in enumerate(generator.args)} | generator.keywords
        return held_values(generator.func) | arguments
    bound = getattr(generator, "__self__", None)
    own = {} if bound is None or isinstance(bound, ModuleType) else {"self": bound}
    function = getattr(generator, "__func__", generator)
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return {"self": generator} | own
    cells = zip(code.co_freevars, function.__closure__ or (), strict=False)
    closure = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
    defaults = {f"default{place}": value for place, value in enumerate(function.__defaults__ or ())}
    names = [name for name in _names_in(code) if isinstance(function.__globals__.get(name), _DATA)]
    return {name: function.__globals__[name] for name in names} | defaults | closure | own


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


class ServedGenerator:
    """Replacement of a generator function whose passes are read through the cache and prefetched.

    A plan takes milliseconds, and a pass over local files may take less. A pass therefore has its own plan only if planning takes at most
    a fiftieth of the time. Passes with arguments, for example those of tf.data's ``interleave``, are parts of one round, which has one
    plan. A round ends when a part begins again, or when one begins while none is read.

    A plan is an epoch, in which files are checked for changes once. Passes and rounds without a plan check each file when they open it.

    Args:
        generator: The user's function, which returns an iterable and is called once per pass.
        feeds: Feeds of the framework.
        beside: Function that returns the current reader of files for passes without a plan, or None.
        clock: Monotonic clock, in seconds.

    **Threads**: any. Of concurrent passes, one is prefetched, and the others are read through the cache.
    """

    def __init__(
        self,
        generator: Callable[..., Any],
        feeds: Feeds,
        *,
        beside: Callable[[], FileReader | None] = lambda: None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.generator = generator
        self._feeds = feeds
        self._beside = beside
        self._clock = clock
        self._lock = threading.Lock()
        self._ahead: ref[GeneratorPass] | None = None
        self._elements: GeneratorElements | None = None
        self._source: ServedSource | None = None
        self._kind = type(str(getattr(generator, "__name__", type(generator).__name__)), (GeneratorElements,), {})
        self._planned_at = 0.0
        self._plan_seconds: float | None = None  # without the first plan, which may start the server
        self._num_plans = 0
        self._parts: dict[tuple[Any, ...], list[int]] = {}  # samples of each part, in order
        self._begun: set[tuple[Any, ...]] = set()  # parts begun in this round
        self._num_samples = 0  # samples of all parts
        self._list_length = 0  # 0 without a list of files
        self._running: WeakSet[GeneratorPass] = WeakSet()  # passes of parts
        self._round: Feed | None = None
        self._is_planned = False  # True if this round has a plan

    def __call__(self, *args: Any) -> GeneratorPass:
        """Begin a pass. Errors of the generator are raised."""
        elements = iter(self.generator(*args))
        with self._lock:
            return self._begin_part(elements, _key_of(args)) if args else self._begin_pass(elements)

    def _begin_pass(self, elements: Iterator[Any]) -> GeneratorPass:
        running = None if self._ahead is None else self._ahead()
        if (running is not None and not running.is_over) or not self._is_worthwhile():
            return GeneratorPass(elements, self, None, None, beside=self._beside())
        with self._make_plan() as feed:
            feed.loop_begins(None)
            begun = GeneratorPass(elements, self, self._source, feed)
            self._ahead = ref(begun)
            feed.begin(range(len(self._elements or ())))
        return begun

    def _begin_part(self, elements: Iterator[Any], key: tuple[Any, ...]) -> GeneratorPass:
        is_between = all(other.is_over for other in self._running)
        is_start = key not in self._parts and (self._is_full() or (is_between and self._was_whole()))
        if is_start:
            self._parts.clear()
            self._num_samples = 0
        part = self._parts.setdefault(key, [])
        if is_start or is_between or key in self._begun:
            self._begin_round(part)
        self._begun.add(key)
        if self._is_planned:
            begun = GeneratorPass(elements, self, self._source, None, part=part)
        else:
            begun = GeneratorPass(elements, self, None, None, beside=self._beside())
        self._running.add(begun)
        return begun

    def _is_full(self) -> bool:
        return len(self._parts) >= _MAX_PARTS or self._num_samples >= max(_MAX_SAMPLES, 2 * self._list_length)

    def _was_whole(self) -> bool:
        """Return True if one part read the whole list, so that its arguments (an epoch's number) do not select files."""
        return self._list_length > 0 and any(len(part) == self._list_length + 1 for part in self._parts.values())

    def _begin_round(self, part: list[int]) -> None:
        self._begun.clear()
        self._running.clear()
        self._is_planned = self._is_worthwhile()
        if not self._is_planned:
            return
        if self._round is not None:
            self._round.epoch_ended()
        self._lengthen(self._num_samples)
        with self._make_plan() as feed:
            self._round = feed
            if part:
                feed.begin(chain(range(part[0], self._num_samples), range(part[0])))
            else:
                feed.begin(range(self._num_samples, len(self._elements or ())))

    def _is_worthwhile(self) -> bool:
        """Return True if enough time has passed since the last plan for another one."""
        seconds = self._plan_seconds
        return seconds is None or self._clock() - self._planned_at >= _PLAN_COST_FACTOR * seconds

    @contextmanager
    def _make_plan(self) -> Iterator[Feed]:
        """Yield the feed for a new plan after serving the elements, and measure the time of planning."""
        began = self._clock()
        if self._elements is None:
            self._elements = self._kind(held_values(self.generator))
            if self._elements.is_length_known:
                self._list_length = len(self._elements)
        feed = self._feeds.of(self, self._elements)
        self._source = feed.serve()
        if self._source is not None:
            self._source.reports_each = False  # Reads are in this process, which reports them in batches.
        yield feed
        self._planned_at = self._clock()
        self._num_plans += 1
        if self._num_plans > 1:
            self._plan_seconds = min(self._planned_at - began, self._plan_seconds or math.inf)

    def sample_of(self, part: list[int], index: int) -> int:
        """Return the sample of an element of a part. Samples are numbered in the order of first requests by all parts."""
        if index >= len(part):
            with self._lock:
                part.append(self._num_samples)
                self._num_samples += 1
        return part[index]

    def step(self) -> None:
        """Record that an element of a round was computed."""
        feed = self._round
        if feed is not None and self._lock.acquire(blocking=False):  # Otherwise, another part does so.
            try:
                feed.step()
            finally:
                self._lock.release()

    def round_length(self) -> int:
        """Return the number of elements after which an infinite generator repeats its list; 0 if unknown."""
        elements = self._elements
        return len(elements) if elements is not None and elements.is_length_known else 0

    def record_end(self, num_elements: int) -> None:
        """Record the number of elements of a pass, so that the next pass is prefetched to its end."""
        with self._lock:
            self._lengthen(num_elements)

    def _lengthen(self, num_elements: int) -> None:
        elements = self._elements
        if elements is not None and num_elements > len(elements):
            self._elements = self._kind(vars(elements.held), min(num_elements, _MAX_ELEMENTS))
            self._feeds.renew(self, self._elements)


def _key_of(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple((arg.shape, arg.tobytes()) if isinstance(arg, np.ndarray) else repr(arg) for arg in args)


class GeneratorPass:
    """Iterator over the elements of one pass.

    Args:
        elements: The user's iterator.
        owner: Generator of this pass.
        source: Served source of the elements; None to read without a plan.
        feed: Feed with a plan for this pass only; None without a plan or with that of a round.
        beside: Reader of the elements' files if ``source`` is None; None to read without prefeed.
        part: Samples of the elements, from earlier passes of this part; None if element i is sample i.

    Attributes:
        is_over: True if the pass has ended or raised an error.
    """

    def __init__(
        self,
        elements: Iterator[Any],
        owner: ServedGenerator,
        source: ServedSource | None,
        feed: Feed | None,
        *,
        beside: FileReader | None = None,
        part: list[int] | None = None,
    ) -> None:
        self._beside = beside
        self._part = part
        self._elements = elements
        self._owner = owner
        self._source = source
        self._feed = feed
        self._index = self._num_made = 0
        self.is_over = False

    def __iter__(self) -> GeneratorPass:
        return self

    def __next__(self) -> Any:
        """Return the next element of the generator."""
        try:
            return self._next_element() if self._feed is None else self._feed.next_batch(self._next_element)
        except BaseException as err:
            self.is_over = True
            if self._feed is not None and isinstance(err, StopIteration):
                self._owner.record_end(self._num_made)
            raise

    def _next_element(self) -> Any:
        if self._source is None:
            is_answered = self._beside is not None and not answers_everywhere()
            with reads_from(self._beside) if is_answered else nullcontext():
                element = next(self._elements, _END)
        else:
            index = self._index if self._part is None else self._owner.sample_of(self._part, self._index)
            with self._source.making(index):
                element = next(self._elements, _END)
        if element is _END:
            raise StopIteration
        self._index += 1
        self._num_made += 1
        if self._part is not None:
            self._owner.step()
        length = 0 if self._feed is None else self._owner.round_length()
        if self._feed is not None and 0 < length < self._index:  # This was the first element of the next round.
            self._index = 1
            self._feed.begin(range(1, length))
        return element
