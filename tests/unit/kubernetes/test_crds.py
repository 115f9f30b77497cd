"""The resources are structural, and the file in deploy/ has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prefeed.cli.kubernetes import yaml_of
from prefeed.kubernetes.crds import KINDS, definition, definitions, schema_of
from prefeed.kubernetes.paddlejob import KIND as PADDLE_JOB
from prefeed.kubernetes.schema import PRESERVE, VALIDATIONS, structural
from prefeed.sampleset.spec import MountOptions, mount_options

DEPLOY = Path(__file__).parents[3] / "deploy" / "kubernetes"
ALL = (*KINDS, PADDLE_JOB)
KEYWORDS = {
    "type", "description", "properties", "required", "items", "enum", "format", "pattern", "maxLength", "maxItems", "minimum",
    "x-kubernetes-list-type", "x-kubernetes-list-map-keys", PRESERVE, VALIDATIONS,
}  # fmt: skip


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")


def test_the_file_has_the_resources() -> None:
    """After a change: prefeed kubernetes crds > deploy/kubernetes/crds.yaml."""
    assert (DEPLOY / "crds.yaml").read_text() == yaml_of(definitions())


def test_the_file_has_the_resource_of_paddle() -> None:
    """After a change: prefeed kubernetes crds --paddlejob > deploy/kubernetes/paddlejob/crd.yaml."""
    assert (DEPLOY / "paddlejob" / "crd.yaml").read_text() == yaml_of([definition(PADDLE_JOB)])
    (version,) = definition(PADDLE_JOB)["spec"]["versions"]
    columns = [column["name"] for column in version["additionalPrinterColumns"]]
    assert (version["name"], columns) == ("v1", ["Status", "Mode", "Age"])


@pytest.mark.parametrize("kind", ALL)
def test_a_schema_is_structural(kind: str) -> None:
    for path, schema in nodes(schema_of(kind)):
        assert schema.keys() <= KEYWORDS, path
        assert "type" in schema or schema[PRESERVE], path
        assert set(schema.get("required", ())) <= set(schema.get("properties", ())), path


@pytest.mark.parametrize("kind", ALL)
def test_texts_and_lists_in_a_spec_have_a_limit(kind: str) -> None:
    for path, schema in nodes(schema_of(kind)["properties"]["spec"]):
        if schema.get("type") == "string" and "enum" not in schema:
            assert schema["maxLength"] > 0, path
        if schema.get("type") == "array":
            assert schema["maxItems"] > 0, path


@pytest.mark.parametrize("kind", KINDS)
def test_columns_name_fields_that_there_are(kind: str) -> None:
    there = {path for path, _ in nodes(schema_of(kind))}
    (version,) = definition(kind)["spec"]["versions"]

    *columns, age = version["additionalPrinterColumns"]
    assert {column["jsonPath"] for column in columns} <= there
    assert age["jsonPath"] == ".metadata.creationTimestamp"


def test_each_mount_option_says_what_it_means() -> None:
    properties = structural(MountOptions)["properties"]

    assert {name: schema["description"].rstrip(".").lower() for name, schema in properties.items()} == {
        name: option.meaning.rstrip(".").lower() for name, option in mount_options().items()
    }
