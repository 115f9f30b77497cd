"""Global random number generators: which of them moves while a sample is computed, and marks of steps that chance does not change.

The generators are those of ``random``, ``numpy.random`` and torch, and of CUDA devices in use. Their states are read with their own
functions: 10, 30 and 5 µs. A package that is not imported has no state.
"""

from __future__ import annotations

import pickle
import random
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

from prefeed.stage_cache.contents import MARK

T = TypeVar("T")


class _Generator(NamedTuple):
    name: str
    get: Callable[[], Any]
    put: Callable[[Any], Any]


def _generators() -> Iterator[_Generator]:
    yield _Generator("random", random.getstate, random.setstate)
    mtrand: Any = sys.modules.get("numpy.random.mtrand")
    if mtrand is not None:
        yield _Generator("numpy.random", partial(mtrand._rand.get_state, legacy=False), mtrand._rand.set_state)
    torch: Any = sys.modules.get("torch")
    default = getattr(torch, "default_generator", None)  # absent while torch is being imported
    if default is not None:
        yield _Generator("torch", default.get_state, default.set_state)
        cuda = getattr(torch, "cuda", None)
        if cuda is not None and cuda.is_initialized() and not cuda._is_in_bad_fork():
            for device in cuda.default_generators:
                yield _Generator("torch.cuda", device.get_state, device.set_state)


def _plain(state: Any) -> Any:
    """Return a state as a value that can be compared."""
    if isinstance(state, dict):
        return pickle.dumps(state)
    return state.numpy().tobytes() if hasattr(state, "numpy") else state


class Watch:
    """Reports which global generator moves inside its ``with`` block.

    A package that is imported inside is not watched, because its generator is new. Draws of other threads count as well.

    Attributes:
        drew: "random", "numpy.random", "torch" or "torch.cuda"; None if none of them moved.
    """

    def __init__(self) -> None:
        self.drew: str | None = None

    def __enter__(self) -> Watch:
        self.drew = None
        self._before = [(generator, _plain(generator.get())) for generator in _generators()]
        return self

    def __exit__(self, *exc: object) -> None:
        moved = (generator.name for generator, before in self._before if _plain(generator.get()) != before)
        self.drew = next(moved, None)


def states() -> list[Any]:
    """Return the states of the global generators, to be compared."""
    return [_plain(generator.get()) for generator in _generators()]


def saved() -> Callable[[], None]:
    """Save the global generators; return a function that puts them back."""
    kept = [(generator, generator.get()) for generator in _generators()]

    def put_back() -> None:
        for generator, state in kept:
            generator.put(state)

    return put_back


@contextmanager
def left_alone() -> Iterator[None]:
    """Put the global generators back at the end, also after draws of other threads."""
    put_back = saved()
    try:
        yield
    finally:
        put_back()


# ---------------------------------------------------------------- marks


def not_random(fn: T) -> T:
    """Mark a function, class or instance whose result does not depend on chance, although it draws random numbers.

    Use it as a decorator or a call. An object without room for a mark (a builtin function, a bound method, an instance with
    ``__slots__``) is returned in a wrapper that calls it.

    One mark vouches for the whole of each stage that it is a part of: the generators are not watched while samples of that
    stage are computed, and samples that differ are the user's own will.

    Raises:
        TypeError: The object has no room for a mark and cannot be called.
    """
    if not isinstance(fn, types.MethodType):
        try:
            (setattr if isinstance(fn, type) else object.__setattr__)(fn, MARK, True)
        except (AttributeError, TypeError):
            pass
        else:
            return fn
    if not callable(fn):
        raise TypeError(f"{type(fn).__qualname__} has no room for a mark and cannot be called: mark its class")
    return NotRandom(fn)  # type: ignore[return-value]


class NotRandom:
    """Wrapper that carries the mark of a function without room for it."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn
        setattr(self, MARK, True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"not_random({self.fn!r})"


# ---------------------------------------------------------------- threads


def threads_now() -> int:
    """Return with how many threads torch computes in this process; 0 until it is imported.

    This is no part of a key: workers have one, and would share nothing with loops that have none. A sum over many numbers
    differs in its last bit between one thread and two, so that samples are compared only where they have as many.
    """
    torch: Any = sys.modules.get("torch")
    count = getattr(torch, "get_num_threads", None)
    return 0 if count is None else int(count())


@contextmanager
def computing_with(threads: int) -> Iterator[bool]:
    """Inside it torch computes with that many threads, if that can be had: one always can. Gives whether it does."""
    now = threads_now()
    if 0 in (now, threads) or now == threads:
        yield True
    elif threads == 1:
        torch: Any = sys.modules["torch"]
        torch.set_num_threads(1)
        try:
            yield True
        finally:
            torch.set_num_threads(now)
    else:
        yield False  # a forked worker must not start any
