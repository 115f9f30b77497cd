"""Documents become structures of msgspec. A refusal has the path of the field, and what it may be.

A structure is a class below ``Fields``: its types say what each field may be, its ``requires`` what no type can say. ``__post_init__``
refuses by a condition, or by words of its own. The schemas of ``prefeed.kubernetes`` are made of the same types and conditions.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, inspect

from prefeed.errors import SpecError

MAX_NAME: Final = 63
_NAME: Final = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?\Z"
_NUMBER: Final = r"^\+?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\Z"

Document = dict[str, Any]
"""As it was written."""

A_NAME: Final = f"made of lower-case letters, digits and - between them, at most {MAX_NAME}"
_A_NUMBER: Final = "a number that is not negative"
_A_RATIO: Final = f"{_A_NUMBER}, such as 0.1 or '0.1'"

Name = Annotated[str, Meta(pattern=_NAME, max_length=MAX_NAME, description=A_NAME)]
"""As Kubernetes has them; also safe as the name of a directory."""

Whole = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Number = Annotated[float, Meta(ge=0, le=sys.float_info.max, description=_A_NUMBER)]
Ratio = (
    Annotated[str, Meta(pattern=_NUMBER, description=_A_RATIO)]
    | Annotated[float, Meta(ge=0, le=sys.float_info.max, description=_A_RATIO)]
)
"""A number that may stand in quotes, as some types of Kubernetes want it."""


class Condition(NamedTuple):
    """What the fields of a mapping must be together.

    Attributes:
        path: The field that is refused, below the mapping: ``.url``; empty: the mapping.
        said: Follows the path in messages: `` must be an absolute path``, or ``: `` and a sentence.
        cel: True of the mapping ``self`` when it is kept, in Kubernetes' expression language. With ``oldSelf``: of a change.
    """

    path: str
    said: str
    cel: str

    def refusal(self, more: str = "") -> ValueError:
        """Return the error for ``__post_init__``; ``more`` is what only this document makes known, such as the value."""
        return ValueError(f"{self.path}{self.said}{more}")


class Fields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What the fields of a mapping say.

    A ``ValueError`` in ``__post_init__`` refuses the document. Its text follows the path of the mapping: ``.paths must name one``.
    """

    requires: ClassVar[tuple[Condition, ...]] = ()


def schema(**keywords: Any) -> Meta:
    """Return what a JSON schema says of a field that the reader passes over."""
    return Meta(extra={"schema": keywords})


class Unused:
    """The value of a field that means nothing here; all are equal."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unused)

    def __hash__(self) -> int:
        return 0


class Reference(Fields, frozen=True, kw_only=True):
    """The name of another document."""

    name: Name
    namespace: Unused | None = None


class Metadata(Fields, frozen=True, kw_only=True):
    """Name and namespace of a document; the rest is what `kubectl get -o yaml` writes beside them."""

    name: Name
    namespace: Name = "default"
    labels: Unused | None = None
    annotations: Unused | None = None
    uid: Unused | None = None
    resource_version: Unused | None = None
    generation: Unused | None = None
    creation_timestamp: Unused | None = None
    managed_fields: Unused | None = None
    owner_references: Unused | None = None
    finalizers: Unused | None = None
    self_link: Unused | None = None
    deletion_timestamp: Unused | None = None
    deletion_grace_period_seconds: Unused | None = None


class Envelope(Fields, frozen=True, kw_only=True):
    """What every document has."""

    kind: str
    api_version: str
    metadata: Metadata


class _Head(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    kind: str
    api_version: str


T = TypeVar("T")
_PLACE: Final = re.compile(r" - at (`key` in )?`\$([^`]*)`\Z")
"""Where msgspec says that it is: nothing for the whole document."""


def decode(value: object, kind: type[T], path: str = "", *, is_secret: bool = False) -> T:
    """Return what a document, or a part of one, says. A field that is null is not there.

    Args:
        value: As it was written.
        kind: What it becomes.
        path: What messages call it; empty for a whole document.
        is_secret: Messages show no value.

    Raises:
        SpecError: A field is unknown, missing or of another type; the message has its path, and what is known there.
    """
    hashable: Any = kind  # for mypy
    try:
        return msgspec.convert(
            _without_nulls(value, [_type_of(hashable)]), kind, dec_hook=lambda _kind, _value: Unused()
        )
    except msgspec.ValidationError as err:
        try:
            said = _translate_error(err, value, kind, path, is_secret=is_secret)
        except LookupError:  # the name of a field that looks like msgspec's own words
            said = str(err)
        raise SpecError(said) from None
    except UnicodeEncodeError:
        raise SpecError(f"{path or 'the document'} has a field whose name or value is no UTF-8 text") from None


def kind_of(document: Document, versions: Mapping[str, str] = MappingProxyType({})) -> tuple[str, str]:
    """Return ``kind`` and ``apiVersion`` of a document, whatever else is in it; raises as ``decode``.

    Args:
        document: As it was written.
        versions: ``apiVersion`` by kind, for the message if it is missing.
    """
    version = versions.get(str(document.get("kind")))
    if version is not None and document.get("apiVersion") is None:
        raise SpecError(f"apiVersion is missing; write apiVersion: {version}")
    head = decode(document, _Head)
    return head.kind, head.api_version


def require_name(value: str, what: str) -> None:
    """Refuse what is no name: lower-case letters, digits and ``-``, at most 63, none of them ``-`` at an end.

    Raises:
        SpecError: It is none.
    """
    if len(value) > MAX_NAME or not re.match(_NAME, value):
        raise SpecError(f"{what} must be {A_NAME}, not {value!r:.100}")


@cache
def _type_of(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _without_nulls(value: object, types: Sequence[inspect.Type]) -> object:
    """Return a value of these types without the known fields that are null; an unknown one stays, and is refused."""
    if isinstance(value, dict):
        inner = {name: [kind for each in _alternatives(types) for kind in _types_at(each, name)] for name in value}
        return {
            name: _without_nulls(one, inner[name]) for name, one in value.items() if one is not None or not inner[name]
        }
    if isinstance(value, list):
        items = [kind for each in _alternatives(types) for kind in _types_at(each, "")]
        return [_without_nulls(one, items) for one in value]
    return value


# ---------------------------------------------------------------- what is said of a refusal


def _translate_error(err: msgspec.ValidationError, value: Any, kind: Any, path: str, *, is_secret: bool) -> str:
    """Return msgspec's error in our words: it says where; the type there says what the field may be."""
    text, in_key, where = _PLACE.sub("", str(err)), "", ""
    if found := _PLACE.search(str(err)):
        in_key, where = found.groups()
    types = [_type_of(kind)]
    for name, index in re.findall(r"\.([^.\[\]]+)|\[(\d+)\]", where):
        types = [inner for each in _alternatives(types) for inner in _types_at(each, name)]
        value, path = (value[name], _join_path(path, name)) if name else (value[int(index)], f"{path}[{index}]")
    if err.__cause__ is not None:
        return _join_path(path, str(err.__cause__).removeprefix("."))
    if in_key:
        odd = next(key for key in value if not isinstance(key, str))
        return f"{path or 'the document'} has a field whose name is {kind_name(odd)}; put it into quotes"
    known = {field.encode_name: field for each in _alternatives(types) for field in getattr(each, "fields", ())}
    if found := re.fullmatch(r"Object (contains unknown|missing required) field `(.*)`", text, re.DOTALL):
        name = found[2]
        if found[1].startswith("contains"):
            missing = [
                field.encode_name for field in known.values() if field.required and value.get(field.encode_name) is None
            ]
            name = next(iter(difflib.get_close_matches(name, missing, n=1)), name)
        return _describe_missing(name, value, known, path) if name in known else _describe_unknown(name, known, path)
    if known and len(_alternatives(types)) == 1:
        return f"{path or 'a document'} must have fields; it is {kind_name(value)}"
    wanted = _describe_types(types)
    return f"{path} must be {wanted}{'' if is_secret else f', not {_shown(value)}{_suggest_quotes(wanted, value)}'}"


def _join_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _describe_unknown(name: str, known: dict[str, Any], path: str) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    meant = f" Did you mean {near[0]}?" if near else ""
    return (
        f"{_join_path(path, name)} is not known.{meant} Known fields: {', '.join(sorted(known)) or 'no field at all'}"
    )


def _describe_missing(name: str, value: dict[str, Any], known: dict[str, Any], path: str) -> str:
    near = difflib.get_close_matches(name, [given for given in value if given not in known], n=1)
    meant = f": {near[0]} is there, which is not known" if near else ""
    return f"{_join_path(path, name)} is missing{meant}"


def _alternatives(types: Sequence[inspect.Type]) -> list[inspect.Type]:
    """Return the types that a value may have; an empty one does not count, for nulls are left out."""
    found: list[inspect.Type] = []
    for each in types:
        union = each.type if isinstance(each, inspect.Metadata) else each
        if isinstance(union, inspect.UnionType):
            found += _alternatives(union.types)
        elif not isinstance(each, inspect.NoneType):
            found.append(each)
    return found


def _types_at(kind: inspect.Type, name: str) -> list[inspect.Type]:
    if isinstance(kind, inspect.Metadata):
        return _types_at(kind.type, name)
    if isinstance(kind, inspect.StructType):
        return [field.type for field in kind.fields if field.encode_name == name]
    return [kind.item_type] if isinstance(kind, inspect.VarTupleType) else []


def _describe_types(types: Sequence[inspect.Type]) -> str:
    """Return what a value must be: the description of its type, or what follows from it."""
    first = _alternatives(types)[0]
    if isinstance(first, inspect.Metadata):
        described = (first.extra_json_schema or {}).get("description")
        return str(described) if described else _describe_types([first.type])
    match first:
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return f"a whole number of at least {first.ge or 0}"
        case inspect.LiteralType():
            return " or ".join(map(str, first.values))
        case inspect.VarTupleType():
            return "a list of texts" if isinstance(first.item_type, inspect.StrType) else "a list"
    return "a text"


def _suggest_quotes(wanted: str, value: object) -> str:
    """Return what to change where YAML took a number for a text, or a text for a number."""
    if "number" in wanted and isinstance(value, str) and re.match(_NUMBER, value):
        return ": write it without quotes"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return ": put it into quotes" if wanted == "a text" and is_number else ""


def _shown(value: object) -> str:
    return f"{value!r:.60}" if isinstance(value, str | int | float | bool) else kind_name(value)


def kind_name(value: object) -> str:
    """Return what messages call a value of this type."""
    kinds: Sequence[tuple[type, str]] = (
        (bool, "true or false"), (int, "a number"), (float, "a number"), (str, "a text"), (list, "a list"), (dict, "a mapping"),
    )  # fmt: skip
    return next(
        (name for kind, name in kinds if isinstance(value, kind)), "empty" if value is None else "something else"
    )
