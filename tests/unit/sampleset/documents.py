"""Documents to apply, and applying them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from prefeed.config import Config, resolve
from prefeed.sampleset.applying import ApplyResult, apply_documents
from prefeed.sampleset.records import SampleSet, find
from prefeed.sampleset.yaml_files import load_documents

ACCESS, SECRET = "AKIATESTTEST", "s3cr3t/with+slash=="


def sample_set(name: str = "imagenet", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "batch.paddlepaddle.org/v1alpha1",
        "kind": "SampleSet",
        "metadata": {"name": name},
        "spec": {"partitions": 1, **spec},
    }


def sample_job(name: str = "warm", **spec: Any) -> dict[str, Any]:
    return {**sample_set(name), "kind": "SampleJob", "spec": spec}


def secret(name: str = "keys", **values: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": values}


def keys(name: str = "keys", **values: Any) -> dict[str, Any]:
    return secret(name, **{"access-key": ACCESS, "secret-key": SECRET, **values})


def apply(*documents: dict[str, Any], config: Config | None = None) -> list[ApplyResult]:
    return apply_documents(load_documents(yaml.safe_dump_all(documents), "sets.yaml"), config or resolve())


def applied(*documents: dict[str, Any], name: str = "imagenet") -> SampleSet:
    apply(*documents)
    return find(name, resolve())


def files_below(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
