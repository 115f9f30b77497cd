"""Forecasts of the order of samplers of a program's own classes, drawn from copies of them.

Torch draws from the sampler itself, at the time that torch chooses. What a copy yields is only a forecast, so it need not be right, but
drawing from it must change nothing outside the copy:

* A copy consists of plain values, arrays, generators of random numbers, and objects of Python classes. All else that a sampler refers
  to (its dataset, a logger, a lock, a file) is a ``_Missing`` in the copy, which has at most a length: code that uses it raises.
* The code of these classes is looked at before it runs (``reach``). Code that names ``print``, files, modules that are not known to be
  harmless, or changeable values of its module or class is not run.

``random``, numpy and torch may be named: the caller compares and restores the states of their global generators.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import logging
import random
import time
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

import numpy as np
import torch

from prefeed.loaders.kinds import Order
from prefeed.stage_cache.randomness import left_alone, saved, states
from prefeed.system.time_limit import run_within
from prefeed.torch.order import FIRST, UntilEnd, as_order, drawn_order, samplers_of, take_into
from prefeed.torch.reach import ATOMS, MODULES, CannotForecastError, Reach, is_of_global_generator, own_classes

__all__ = ["Forecast", "try_forecast"]

_log = logging.getLogger("prefeed")

_STEP: Final = 64
"""Samples that are drawn from a copy between two looks at the global generators."""

_MOST_SECONDS: Final = 0.25
"""A copy that takes longer for its first batch, or for one window, is left, because the loop waits meanwhile."""

_NO_SAMPLES: Final[Order] = np.empty(0, dtype=np.int64)

_MAX_ITEMS: Final = 1 << 21
"""Maximum number of values in a copy, so that copying takes at most some 100 ms of each epoch."""

_VALUES_PER_OBJECT: Final = 32
"""Number of values that take as long as a container or an object that is copied by itself."""

_MAX_BYTES: Final = 1 << 26
"""Maximum size of the arrays and tensors of a copy."""

_CONTAINERS: Final = frozenset({list, set, frozenset, tuple, deque, dict, OrderedDict, defaultdict, Counter})


class Forecast:
    """Draws what a sampler of the user's class will probably yield, from a copy of it; generators are as before.

    The copy is made before the sampler is iterated, and iterated from the same global generators. The first batch of a pass may
    draw from them, because torch draws that batch at the same moment. The copy is left at the first later draw, at an exception, and
    when it takes long.

    Args:
        sampler: The sampler, or batch sampler.

    Attributes:
        window, has_more: See ``Shadow``.
        is_left: The copy was left before it came to its end.
        is_wrong: Torch drew another batch.
        unforeseen: That batch, or the first one that was not forecast any more; empty: there was none in this pass.

    Raises:
        CannotForecastError: Drawing from a copy could be noticed.
    """

    window: int = FIRST

    def __init__(self, sampler: Any) -> None:
        self._sampler, self._generators, self._reach = _copy_of(sampler)
        self._name = _name_of(sampler)
        self.has_more = True
        self.is_left = False
        self.is_wrong = False
        self.unforeseen: tuple[Any, ...] = ()
        self._all = UntilEnd(iter(()))
        self._pass: Iterator[Any] = self._all
        self._expected = _NO_SAMPLES  # what torch has not drawn yet of what was read
        self._num_unread = 0  # of those, at the end

    def begin(self, sampler: Any) -> Iterator[Any]:
        """Return an iterator of the sampler itself, for torch, and iterate the copy as well."""

        def begin_copy() -> None:
            try:
                self._all = UntilEnd(iter(self._sampler))
            except Exception:  # noqa: BLE001 - of the user's code, which did not raise for torch
                self.leave()

        iterator: Iterator[Any] = self._together(lambda: iter(sampler), begin_copy)
        return iterator

    def begin_pass(self, draw: Callable[[], Any], length: int | None) -> Any:
        """Let torch draw the first batch of a pass, and the copy as well; return torch's.

        Args:
            draw: Draws from the sampler itself.
            length: Batches, or indices, of the pass; None: all.
        """
        clones = [(clone, own.get_state()) for own, clone in self._generators]  # torch's seed may come from one of them

        def draw_copy() -> None:
            for clone, state in clones:
                clone.set_state(state)
            self._expect(self._next(1))

        self.has_more = not self.is_left
        self._pass = itertools.islice(self._all, length)
        return self._together(draw, draw_copy)

    def read(self, most: int) -> Order:
        """Return the next samples of the order; see ``Shadow.read``."""
        orders, missing = [_NO_SAMPLES], most - self._num_unread

        def draw_copy() -> None:
            while self.has_more and sum(map(len, orders)) < missing:
                before, order = states(), self._next(_STEP)
                if states() != before:
                    self.leave()
                    break
                orders.append(order)

        with left_alone():
            self._run(draw_copy)
        self._expect(np.concatenate(orders))
        order, self._num_unread = self._expected[len(self._expected) - self._num_unread :], 0
        return order

    def agreeing(self, batches: Iterator[Any], note: Callable[[Order], None]) -> Iterator[Any]:
        """Yield torch's batches as long as they are as was forecast; the first other one is kept in ``unforeseen``.

        Args:
            batches: Of the sampler itself.
            note: Called with the samples of each before it is yielded.
        """
        for batch in batches:
            order = drawn_order([batch])
            expected, self._expected = self._expected[: len(order)], self._expected[len(order) :]
            if not np.array_equal(expected, order):
                self.unforeseen, self.is_wrong = (batch,), not self.is_left
                if self.is_wrong:
                    self.give_up("it draws other indices than a copy of it")
                self.leave()
                return
            note(order)
            yield batch

    def give_up(self, reason: str) -> bool:
        """Log why the sampler is not forecast any more; return False."""
        _log_reason(self._name, reason)
        return False

    def leave(self) -> None:
        """Draw no more from the copy; its ``finally`` blocks run here, where they move no generator."""
        self.is_left, self.has_more = True, False
        drawn, self._all, self._sampler = self._all.iterator, UntilEnd(iter(())), None
        self._pass = self._all
        close = getattr(drawn, "close", None)
        if close is not None:
            with left_alone(), suppress(Exception):
                close()

    def _together(self, draw: Callable[[], Any], draw_copy: Callable[[], None]) -> Any:
        """Return what torch draws, after the copy has drawn the same from the same global generators."""
        put_back, began = saved(), time.monotonic()
        drawn = draw()
        if time.monotonic() - began > _MOST_SECONDS:
            self.leave()
            return drawn
        with left_alone():
            after = states()
            put_back()
            self._run(draw_copy)
            if states() != after:
                self.leave()
        return drawn

    def _run(self, draw_copy: Callable[[], None]) -> None:
        """Draw from the copy for a limited time: it may wait for something that the loop would do before the next batch."""

        def draw_quietly() -> None:
            with np.errstate(all="ignore"):  # torch's draw gives the warnings
                draw_copy()

        if self.has_more and not (self._reach.is_unchanged() and run_within(_MOST_SECONDS, draw_quietly)):
            self.leave()

    def _next(self, most: int) -> Order:
        """Draw about so many samples from the copy."""
        items: list[Any] = []
        try:
            self.has_more = take_into(items, self._pass, most) >= most
        except Exception:  # noqa: BLE001 - torch draws from the sampler itself, and hears of it there
            self.leave()
        return as_order(items)

    def _expect(self, order: Order) -> None:
        self._expected = np.concatenate((self._expected, order))
        self._num_unread += len(order)


def try_forecast(sampler: Any) -> Forecast | None:
    """Return a forecast of a sampler, or batch sampler; None after the log was told why there is none."""
    try:
        return Forecast(sampler)
    except CannotForecastError as err:
        _log_reason(_name_of(sampler), str(err))
    except Exception as err:  # noqa: BLE001 - whatever an object of the user's does when it is looked at
        _log_reason(_name_of(sampler), f"looking at it raises {type(err).__name__}")
    return None


def _name_of(sampler: Any) -> str:
    return type(samplers_of(sampler)[-1]).__name__


def _log_reason(name: str, reason: str) -> None:
    _log.info("prefeed: the order of a %s is read no further ahead than torch reads it: %s", name, reason)


def _copy_of(sampler: Any) -> tuple[Any, list[tuple[torch.Generator, torch.Generator]], Reach]:
    """Return a copy of a sampler, each torch generator in it next to its copy, and what its code uses.

    No code of the program runs.

    Raises:
        CannotForecastError: Drawing from a copy could be noticed.
    """
    copier = _Copier(sampler)
    try:
        copied = copier.copy(sampler)
    except RecursionError as err:
        raise CannotForecastError("its objects are nested too deeply") from err
    if isinstance(copied, _Missing):
        raise CannotForecastError(f"a {type(sampler).__name__} cannot be copied")
    reach = Reach(copier.classes, copier.functions, copier.names)
    reach.check()
    return copied, copier.generators, reach


class _Missing:
    """What a copy has in the place of something that is not copied; it has no attributes, and a length if that has one."""

    __slots__ = ("_prefeed_value",)

    def __init__(self, value: Any) -> None:
        self._prefeed_value = value

    def __len__(self) -> int:
        return len(self._prefeed_value)


class _Copier:
    """Copies one sampler.

    Attributes:
        classes: Python classes of the objects in the copy, except torch's.
        functions: Functions in it.
        names: Of its attributes.
        generators: torch's generators, each with its copy.
    """

    def __init__(self, sampler: Any) -> None:
        self.classes: set[type] = set()
        self.functions: list[types.FunctionType] = []
        self.names: set[str] = set()
        self.generators: list[tuple[torch.Generator, torch.Generator]] = []
        self._copies: dict[int, tuple[Any, Any]] = {}  # with the original, so that its id stays its own
        self._num_items = 0
        self._num_bytes = 0
        self._sampler = sampler

    def copy(self, value: Any) -> Any:
        """Return a copy of a value."""
        kind = type(value)  # ``isinstance`` would run the code of an object that stands for another
        if issubclass(kind, ATOMS):
            self.classes.update(own_classes(kind))
            return value
        if id(value) not in self._copies:
            self._count(_VALUES_PER_OBJECT)
            copied = self._made(value)
            self._copies[id(value)] = (value, copied)
        return self._copies[id(value)][1]

    def _made(self, value: Any) -> Any:
        kind = type(value)
        if kind in _CONTAINERS:
            return self._container(value)
        if kind is np.ndarray and not value.dtype.hasobject and self._fits(value):
            return value.copy()
        if kind is torch.Tensor and value.is_cpu and value.layout is torch.strided and self._fits(value):
            return value.detach().clone()
        if kind is torch.Generator and value.device.type == "cpu":
            clone = torch.Generator()
            clone.set_state(value.get_state())
            self.generators.append((value, clone))
            return clone
        if kind in (random.Random, np.random.Generator, np.random.RandomState):
            return copy.deepcopy(value)
        if kind is types.GeneratorType and inspect.getgeneratorstate(value) == inspect.GEN_CREATED:
            return self._generator(value)
        if kind is types.FunctionType:
            self.functions.append(value)
            return value
        if (kind is types.ModuleType and value.__name__ in MODULES) or is_of_global_generator(value):
            return value
        return self._instance(value)

    def _count(self, num_items: int) -> None:
        self._num_items += num_items
        if self._num_items > _MAX_ITEMS:
            raise CannotForecastError(f"it holds more than {_MAX_ITEMS} values")

    def _fits(self, array: Any) -> bool:
        self._num_bytes += array.nbytes
        return self._num_bytes <= _MAX_BYTES

    def _container(self, value: Any) -> Any:
        self._count(len(value))
        keyed = isinstance(value, dict)
        parts: Iterable[Any] = [*value, *value.values()] if keyed else value
        kinds = set(map(type, parts))
        if all(issubclass(kind, ATOMS) for kind in kinds):
            for kind in kinds:
                self.classes.update(own_classes(kind))
            return copy.copy(value)
        if isinstance(value, dict | set | frozenset) and any(
            isinstance(getattr(type(key), "__hash__", None), types.FunctionType) for key in value
        ):
            raise CannotForecastError("it has keys of a class with a hash of its own, whose code would run")
        if isinstance(value, tuple | frozenset):
            return type(value)(map(self.copy, value))
        made = copy.copy(value)
        made.clear()
        self._copies[id(value)] = (value, made)  # it may hold itself
        if keyed:
            if isinstance(value, defaultdict):
                made.default_factory = self.copy(value.default_factory)
            made.update({self.copy(key): self.copy(part) for key, part in value.items()})
        elif isinstance(value, set):
            made.update(map(self.copy, value))
        else:
            made.extend(map(self.copy, value))
        return made

    def _instance(self, value: Any) -> Any:
        """Return a copy of an object of a Python class, made without its methods; a ``_Missing`` for all other objects."""
        kind = type(value)
        is_of_python = all(base is object or (base.__flags__ & _HEAP_TYPE) for base in kind.__mro__)
        is_dataset = hasattr(kind, "__getitem__") and value is not self._sampler
        if not is_of_python or is_dataset or issubclass(kind, type) or hasattr(kind, "__del__"):
            return _Missing(value)
        try:
            made = object.__new__(kind)
        except TypeError:
            return _Missing(value)
        self._copies[id(value)] = (value, made)
        self.classes.update(own_classes(kind))
        if kind.__dictoffset__:
            own = object.__getattribute__(made, "__dict__")
            own.update({name: self.copy(part) for name, part in object.__getattribute__(value, "__dict__").items()})
            self.names.update(own)
        for base in kind.__mro__:
            for name, member in vars(base).items():
                if isinstance(member, types.MemberDescriptorType):
                    self.names.add(name)
                    try:
                        member.__set__(made, self.copy(member.__get__(value)))
                    except AttributeError:  # it has no value
                        continue
        return made

    def _generator(self, value: Any) -> Any:
        """Return a generator that begins as one that has not begun."""
        code, frame = value.gi_code, value.gi_frame
        if code.co_freevars or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS) or code.co_kwonlyargcount:
            return _Missing(value)
        function = types.FunctionType(code, frame.f_globals)
        self.functions.append(function)
        return function(*[self.copy(frame.f_locals[name]) for name in code.co_varnames[: code.co_argcount]])


_HEAP_TYPE: Final = 1 << 9
"""Flag of the type of classes that Python code defines."""
