"""Classes and enums."""

from __future__ import annotations

import types
from enum import Enum, EnumMeta
from typing import Any, Final

from prefeed.stage.identity.functions import look_at_external
from prefeed.stage.identity.installed import is_installed_name
from prefeed.stage.identity.parts import MARK, Anatomy, attributes

_UNSAID: Final = frozenset(
    {
        *("__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__", "__annotate__"),
        *(
            "__annotate_func__",
            "__annotations_cache__",
            "__firstlineno__",
            "__static_attributes__",
            "__abstractmethods__",
        ),
        *("_abc_impl", "__parameters__", "__orig_bases__", "__slotnames__", "__type_params__", MARK),
    }
)
"""Attributes of classes that do not change what their instances do, or follow from the rest."""

_OF_PYDANTIC: Final = frozenset({"__pydantic_fields__", "__pydantic_decorators__"})


_OF_ENUMS: Final = (types.FunctionType, property, classmethod, staticmethod)
"""What an enum has besides its members; the rest follows from these."""


def look_at_class(value: type) -> Anatomy:
    if is_installed_class(value):
        return look_at_external(f"{value.__module__}.{value.__qualname__}")
    own = {name: item for name, item in vars(value).items() if not _is_unsaid(name)}
    bases = tuple((".__bases__", base) for base in (type(value), *value.__bases__))
    return Anatomy(kind=f"class {value.__qualname__}", parts=(*bases, *attributes(own)))


def _is_unsaid(name: str) -> bool:
    # pydantic keeps what it compiled from fields and validators, with addresses in it.
    return name in _UNSAID or (name.startswith("__pydantic_") and name not in _OF_PYDANTIC)


def look_at_enum_class(value: EnumMeta) -> Anatomy:
    if is_installed_class(value):
        return look_at_external(f"{value.__module__}.{value.__qualname__}")
    named: dict[str, Enum] = dict(value.__members__)
    members = {name: member.value for name, member in named.items()}
    functions = {name: item for name, item in vars(value).items() if isinstance(item, _OF_ENUMS)}
    bases = tuple((".__bases__", base) for base in value.__bases__)
    return Anatomy(kind=f"enum {value.__qualname__}", parts=((".__members__", members), *bases, *attributes(functions)))


def is_installed_class(cls: type) -> bool:
    """Return whether a class comes from an installed package; one made in a function of it has no name, and does not."""
    return "<locals>" not in cls.__qualname__ and is_installed_name(cls.__module__)


def look_at_enum_member(value: Enum) -> Anatomy:
    name: Any = value.name or value.value  # of flags together, the number
    return Anatomy(kind="member", content=lambda: [repr(name).encode()], parts=((".__class__", type(value)),))
