"""What an API server says of a document: its schema by jsonschema, its conditions by Google's CEL."""

from __future__ import annotations

from functools import cache
from typing import Any

from cel_expr_python import cel
from jsonschema.validators import Draft202012Validator

from prefeed.kubernetes.crds import schema_of
from prefeed.kubernetes.schema import VALIDATIONS, strict


def refusals(kind: str, document: dict[str, Any], before: dict[str, Any] | None = None) -> list[str]:
    """Return why a document would be refused; empty when it would not. ``before``: the object that it changes."""
    schema = strict(schema_of(kind))
    schema["properties"]["metadata"].pop("additionalProperties")  # an API server knows more of its fields
    if found := [f"{error.json_path}: {error.message}" for error in Draft202012Validator(schema).iter_errors(document)]:
        return found  # conditions count only for what fits the types
    return _unmet(schema, document, before)


def _unmet(schema: dict[str, Any], value: Any, before: Any) -> list[str]:
    found = []
    for each in schema.get(VALIDATIONS, ()):
        is_of_change = "oldSelf" in each["rule"]
        if not is_of_change or before is not None:
            data = {"self": _escaped(value), **({"oldSelf": _escaped(before)} if is_of_change else {})}
            if _compiled(each["rule"]).eval(data=data).value() is not True:
                found.append(each["message"])
    for name, inner in schema.get("properties", {}).items():
        if isinstance(value, dict) and name in value:
            found += _unmet(inner, value[name], before.get(name) if isinstance(before, dict) else None)
    for item in value if "items" in schema and isinstance(value, list) else ():
        found += _unmet(schema["items"], item, None)  # entries of a list have no old selves
    return found


@cache
def _compiled(rule: str) -> Any:
    env = cel.NewEnv(variables={"self": cel.Type.DYN, "oldSelf": cel.Type.DYN})
    return env.compile(rule)


def _escaped(value: Any) -> Any:
    """Return a value with the names of its fields as expressions have them."""
    if isinstance(value, dict):
        return {name.replace("-", "__dash__"): _escaped(inner) for name, inner in value.items()}
    return [_escaped(item) for item in value] if isinstance(value, list) else value
