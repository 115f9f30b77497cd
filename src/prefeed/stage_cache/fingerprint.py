"""Fingerprint of a stage: a canonical hash of its pickled dataset, with the user's functions and classes by value.

Code of the user's own counts by its bytecode, closures, defaults and the globals that it names. Code of installed packages counts by
its name and the version of its distribution. Plain values are written by pickle in C without its memo, so that equal values have
equal bytes, and all else is replaced by a digest. See ADR 57. Start reading at ``fingerprint``.
"""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import PurePath
from typing import Any, Final

from xxhash import xxh3_128

from prefeed.errors import CannotFingerprintError
from prefeed.stage_cache.contents import MARK, CodeNames, contents_of, is_opaque, name_of, type_of
from prefeed.stage_cache.distributions import version_of, version_of_distribution

Part = tuple[bytes, bool]
"""Digest of a named part, and whether it is of a plain type, whose code names no globals."""

ABSENT: Final[Part] = b"", True
"""Part that is not set."""

Slot = tuple[int, str]
"""A named part of a stage: the id of its holder (an object, or the globals of a module) and its name there."""

_PLAIN: Final = frozenset({bool, int, float, str, bytes, bytearray, type(None), tuple, list, dict})
"""Types that pickle writes in C."""

_CONTAINERS: Final = frozenset({tuple, list, dict})
_ATOMS: Final = _PLAIN - _CONTAINERS
_LONG: Final = 64
_MAX_DEPTH: Final = 16

_ALWAYS: Final = ("numpy", "torch", "torchvision", "pillow")
"""Distributions whose versions always count, because others call them: torchvision decodes with Pillow."""


def fingerprint(value: Any, *, name: str | None = None) -> bytes:
    """Return the hash of a value, 16 bytes, the same in every process and run.

    Args:
        value: A dataset, a transform, a function, or several in a tuple.
        name: Name of the value in an error; by default that of its class.

    Raises:
        CannotFingerprintError: The value contains what cannot be pickled; the message names it.
    """
    return Walk().fingerprint(value, name=name)


class Walk:
    """Walk through a value that computes its fingerprint.

    Attributes:
        slots: Each named part. Inner parts come before those around them.
        holders: Holder of each slot by id. Holding it keeps the id its own.
        is_marked: A part is marked with ``not_random``.
    """

    def __init__(self, *, filled: Mapping[Slot, Part] | None = None, skips_unpicklable: bool = False) -> None:
        """Begin.

        Args:
            filled: Parts that computing samples changes, to be used instead of the present ones.
            skips_unpicklable: Named parts that cannot be pickled have a constant digest.
        """
        self.slots: dict[Slot, Part] = {}
        self.holders: dict[int, Any] = {}
        self.is_marked = False
        self._filled = filled or {}
        self._skips_unpicklable = skips_unpicklable
        self._known: dict[int, tuple[Any, bytes]] = {}
        self._positions: dict[int, int] = {}
        self._unfinished = list[Any]()
        self._lowest = 0
        self._is_standing = self._may_count_by_type = False
        self._globals: dict[Slot, dict[str, Any]] = {}
        self._modules: set[tuple[int, CodeNames]] = set()

    def fingerprint(self, value: Any, *, name: str | None = None) -> bytes:
        """Return the hash of a value and of the globals that its code names; raises as the function ``fingerprint``."""
        try:
            content = self.written(value)
            named, num_done = [], 0
            while num_done < len(self._globals):  # these name others
                (_, reached), namespace = list(self._globals.items())[num_done]
                named.append(self.written((name_of(namespace), self.standing(namespace, (reached,), namespace))))
                num_done += 1
        except _UnpicklableError as err:
            raise err.for_user(name or type(value).__qualname__) from err
        except (ValueError, RecursionError) as err:  # a list that contains itself
            raise _UnpicklableError(value, str(err)).for_user(name or type(value).__qualname__) from err
        self._known.clear()
        return self.written((sys.version_info[:2], [*map(version_of_distribution, _ALWAYS)], content, sorted(named)))

    # ------------------------------------------------------------ values

    def written(self, value: Any) -> bytes:
        """Return the hash of a pickled value, with a digest for each part that is not plain."""
        sink = _Sink()
        pickler = _Pickler(sink, protocol=5)
        pickler.walk = self
        pickler.fast = True  # no memo: one text has the same bytes whether it is one object or two
        pickler.dump(value)
        return sink.hash.digest()

    def digest(self, value: Any) -> bytes:
        """Return the digest of a value that is not plain."""
        key = id(value)
        if key in self._known:
            return self._known[key][1]
        if key in self._positions:  # a cycle
            self._lowest = min(self._lowest, self._positions[key])
            return b"again %d" % (len(self._unfinished) - self._positions[key])
        position, outer = len(self._unfinished), self._lowest
        self._positions[key] = self._lowest = position
        self._unfinished.append(value)  # held, because an id is another object's once its own is gone
        may_count_by_type = self._may_count_by_type
        self._may_count_by_type = self._is_standing and not is_opaque(value)
        try:
            self.is_marked = self.is_marked or MARK in getattr(value, "__dict__", ())
            found = self.written(contents_of(self, value))
        except Exception as err:  # whatever the code of a class raises while it is pickled
            self._finish(position)
            self._lowest = min(outer, self._lowest)
            if not may_count_by_type or _has_value(value, str(err)):
                if isinstance(err, _UnpicklableError):
                    raise
                raise _UnpicklableError(value, str(err)) from err
            return self.written(("no value", type_of(value)))
        finally:
            self._may_count_by_type = may_count_by_type
        if self._lowest == position:  # no value around it is part of its digest
            self._finish(position)
            self._known[key] = value, found
        self._lowest = min(outer, self._lowest)
        return found

    def _finish(self, position: int) -> None:
        for value in self._unfinished[position:]:
            del self._positions[id(value)]
        del self._unfinished[position:]

    def standing(self, holder: Any, names: Iterable[str], values: Mapping[str, Any]) -> list[tuple[str, bytes]]:
        """Return digests of globals or attributes of a class, by name. Those without a value, such as locks, count by type."""
        before = self._is_standing, self._may_count_by_type
        self._is_standing = self._may_count_by_type = True
        try:
            return self.named(holder, names, values)
        finally:
            self._is_standing, self._may_count_by_type = before

    def named(self, holder: Any, names: Iterable[str], values: Mapping[str, Any]) -> list[tuple[str, bytes]]:
        """Return digests of parts by name. In which order they were set does not count."""
        self.holders[id(holder)] = holder
        found = []
        for name in sorted(set(names) - {MARK}):
            slot = (id(holder), name)
            part = self._filled.get(slot)
            if part is None or not part[1]:
                now = self._part(name, values[name], is_filled=part is not None)
                part = part or now
            self.slots[slot] = part
            if part != ABSENT:
                found.append((name, part[0]))
        return found

    def _part(self, name: str, value: Any, *, is_filled: bool) -> Part:
        may_skip = self._skips_unpicklable or is_filled
        try:
            return self.written(value), type(value) in _PLAIN
        except _UnpicklableError as err:
            if not may_skip:
                err.path.insert(0, name)
                raise
        except (ValueError, RecursionError) as err:  # a list that contains itself
            if not may_skip:
                raise _UnpicklableError(value, str(err), [name]) from err
        return b"unpicklable", False

    def reach(self, namespace: dict[str, Any], names: CodeNames) -> None:
        """Note the globals that code names. Of a module that code names, count the attributes that the code names."""
        self._reach(namespace, names.loaded, names)

    def _reach(self, namespace: dict[str, Any], loaded: Iterable[str], names: CodeNames) -> None:
        is_own = version_of(name_of(namespace)) is None
        for name in loaded:
            value = namespace.get(name)
            if isinstance(value, types.ModuleType):
                if is_own and name in names.values and version_of(value.__name__) is None:  # passed on as a whole
                    self._globals[id(namespace), name] = namespace
                elif (id(value), names) not in self._modules:
                    self._modules.add((id(value), names))
                    self._reach(vars(value), names.attributes & vars(value).keys(), names)
            elif name in namespace and (
                is_own or isinstance(value, type | types.FunctionType | types.BuiltinFunctionType)
            ):
                self._globals[id(namespace), name] = namespace


class _Sink:
    def __init__(self) -> None:
        self.hash = xxh3_128()
        self.write = self.hash.update


class _Pickler(pickle.Pickler):
    walk: Walk

    def persistent_id(self, value: Any) -> Any:
        kind = type(value)
        if kind in _CONTAINERS and len(value) > _LONG:
            paths = set(map(type, value))
            if len(paths) == 1 and issubclass(found := paths.pop(), PurePath) and kind is not dict:
                return found.__name__, list(map(str, value))
            return _digest_of_long(value)
        if kind in _PLAIN:
            return None
        return (type(value).__name__, str(value)) if isinstance(value, PurePath) else self.walk.digest(value)


class _UnpicklableError(Exception):
    """Reports a value that cannot be pickled, and the names by which it is reached."""

    def __init__(self, value: Any, reason: str, path: list[str] | None = None) -> None:
        super().__init__(reason)
        self.value = value
        self.path = path or []

    def for_user(self, name: str) -> CannotFingerprintError:
        where = ".".join([name, *self.path[:12]])
        what = f"{type(self.value).__module__}.{type(self.value).__qualname__}".removeprefix("builtins.")
        return CannotFingerprintError(
            f"{where} is a {what}, which cannot be identified ({self}): keep it out of the stage, or pass a name of your own "
            'for the stage, and change it with the code and the data: version="resize-224 v1"',
            where=where,
            type=what,
        )


def _has_value(value: Any, reason: str) -> bool:
    """Return whether a value that cannot be pickled has contents: weights or code of torch, or a cycle of plain lists."""
    return str(type(value).__module__).startswith("torch.") or "recursion" in reason or "cyclic" in reason


def _digest_of_long(value: Any) -> Any:
    """Return the digest of a long container of texts, numbers, and containers of these; None for any other.

    No code of Python runs for each item: a list of 100,000 paths takes 10 ms.
    """
    level: list[Any] = [value]
    for _ in range(_MAX_DEPTH):
        kinds = set(map(type, level))
        if kinds <= _ATOMS:
            sink = _Sink()
            pickler = pickle.Pickler(sink, protocol=5)
            pickler.fast = True
            pickler.dump(value)
            return sink.hash.digest()
        if not kinds <= _PLAIN:
            return None
        containers = [item for item in level if type(item) in _CONTAINERS]
        dicts = [item for item in containers if type(item) is dict]
        level = [*chain.from_iterable(containers), *chain.from_iterable(map(dict.values, dicts))]
    return None
