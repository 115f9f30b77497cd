"""What a stage is: one number, the same in every process and run as long as its code and parameters are the same."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from xxhash import xxh3_128, xxh3_128_digest

from prefeed.errors import CannotFingerprintError
from prefeed.stage_cache.identity.anatomy import anatomy_of, made_with
from prefeed.stage_cache.identity.bytecode import External
from prefeed.stage_cache.identity.parts import Anatomy, AsFarAsTold, UntoldError
from prefeed.stage_cache.slots import Slots, noted_in

__all__ = ["describe", "fingerprint"]

_LEAVES = frozenset({bool, int, float, complex, str, bytes, type(None)})
_SHOWN = 100


def fingerprint(value: Any, *, name: str | None = None) -> bytes:
    """Return 16 bytes for anything that a stage is made of.

    Functions and classes of installed packages count by name and version; those of the user's own by what they say and
    what they refer to, but not by where they stand. Instances count by their class and what pickle would keep of them.

    Args:
        value: A function, a transform, a dataset, or several in a tuple.
        name: What an error calls the value; by default its function's or class's name.

    Raises:
        CannotFingerprintError: It holds something that cannot be told from run to run; the message says where.
    """
    walk = _Walk(name or _name(value))
    try:
        return xxh3_128_digest(b"prefeed stage 1 " + walk.digest(value))
    except UntoldError as err:
        raise _cannot_fingerprint(walk, str(err)) from err
    except RecursionError as err:
        raise _cannot_fingerprint(walk, "it is nested too deep") from err


class _Walk:
    """Goes through a value; knows where it is.

    Attributes:
        path: How it got there.
        at: What it looks at.
        is_vouched: The user answers for the code of what it looks at: what cannot be told is passed over.
    """

    def __init__(self, name: str) -> None:
        self.path = [name]
        self.at: Any = None
        self.is_vouched = False
        self._known: dict[int, bytes] = {}
        self._kept: list[Any] = []  # an id is another object's as soon as its own is gone
        self._open: dict[int, int] = {}
        self._slots: Slots | None = noted_in()

    def digest(self, value: Any) -> bytes:
        self.at = value
        is_leaf = type(value) in _LEAVES
        key = id(value)
        if not is_leaf:
            if key in self._known:
                return self._known[key]
            if key in self._open:
                return xxh3_128_digest(b"again %d" % (len(self._open) - self._open[key]))
            self._open[key] = len(self._open)
        found = self._digest(value)
        if not is_leaf:
            del self._open[key]
            self._known[key] = found
            self._kept.append(value)
        return found

    def _digest(self, value: Any) -> bytes:
        if isinstance(value, AsFarAsTold):
            return self._as_far_as_told(value.value)
        anatomy = (_name_of_code(value) if self.is_vouched else None) or anatomy_of(value)
        told = xxh3_128(anatomy.kind.encode("utf-8", "backslashreplace"))
        told.update(b"\0")
        for content in anatomy.content():
            told.update(content)
        part_of = self._part_if_told if self.is_vouched else self._part
        slots = self._slots
        if slots is not None and slots.is_holder(value):
            slots.hold(value)
            digests = [self._slot(slots, value, label, part, part_of) for label, part in anatomy.parts]
        else:
            digests = [part_of(label, part, is_alone=anatomy.is_unordered) for label, part in anatomy.parts]
        told.update(b"".join(sorted(digests) if anatomy.is_unordered else digests))
        return told.digest()

    def _slot(self, slots: Slots, holder: Any, label: str, part: Any, part_of: Callable[..., bytes]) -> bytes:
        """Return the digest of a part that ``slots`` notes; the one before for what makings fill."""
        slot = (id(holder), label)
        if slot in slots.left:
            return slots.left[slot]
        slots.enter(
            slot, is_known=id(part) in self._known or id(part) in self._open
        )  # no generator: it costs as much again
        try:
            told = self._part_if_told if slots.passes_over and part is not None else part_of
            found = told(label, part, is_alone=False)
        finally:
            slots.leave(slot)
        slots.found[slot] = found
        return found

    def _part(self, label: str, part: Any, *, is_alone: bool) -> bytes:
        """Return the digest of a part and of how it is reached."""
        self.path.append(label)
        known = self._known
        if is_alone:  # in a set, none may depend on which of the others was first
            self._known = dict(known)
        found = self.digest(part)
        self._known = known
        self.path.pop()
        return xxh3_128_digest(found + label.encode("utf-8", "backslashreplace"))

    def _as_far_as_told(self, value: Any) -> bytes:
        before, opened, length = (self.is_vouched, self._known), dict(self._open), len(self.path)
        self.is_vouched, self._known = True, {}  # what is looked at in another way has another digest
        try:
            return self._part_if_told("", value, is_alone=False)
        except RecursionError:  # how deep that was depends on the caller: none of it can be told
            self._open = opened
            del self.path[length:]
            return b""
        finally:
            self.is_vouched, self._known = before

    def _part_if_told(self, label: str, part: Any, *, is_alone: bool) -> bytes:
        """Return the digest of a part; nothing for one that cannot be told, or is not there yet."""
        if part is None:
            return b""
        known, opened, length = self._known, dict(self._open), len(self.path)
        try:
            return self._part(label, part, is_alone=is_alone)
        except UntoldError:
            self._known, self._open = known, opened
            del self.path[length:]
            return b""


def _name_of_code(value: Any) -> Anatomy | None:
    """Return what tells code by its name, and a function by what it was made with; None for what is no code."""
    if isinstance(value, External):
        return Anatomy(kind=f"name {value.dotted}")
    if isinstance(value, types.ModuleType):
        return Anatomy(kind=f"name {value.__name__}")
    if not isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        return None
    if isinstance(value, types.BuiltinFunctionType) and not isinstance(value.__self__, types.ModuleType | None):
        return None  # a method, of an instance that counts
    parts = tuple(made_with(value)) if isinstance(value, types.FunctionType) else ()
    return Anatomy(kind=f"name {value.__module__}.{value.__qualname__}", parts=parts)


def _cannot_fingerprint(walk: _Walk, reason: str) -> CannotFingerprintError:
    where = "".join(walk.path[:12])
    what = f"{type(walk.at).__module__}.{type(walk.at).__qualname__}".removeprefix("builtins.")
    return CannotFingerprintError(
        f"{where} is a {what}, and prefeed cannot tell whether it will be the same in the next run ({reason}): keep it out of "
        'the stage, or give the stage a name of your own that you change with its code: version="resize-224 v1"',
        where=where,
        type=what,
    )


# ---------------------------------------------------------------- for people


def describe(value: Any) -> str:
    """Return one short line that tells a person what a stage is: ``Compose(Resize, CenterCrop, ToTensor)``."""
    name = _name(value)
    inner = [_described(part) for part in _shown(value)]
    text = f"{name}({', '.join(inner)})" if inner else name
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _described(value: Any, depth: int = 2) -> str:
    inner = [_described(part, depth - 1) for part in _shown(value)] if depth else []
    return f"{_name(value)}({', '.join(inner)})" if inner else _name(value)


def _name(value: Any) -> str:
    """Return the name of a function or class, or of what an instance is one of."""
    if isinstance(value, functools.partial):
        return _name(value.func)
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    return str(name).replace("<locals>.", "").replace("<lambda>", "lambda")


def _shown(value: Any) -> list[Any]:
    """Return what a stage is made of, so far as a person thinks of it: steps, and datasets below."""
    own = getattr(value, "__dict__", {})
    for name in ("transforms", "_modules"):
        steps = own.get(name)
        if isinstance(steps, dict | list | tuple) and steps:
            return list(steps.values()) if isinstance(steps, dict) else list(steps)
    return [own[name] for name in ("dataset", "fn", "transform") if own.get(name) is not None]
