"""What is known of samplers, and their order, read a window at a time ahead of torch.

torch's own samplers draw from torch's generators alone, which can be copied: their order can be read ahead. So can that of
Accelerate's. A sampler of another class may keep state of its own or draw from anywhere, so it is left alone unless the
user says that it may be read ahead.

A sampler of 10⁸ samples, or without an end, gives its first batch at once, and so it has to here: the first window is short
where each sample is drawn as it is asked for, and the next ones are read while the loop runs.

    order     3 17 4 9 8 1 12 6 2 5 7 …
              torch has | read ahead | not drawn yet

There are two ways to read ahead, and neither moves a generator that somebody can look at:

* ``Shadow``: a copy of the sampler draws a second time, from copies of its generators.
* ``Buffered``: the sampler itself is drawn from, and torch is given what it drew. Only where that changes nothing: torch's
  samplers that draw all of an order at once, and the user's own that may be read ahead by the user's word.

A third one, for samplers of the user's own, is a ``Forecast`` (``forecasts``).
"""

from __future__ import annotations

import copy
import itertools
import operator
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from prefeed.loaders.kinds import Order, length_of
from prefeed.torch.permutation import Permutation, is_permuted

KNOWN_SAMPLERS = frozenset(
    {SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler}
)
"""Classes whose iteration draws from torch's generators only, and changes nothing else."""

_KNOWN_BY_NAME = frozenset({"accelerate.data_loader.SeedableRandomSampler"})
"""The same of other packages; iterating one may change its plain attributes, which a copy has for itself."""

_WRAPPERS = {
    "torch.utils.data.sampler.BatchSampler": "sampler",
    "accelerate.data_loader.BatchSamplerShard": "batch_sampler",
    "accelerate.data_loader.SkipBatchSampler": "batch_sampler",
}
"""Classes that hand on what another sampler draws: full name, and the attribute that holds the other."""

PLAIN = (list, tuple, range)
"""What can be a sampler, and draws from nothing."""


class UntilEnd:
    """Iterates as torch does: ``__iter__`` of the iterator, which may be the sampler itself, is not called, nor ``__next__`` after the end."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self.iterator = iterator

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return next(self.iterator)
        except StopIteration:
            self.iterator = iter(())
            raise


def is_readable_ahead(index_sampler: Any) -> bool:
    """Return True when the sampler, or batch sampler, can be run in the shadow. Subclasses are others' code: False."""
    innermost = samplers_of(index_sampler)[-1]
    if type(innermost) in KNOWN_SAMPLERS or type(innermost) in PLAIN:
        return True
    return _name_of(innermost) in _KNOWN_BY_NAME


def samplers_of(index_sampler: Any) -> list[Any]:
    """Return the sampler, the one inside it that it draws from, and so on."""
    chain = [index_sampler]
    while (inner := _WRAPPERS.get(_name_of(chain[-1]))) is not None:
        chain.append(getattr(chain[-1], inner))
    return chain


def yields_integers(sampler: Any) -> bool:
    """Return True when what the sampler yields is known to be one integer after the other."""
    return type(sampler) in KNOWN_SAMPLERS


def batches_are_of_integers(index_sampler: Any) -> bool:
    """Return True when what it yields is known to be one list of integers after the other."""
    return type(index_sampler) is BatchSampler and yields_integers(index_sampler.sampler)


def batch_size_of(index_sampler: Any) -> int | None:
    """Return how many samples the batches have that a batch sampler yields; None when it does not say."""
    size = getattr(index_sampler, "batch_size", None)
    if not isinstance(size, int):
        return None
    if getattr(index_sampler, "split_batches", False):  # Accelerate: each process has its part of each batch
        return size // int(index_sampler.num_processes)
    return size


def repeated_by(index_sampler: Any) -> Any:
    """Return the batch sampler that a sampler without an end goes through again and again; None when it is no such one.

    timm, ultralytics and YOLOv5 have one: their loaders make one iterator, which lasts for the whole run.
    """
    if _name_of(index_sampler) in _WRAPPERS or length_of(index_sampler) is not None:
        return None
    inner = getattr(index_sampler, "sampler", None)
    return inner if batch_size_of(inner) is not None and length_of(inner) else None


def pass_length(index_sampler: Any, *, num_samples: int, batch_size: int | None) -> int | None:
    """Return how many batches, or indices, one pass has: after that many, what comes is of another epoch.

    That is the length of the sampler that it repeats. Else as many samples as the dataset has, or as it says that it has
    itself, whichever is more: what it says may be wrong, and one that ends after all is one epoch.

    Args:
        index_sampler: Yields batches or indices, maybe without end.
        num_samples: Of the dataset.
        batch_size: Of the loader; None when it has none.
    """
    repeated = length_of(repeated_by(index_sampler))
    return repeated or max(length_of(index_sampler) or 0, -(-num_samples // (batch_size or 1))) or None


def drawn_order(batches: list[Any]) -> Order:
    """Return the sample indices of batches that were drawn for real, shape (n,)."""
    return np.array([index for batch in batches for index in indices_of(batch)], dtype=np.int64)


def as_order(drawn: list[Any] | Order) -> Order:
    """Return the sample indices that a sampler drew, alone or in batches, shape (n,); what is no integer is left out."""
    if isinstance(drawn, np.ndarray):
        return drawn
    if drawn and isinstance(drawn[0], list) and all(issubclass(kind, list) for kind in set(map(type, drawn))):
        drawn = list(itertools.chain.from_iterable(drawn))
    try:
        order = np.asarray(drawn).reshape(len(drawn))
    except (TypeError, ValueError):
        return drawn_order(drawn)
    if order.dtype.kind not in "biu":  # tensors, tuples, names: whatever the dataset takes
        return drawn_order(drawn)
    return order.astype(np.int64, copy=False)


def with_inner(chain: list[Any], innermost: Any) -> Any:
    """Return copies of samplers that draw from one another; the last copy draws from this one."""
    for wrapper in reversed(chain[:-1]):
        inner, innermost = innermost, copy.copy(wrapper)
        setattr(innermost, _WRAPPERS[_name_of(wrapper)], inner)
    return innermost


def can_be_read_again(batch: Any) -> bool:
    """Return True for a batch that may be iterated more than once; others (``map``, generators) are left to torch."""
    return isinstance(batch, Collection)


def indices_of(batch: Any) -> list[int]:
    """Return the sample indices in a batch, or the one that a sampler drew.

    What is no integer is left out, and so is what can be read only once: reading it here would leave nothing of it.
    """
    if type(batch) is list and set(map(type, batch)) == {int}:  # nearly all are; the rest takes twenty times as long
        return batch
    try:
        return [operator.index(batch)]
    except TypeError:
        pass
    if not can_be_read_again(batch) or isinstance(batch, str | bytes):
        return []
    return [index for part in batch if not isinstance(part, list | tuple) for index in indices_of(part)]


def distributed_sampler(index_sampler: Any) -> DistributedSampler[Any] | None:
    """Return the distributed sampler inside, whose order depends on nothing but its epoch; None if there is none."""
    inner = index_sampler.sampler if type(index_sampler) is BatchSampler else index_sampler
    return inner if type(inner) is DistributedSampler else None


def with_epoch(index_sampler: Any, epoch: int) -> Any:
    """Return a copy of a (batch sampler of a) distributed sampler, as ``set_epoch`` will leave it."""
    inner = distributed_sampler(index_sampler)
    assert inner is not None
    following = copy.copy(inner)
    following.epoch = epoch
    if inner is index_sampler:
        return following
    return BatchSampler(following, index_sampler.batch_size, index_sampler.drop_last)


def _name_of(sampler: Any) -> str:
    return f"{type(sampler).__module__}.{type(sampler).__qualname__}"


FIRST: Final = 1 << 13
"""Samples read first of a sampler that draws one after the other: some milliseconds."""

CHUNK: Final = 1 << 16
"""Most samples read at a time while the loop runs: some 10 ms."""

WINDOW: Final = 1 << 21
"""Samples read first of a sampler that has drawn all of its order by then; an epoch that is no longer is one window."""

_MOST_FORESEEN: Final = 1 << 24
"""Samples that a sampler may draw at once for an order that only may come."""


class Shadow:
    """Draws what a sampler would yield from now on, by a copy of it; generators are as before.

    Args:
        index_sampler: A sampler or batch sampler for which ``is_readable_ahead`` holds.
        draw_seed_from: What torch draws an epoch's base seed from just before it asks the sampler: a generator,
            True for the default one, None when it does not.

    Attributes:
        window: Samples to read first.
        has_more: False once the end was read.
    """

    def __init__(self, index_sampler: Any, *, draw_seed_from: torch.Generator | bool | None = None) -> None:
        chain = samplers_of(index_sampler)
        self.window: int = _first_window(chain[-1])
        self.has_more: bool = True
        self._index_sampler = index_sampler
        self._torchs: Iterator[Any] | None = None
        self._is_flat = len(chain) == 2 and type(index_sampler) is BatchSampler
        clones: dict[int, torch.Generator] = {}
        innermost: Any = chain[-1] if isinstance(chain[-1], PLAIN) else copy.copy(chain[-1])
        own = getattr(innermost, "generator", None)
        if isinstance(own, torch.Generator):
            innermost.generator = clones.setdefault(id(own), _clone(own))
        with _default_generator_restored():
            if draw_seed_from is not None:
                generator = None
                if isinstance(draw_seed_from, torch.Generator):
                    generator = clones.get(id(draw_seed_from)) or _clone(draw_seed_from)
                torch.empty((), dtype=torch.int64).random_(generator=generator)
            self._drawn = _begun(innermost if self._is_flat else with_inner(chain, innermost))

    def read(self, most: int) -> Order:
        """Return the next samples of the order, ``most`` or up to a batch more; fewer at the end.

        Args:
            most: A multiple of the batch size; shape of the result (most,).
        """
        drawn, count = _take(self._drawn, most)
        self.has_more = count >= most
        return _in_batches(as_order(drawn), self._index_sampler if self._is_flat and not self.has_more else None)

    def skip(self, num_samples: int) -> None:
        """Note how many torch has drawn by itself."""
        for left in range(num_samples, 0, -CHUNK):
            _take(self._drawn, min(left, CHUNK))

    def __iter__(self) -> Iterator[Any]:
        """Return what torch draws: always the same iterator, over the sampler itself."""
        self._torchs = self._torchs or iter(self._index_sampler)
        return self._torchs


class Buffered:
    """Draws from a sampler itself, and keeps what it drew for torch.

    What the sampler raises is raised when torch comes to it.

    Args:
        source: Makes the iterator that is read ahead; called when the first is drawn.
        window: See ``Shadow``.
        over: Makes batches of what was drawn; None: torch gets that itself.
        most: Samples that may be read ahead; None: all.

    Attributes:
        window, has_more: See ``Shadow``.
    """

    def __init__(
        self,
        source: Callable[[], Iterator[Any]],
        *,
        window: int,
        over: BatchSampler | None = None,
        most: int | None = None,
    ) -> None:
        self.window = window
        self.has_more: bool = True
        self._make = source
        self._source: Iterator[Any] | None = None
        self._left = most
        self._kept: deque[list[Any] | Order] = deque()
        self._given: Iterator[Any] = iter(())
        self._error: Exception | None = None
        self._over = over
        drawn = self._drawn()
        self._torchs = drawn if over is None else BatchSampler.__iter__(_Over(over, drawn))  # type: ignore[arg-type]

    def read(self, most: int) -> Order:
        """Return the next samples of the order; see ``Shadow.read``."""
        allowed = most if self._left is None else min(most, self._left)
        drawn: list[Any] = []
        items: list[Any] | Order = drawn
        count = 0
        try:
            source = self._opened()
            if isinstance(source, Permutation):
                items = source.take(allowed)
                count = len(items)
            else:
                count = take_into(drawn, source, allowed)
        except Exception as err:  # noqa: BLE001 - it is the user's, and torch's to hear of
            self._error = err
        if self._left is not None:
            self._left -= count
        self.has_more = count >= most and self._left != 0
        self._kept.extend(items[start : start + CHUNK] for start in range(0, len(items), CHUNK))
        return _in_batches(as_order(items), None if self.has_more else self._over)

    @property
    def num_kept(self) -> int:
        """What was drawn, and not given to torch yet."""
        return operator.length_hint(self._given) + sum(map(len, self._kept))

    def skip(self, num_samples: int) -> None:
        """Note what torch has drawn by itself, from this reader, which knows it."""

    def __iter__(self) -> Iterator[Any]:
        """Return what torch draws: always the same iterator."""
        return self._torchs

    def _opened(self) -> Iterator[Any]:
        if self._source is None:
            self._source = self._make()
        return self._source

    def _drawn(self) -> Iterator[Any]:
        while True:
            while self._kept:
                items = self._kept.popleft()
                self._given = iter(items.tolist() if isinstance(items, np.ndarray) else items)
                yield from self._given
            if self._error is not None:
                error, self._error = self._error, None
                try:
                    raise error
                finally:
                    del error  # its traceback refers to this frame
            for item in self._opened():
                if self._left is not None:
                    self._left -= 1
                yield item
                if self._kept:
                    break
            else:
                return


ReadAhead = Shadow | Buffered


class ReadOnce(list[Any]):
    """The indices of a batch that can be read only once; torch is given an iterator again."""


def read_ahead(index_sampler: Any) -> ReadAhead:
    """Return a reader of what a sampler yields from now on; generators move when torch moves them.

    Args:
        index_sampler: A sampler or batch sampler for which ``is_readable_ahead`` holds.
    """
    chain = samplers_of(index_sampler)
    inner = chain[-1]
    is_batched = len(chain) == 2 and type(index_sampler) is BatchSampler
    if not (is_batched or len(chain) == 1) or not _has_drawn_all(inner):
        return Shadow(index_sampler)
    # Where a random sampler comes to its end it draws once more: that is for torch to ask.
    most = inner.num_samples if type(inner) is RandomSampler else None
    return Buffered(lambda: _iterator_of(inner), window=WINDOW, over=index_sampler if is_batched else None, most=most)


def read_ahead_of_user(batches: Iterator[Any]) -> Buffered:
    """Return a reader of a sampler of another class, which may be read ahead: the user says so."""
    again = (ReadOnce(batch) if isinstance(batch, Iterator) else batch for batch in batches)
    return Buffered(lambda: again, window=FIRST)


def shadow_order(index_sampler: Any, *, draw_seed_from: torch.Generator | bool | None = None) -> Order:
    """Return every sample index that the sampler would yield now, in order, shape (n,); all generators as before.

    Arguments as of ``Shadow``.
    """
    return Shadow(index_sampler, draw_seed_from=draw_seed_from).read(_ALL)


_ALL: Final = 1 << 62


def is_worth_foreseeing(index_sampler: Any, *, is_awaited: bool = False) -> bool:
    """Return False where even the first window of an order that only may come would take too long to draw.

    Args:
        index_sampler: A sampler or batch sampler for which ``is_readable_ahead`` holds.
        is_awaited: The loop waits meanwhile for its first batch.
    """
    sampler, most = samplers_of(index_sampler)[-1], WINDOW if is_awaited else _MOST_FORESEEN
    if isinstance(sampler, DistributedSampler):
        return len(sampler.dataset) <= most  # type: ignore[arg-type]
    if isinstance(sampler, RandomSampler):
        return sampler.replacement or len(sampler.data_source) <= most
    return not isinstance(sampler, SubsetRandomSampler | WeightedRandomSampler) or len(sampler) <= most


def _in_batches(order: Order, ended: BatchSampler | None) -> Order:
    """Return the last samples of an order without those that a batch sampler drops; all where it has not ended."""
    if ended is None or not ended.drop_last:
        return order
    return order[: len(order) - len(order) % ended.batch_size]


class _Over:
    """What torch's batch sampler reads of itself while it is iterated, but with another sampler inside."""

    def __init__(self, batch_sampler: BatchSampler, drawn: Iterator[Any]) -> None:
        self.sampler = drawn
        self.__batch_sampler = batch_sampler

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__batch_sampler, name)


def _has_drawn_all(sampler: Any) -> bool:
    """Return True for torch's samplers that draw from generators when the first sample is asked for, and not again."""
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples <= len(sampler.data_source)
    return type(sampler) in (WeightedRandomSampler, DistributedSampler)


def _first_window(sampler: Any) -> int:
    if type(sampler) is RandomSampler:
        is_lazy = sampler.replacement or sampler.num_samples > len(sampler.data_source)
        return FIRST if is_lazy else WINDOW
    return FIRST if isinstance(sampler, (SequentialSampler, *PLAIN)) else WINDOW


def _iterator_of(sampler: Any) -> Iterator[Any]:
    return Permutation(sampler) if is_permuted(sampler) else iter(sampler)


def _begun(sampler: Any) -> Iterator[Any]:
    """Return an iterator of a sampler that has drawn all that it draws from the default generator."""
    drawn = _iterator_of(sampler)
    if isinstance(drawn, Permutation):
        drawn.take(0)
        return drawn
    return itertools.chain(list(itertools.islice(drawn, 1)), drawn)


def _take(drawn: Iterator[Any], most: int) -> tuple[list[Any] | Order, int]:
    if isinstance(drawn, Permutation):
        order = drawn.take(most)
        return order, len(order)
    items: list[Any] = []
    return items, take_into(items, drawn, most)


def take_into(items: list[Any], drawn: Iterator[Any], most: int) -> int:
    """Append what comes, single indices or batches, until there are enough samples; return how many there are."""
    for item in itertools.islice(drawn, min(1, most)):
        items.append(item)
        if not isinstance(item, int):
            break
        items.extend(itertools.islice(drawn, most - 1))
        return len(items)
    count = sum(map(_size_of, items))
    while count < most:
        for item in itertools.islice(drawn, 1):
            items.append(item)
            count += _size_of(item)
            break
        else:
            break
    return count


def _size_of(item: Any) -> int:
    return len(item) if isinstance(item, list | tuple) else max(1, len(indices_of(item)))


def _clone(generator: torch.Generator) -> torch.Generator:
    clone = torch.Generator(device=generator.device)
    clone.set_state(generator.get_state())
    return clone


@contextmanager
def _default_generator_restored() -> Iterator[None]:
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)
