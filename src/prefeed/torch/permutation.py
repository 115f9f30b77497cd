"""What torch's ``RandomSampler`` draws without replacement, as an array: torch makes a list of it, of 40 bytes per index."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch.utils.data import RandomSampler

from prefeed.loaders.kinds import Order

__all__ = ["Permutation", "is_permuted"]


def is_permuted(sampler: object) -> bool:
    """Return whether a ``Permutation`` stands for an iterator of this sampler: index for index, and draw for draw."""
    if type(sampler) is not RandomSampler or sampler.replacement or sampler.num_samples > len(sampler.data_source):
        return False
    return _draws_as_torch()


class Permutation:
    """An iterator of what the sampler yields. Its generators move when torch's own iterator would move them.

    Args:
        sampler: One for which ``is_permuted`` holds.
    """

    def __init__(self, sampler: RandomSampler) -> None:
        self._parts = _parts(sampler)
        self._left: Order | None = None  # None: nothing is drawn yet

    def take(self, most: int) -> Order:
        """Return the next indices, shape (most,), read-only; fewer at the end, where nothing more is drawn than ``next`` has."""
        left = self._opened()
        taken, self._left = left[:most], left[most:]
        return taken

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        left = self._opened()
        while not len(left):  # torch draws once more at the end
            self._left = left = next(self._parts)
        self._left = left[1:]
        return int(left[0])

    def _opened(self) -> Order:
        if self._left is None:
            self._left = next(self._parts)
        return self._left


def _parts(sampler: RandomSampler) -> Iterator[Order]:
    """Yield what the sampler draws at once; written as torch's own iterator is, so that every draw is the same."""
    length = len(sampler.data_source)
    generator = sampler.generator
    if generator is None:
        generator = torch.Generator()
        generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
    for _ in range(sampler.num_samples // length):
        yield _drawn(length, generator)
    yield _drawn(length, generator)[: sampler.num_samples % length]


def _drawn(length: int, generator: torch.Generator) -> Order:
    order: Order = torch.randperm(length, generator=generator).numpy()
    order.flags.writeable = False
    return order


@functools.cache
def _draws_as_torch() -> bool:
    """Try it on small samplers: another version of torch may draw in another way."""
    state = torch.get_rng_state()
    try:
        return all(
            _is_same(length, most, has_generator)
            for length, most in ((40, None), (40, 7))
            for has_generator in (True, False)
        )
    finally:
        torch.set_rng_state(state)


def _is_same(length: int, most: int | None, has_generator: bool) -> bool:
    seen = []
    for draw in (RandomSampler.__iter__, Permutation):
        torch.default_generator.manual_seed(3)
        generator = torch.Generator().manual_seed(5) if has_generator else None
        drawn = list(draw(RandomSampler(range(length), num_samples=most, generator=generator)))
        states = [torch.get_rng_state().tolist(), None if generator is None else generator.get_state().tolist()]
        seen.append((drawn, states))
    return seen[0] == seen[1]
