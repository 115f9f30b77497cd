"""Converts document types to structural schemas, the form that the API server requires for custom resources.

A schema is derived from the types and conditions of the strict reader (``sampleset.documents``). The API server allows
one type per field. If the reader accepts several, the schema has the first of: fields, text, any other type.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import inspect

from prefeed.sampleset.documents import Fields, Unused

Schema = dict[str, Any]
"""JSON schema in the form of ``openAPIV3Schema``."""

MAX_TEXT: Final = 4096
"""Maximum characters of a text without a limit of its own: the API server estimates the cost of conditions from it."""

MAX_ITEMS: Final = 256
"""Maximum entries of a list without a limit of its own, for the same reason."""

PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"
VALIDATIONS: Final = "x-kubernetes-validations"
_ORDER: Final = (inspect.StructType, inspect.StrType)


def structural(kind: type[Fields]) -> Schema:
    """Return the schema of a document type.

    Raises:
        TypeError: A field has a type that has no schema yet.
    """
    return _of_type(inspect.type_info(kind))


def _of_type(kind: inspect.Type) -> Schema:
    match kind:
        case inspect.Metadata():
            described = (kind.extra or {}).get("meaning") or (kind.extra_json_schema or {}).get("description")
            schema = (kind.extra or {}).get("schema") or _of_type(kind.type)
            return {**schema, "description": _sentence(described)} if described else dict(schema)
        case inspect.UnionType():
            return _of_type(_chosen(kind))
        case inspect.StructType():
            return _of_fields(kind)
        case inspect.VarTupleType():
            most = MAX_ITEMS if kind.max_length is None else kind.max_length
            return {"type": "array", "maxItems": most, "items": _of_type(kind.item_type)}
        case inspect.LiteralType():
            return {"type": "string", "enum": list(kind.values)}
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.IntType():
            return {"type": "integer", "format": "int64", **_least(kind.ge)}
        case inspect.FloatType():
            return {"type": "number", **_least(kind.ge)}
        case inspect.StrType():
            schema = {"type": "string", "maxLength": MAX_TEXT if kind.max_length is None else kind.max_length}
            return schema if kind.pattern is None else {**schema, "pattern": kind.pattern.replace(r"\Z", "$")}
        case inspect.CustomType(cls=cls) if cls is Unused:
            return {"type": "string", "maxLength": MAX_TEXT, "description": "Has no effect."}
    raise TypeError(f"no schema stands for {kind!r:.200}")


def _of_fields(kind: inspect.StructType) -> Schema:
    cls: Any = kind.cls
    schema: Schema = {
        "type": "object",
        "description": _sentence((cls.__doc__ or "").splitlines()[0]),
        "properties": {field.encode_name: _of_type(field.type) for field in kind.fields},
    }
    if required := [field.encode_name for field in kind.fields if field.required]:
        schema["required"] = required
    if cls.requires:
        schema[VALIDATIONS] = [
            {"rule": each.cel, "message": f"{each.path}{each.said}".lstrip(".: ")} for each in cls.requires
        ]
    return schema


def _chosen(kind: inspect.UnionType) -> inspect.Type:
    """Return the member of a union that the schema allows. None only makes a field optional."""
    types = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
    return min(types, key=lambda each: next((at for at, cls in enumerate(_ORDER) if isinstance(_bare(each), cls)), 9))


def _bare(kind: inspect.Type) -> inspect.Type:
    return _bare(kind.type) if isinstance(kind, inspect.Metadata) else kind


def _least(least: float | None) -> Schema:
    return {} if least is None else {"minimum": least}


def _sentence(text: str) -> str:
    """Return a description as a sentence, for ``kubectl explain``."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
