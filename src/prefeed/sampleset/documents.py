"""Decode documents into msgspec structures, with errors that name the field and its valid values.

A structure is a subclass of ``Fields``. Its annotations define the type of each field, and ``requires`` lists the conditions that
combine several fields. ``__post_init__`` checks the conditions in Python. ``prefeed.kubernetes`` generates its schemas from the same
types and conditions. Start with ``decode``.
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
"""A document, or a part of one, as parsed from YAML or JSON."""

A_NAME: Final = f"made of lower-case letters, digits and - between them, at most {MAX_NAME}"
_A_NUMBER: Final = "a number that is not negative"
_A_RATIO: Final = f"{_A_NUMBER}, such as 0.1 or '0.1'"

Name = Annotated[str, Meta(pattern=_NAME, max_length=MAX_NAME, description=A_NAME)]
"""Name as in Kubernetes, which is also a safe directory name."""

Whole = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Number = Annotated[float, Meta(ge=0, le=sys.float_info.max, description=_A_NUMBER)]
Ratio = (
    Annotated[str, Meta(pattern=_NUMBER, description=_A_RATIO)]
    | Annotated[float, Meta(ge=0, le=sys.float_info.max, description=_A_RATIO)]
)
"""A number, optionally in quotes, because some Kubernetes types require a string."""


class FieldRule(NamedTuple):
    """Condition that combines fields of a mapping.

    Attributes:
        path: Path of the rejected field in the mapping, such as ``.url``; empty for the mapping itself.
        said: Text after the path in messages: `` must be an absolute path``, or ``: `` and a sentence.
        cel: Expression in Kubernetes' CEL that is true if the mapping ``self`` is valid. Uses ``oldSelf`` if it restricts updates.
    """

    path: str
    said: str
    cel: str

    def refusal(self, more: str = "") -> ValueError:
        """Return the error to raise in ``__post_init__``. ``more`` is appended, for example the value."""
        return ValueError(f"{self.path}{self.said}{more}")


class Fields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base class of the structures of a mapping.

    ``__post_init__`` rejects the document with a ``ValueError``. Its text follows the path of the mapping: ``.paths must name one``.
    """

    requires: ClassVar[tuple[FieldRule, ...]] = ()


def schema(**keywords: Any) -> Meta:
    """Return the annotation with the JSON schema of a field that ``decode`` ignores."""
    return Meta(extra={"schema": keywords})


class Unused:
    """Value of a field that has no effect. All instances are equal."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unused)

    def __hash__(self) -> int:
        return 0


class DocumentReference(Fields, frozen=True, kw_only=True):
    """Reference to another document by name."""

    name: Name
    namespace: Unused | None = None


class Metadata(Fields, frozen=True, kw_only=True):
    """Name and namespace of a document. The other fields are those that `kubectl get -o yaml` adds."""

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
    """Fields that all documents have."""

    kind: str
    api_version: str
    metadata: Metadata


class _Head(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    kind: str
    api_version: str


T = TypeVar("T")
_PLACE: Final = re.compile(r" - at (`key` in )?`\$([^`]*)`\Z")
"""Path in a message of msgspec; absent if the error concerns the whole document."""


def decode(value: object, kind: type[T], path: str = "", *, is_secret: bool = False) -> T:
    """Decode a document, or a part of one, into a structure. Fields that are null count as absent.

    Args:
        value: The parsed YAML or JSON.
        kind: Type of the result.
        path: Path of ``value`` for messages; empty for a whole document.
        is_secret: True to omit values from messages.

    Raises:
        SpecError: A field is unknown, missing or of another type. The message contains its path and the known fields.
    """
    hashable: Any = kind  # for mypy
    try:
        return msgspec.convert(
            _without_nulls(value, [_type_of(hashable)]), kind, dec_hook=lambda _kind, _value: Unused()
        )
    except msgspec.ValidationError as err:
        try:
            said = _translate_error(err, value, kind, path, is_secret=is_secret)
        except LookupError:  # the name of a field contains the separators of msgspec's paths
            said = str(err)
        raise SpecError(said) from None
    except UnicodeEncodeError:
        raise SpecError(f"{path or 'the document'} has a field whose name or value is no UTF-8 text") from None


def kind_of(document: Document, versions: Mapping[str, str] = MappingProxyType({})) -> tuple[str, str]:
    """Return ``kind`` and ``apiVersion`` of a document, without a check of other fields. Raises as ``decode``.

    Args:
        document: The parsed document.
        versions: ``apiVersion`` by kind, for the message if the field is missing.
    """
    version = versions.get(str(document.get("kind")))
    if version is not None and document.get("apiVersion") is None:
        raise SpecError(f"apiVersion is missing; write apiVersion: {version}")
    head = decode(document, _Head)
    return head.kind, head.api_version


def require_name(value: str, what: str) -> None:
    """Check that a value is a valid name: up to 63 lower-case letters, digits and inner ``-``.

    Raises:
        SpecError: The value is not a valid name.
    """
    if len(value) > MAX_NAME or not re.match(_NAME, value):
        raise SpecError(f"{what} must be {A_NAME}, not {value!r:.100}")


@cache
def _type_of(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _without_nulls(value: object, types: Sequence[inspect.Type]) -> object:
    """Remove known fields that are null. Unknown fields stay, so that msgspec rejects them."""
    if isinstance(value, dict):
        inner = {name: [kind for each in _alternatives(types) for kind in _types_at(each, name)] for name in value}
        return {
            name: _without_nulls(one, inner[name]) for name, one in value.items() if one is not None or not inner[name]
        }
    if isinstance(value, list):
        items = [kind for each in _alternatives(types) for kind in _types_at(each, "")]
        return [_without_nulls(one, items) for one in value]
    return value


# ---------------------------------------------------------------- error messages


def _translate_error(err: msgspec.ValidationError, value: Any, kind: Any, path: str, *, is_secret: bool) -> str:
    """Return the message for an error of msgspec, from its path and the type at that path."""
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
    """Flatten unions. The type of null is omitted, because nulls count as absent."""
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
    """Return the text for a type in messages: its description, or one derived from it."""
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
    """Return the hint to add or remove quotes if YAML parsed a number as text, or text as a number."""
    if "number" in wanted and isinstance(value, str) and re.match(_NUMBER, value):
        return ": write it without quotes"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return ": put it into quotes" if wanted == "a text" and is_number else ""


def _shown(value: object) -> str:
    return f"{value!r:.60}" if isinstance(value, str | int | float | bool) else kind_name(value)


def kind_name(value: object) -> str:
    """Return the name of a value's type for messages."""
    kinds: Sequence[tuple[type, str]] = (
        (bool, "true or false"), (int, "a number"), (float, "a number"), (str, "a text"), (list, "a list"), (dict, "a mapping"),
    )  # fmt: skip
    return next(
        (name for kind, name in kinds if isinstance(value, kind)), "empty" if value is None else "something else"
    )
